"""Records merged into the numbers of a report."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Sequence
from typing import Any, Final

from netoffload.errors import UsageError
from netoffload.results import Configuration, Record

VIA_NICS: Final = " via NICs"
"""Behind the name of an exchange that went through NICs which had nothing to compress."""

EXCHANGE_ORDER: Final = ("wa", f"wa{VIA_NICS}", "wa+c", "inc", f"inc{VIA_NICS}", "inc+c")
"""The order of bars and rows, each exchange beside its compressed form; what is not here follows as it was run."""

MAY_DIFFER: Final = frozenset({"exchange", "seed", "error_feedback", "learning_rate"})
"""Fields of the configuration that runs of one report need not share; runs of one bar share the learning rate."""

OF_NICS: Final = frozenset({"codec", "bound_k", "packing"})
"""Fields that runs without NICs do not have."""

SPEEDUPS: Final = (("wa", "wa+c"), ("wa", "inc"), ("inc", "inc+c"), ("wa", "inc+c"))


@dataclasses.dataclass(frozen=True)
class ExchangeSummary:
    """One bar. Times are seconds per iteration, traffic is that of all nodes per iteration."""

    s_per_iteration: float
    compute_s: float
    communicate_s: float
    wire_bytes_per_iteration: float
    wire_frames_per_iteration: float
    ratio: float
    compression_efficiency: float
    accuracy: float
    codec_s: float
    s_per_iteration_quartiles: tuple[float, float]
    classes: dict[str, float]
    runs: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """A whole report: bars in :data:`EXCHANGE_ORDER`, and what they share."""

    exchanges: dict[str, ExchangeSummary]
    configuration: Configuration
    """Of the first record through NICs, else of the first; its ``exchange`` and ``seed`` are not the others'."""
    rate_bps_measured: float | None
    learning_rates: dict[str, float]
    """At the start, by bar."""

    def speedup(self, slow: str, fast: str) -> float | None:
        """Return time per iteration of ``slow`` over that of ``fast``; None unless both were run.

        What is uncompressed is ``slow`` without NICs, which cost time, or through them if it was only run so.
        """
        slow = slow if slow in self.exchanges else slow + VIA_NICS
        if slow not in self.exchanges or fast not in self.exchanges:
            return None
        return self.exchanges[slow].s_per_iteration / self.exchanges[fast].s_per_iteration

    def to_json(self) -> dict[str, Any]:
        """Return what ``summary.json`` holds; a speed-up is left out where one of its exchanges was not run."""
        speedups = {f"speedup_{slow}_to_{fast}": self.speedup(slow, fast) for slow, fast in SPEEDUPS}
        return {
            "exchanges": {name: dataclasses.asdict(bar) for name, bar in self.exchanges.items()},
            "rate_bps_asked": self.configuration.rate_bps,
            "rate_bps_measured": self.rate_bps_measured,
            "learning_rates": self.learning_rates,
            **{key: value for key, value in speedups.items() if value is not None},
            "configuration": {
                key: value for key, value in dataclasses.asdict(self.configuration).items() if key not in MAY_DIFFER
            },
        }


def summarise(records: Sequence[Record]) -> Summary:
    """Merge records; several of one exchange become the median of theirs.

    Raises:
        UsageError: no record, or records of two machines, or that differ in more than exchange and seed.
    """
    if not records:
        raise UsageError("nothing to report: no record")
    _check_alike(records)
    present = dict.fromkeys(bar_name(record) for record in records)
    order = [name for name in EXCHANGE_ORDER if name in present] + [
        name for name in present if name not in EXCHANGE_ORDER
    ]
    by_exchange = {name: [record for record in records if bar_name(record) == name] for name in order}
    measured = [record.rate_bps_measured for record in records if record.rate_bps_measured is not None]
    return Summary(
        exchanges={name: _merge(same) for name, same in by_exchange.items()},
        configuration=_leading(records).configuration,
        rate_bps_measured=statistics.median(measured) if measured else None,
        learning_rates={name: same[0].configuration.learning_rate for name, same in by_exchange.items()},
    )


def bar_name(record: Record) -> str:
    """Return the name of a record's bar: its exchange, and what else sets it apart."""
    configuration = record.configuration
    idle_nics = configuration.codec is not None and not record.traffic.raw_octets
    return configuration.exchange + ("+ef" if configuration.error_feedback else "") + (VIA_NICS if idle_nics else "")


def _leading(records: Sequence[Record]) -> Record:
    """The first record through NICs, whose configuration says most, else the first."""
    return next((record for record in records if record.configuration.codec is not None), records[0])


def _check_alike(records: Sequence[Record]) -> None:
    leading = _leading(records)
    of_bar: dict[str, Record] = {}
    for record in records:
        first = of_bar.setdefault(bar_name(record), record)
        _check_fields(first, record, frozenset({"learning_rate"}))
        has_nics = record.configuration.codec is not None
        names = {field.name for field in dataclasses.fields(Configuration)} - MAY_DIFFER
        _check_fields(leading, record, names if has_nics else names - OF_NICS)
        mine, other = (_machine(one) for one in (leading, record))
        if mine != other:
            raise UsageError(
                f"records are of two machines ({mine} and {other}): a speed-up between them says nothing about "
                "exchanges; report them one by one"
            )


def _check_fields(first: Record, other: Record, names: Collection[str]) -> None:
    for name in sorted(names):
        one, two = getattr(first.configuration, name), getattr(other.configuration, name)
        if one != two:
            raise UsageError(f"records differ in {name} ({one} and {two}): report them one by one")


def _machine(record: Record) -> str:
    versions = record.versions
    return f"{versions.machine}, {versions.cores} cores of {versions.cpu}"


def _merge(records: Sequence[Record]) -> ExchangeSummary:
    def median(values: list[float]) -> float:
        return float(statistics.median(values))

    wall_s = median([record.timing.wall_s.median for record in records])
    compute_s = median([record.timing.compute_s.median for record in records])
    totals = [record.traffic.classes for record in records if record.traffic.classes.total]
    classes = {
        str(bits): median([getattr(total, f"bits_{bits}") / total.total for total in totals])
        for bits in ((0, 8, 16, 32) if totals else ())
    }

    def per_iteration(name: str) -> float:
        return median([getattr(record.traffic, name) / record.configuration.iterations for record in records])

    return ExchangeSummary(
        s_per_iteration=wall_s,
        compute_s=compute_s,
        communicate_s=wall_s - compute_s,
        wire_bytes_per_iteration=per_iteration("wire_octets"),
        wire_frames_per_iteration=per_iteration("wire_frames"),
        ratio=median([record.traffic.ratio for record in records]),
        compression_efficiency=median([record.compression_efficiency for record in records]),
        accuracy=median([record.learning.accuracy for record in records]),
        codec_s=per_iteration("codec_s"),
        s_per_iteration_quartiles=(
            median([record.timing.wall_s.quartile_low for record in records]),
            median([record.timing.wall_s.quartile_high for record in records]),
        ),
        classes=classes,
        runs=len(records),
    )
