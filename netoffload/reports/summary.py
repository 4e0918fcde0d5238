"""Records merged into the numbers of a report."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Final

from netoffload.errors import UsageError
from netoffload.results import Configuration, Record

EXCHANGE_ORDER: Final = ("wa", "wa+c", "inc", "inc+c")
"""The order of bars and rows, each exchange beside its compressed form; what is not here follows as it was run."""

MAY_DIFFER: Final = frozenset({"exchange", "seed", "error_feedback"})
"""Fields of the configuration that runs of one report need not share."""

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
    """Of the first record; its ``exchange`` and ``seed`` are not the others'."""
    rate_bps_measured: float | None

    def speedup(self, slow: str, fast: str) -> float | None:
        """Return time per iteration of ``slow`` over that of ``fast``; None unless both were run."""
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
            **{key: value for key, value in speedups.items() if value is not None},
            "configuration": {
                key: value for key, value in dataclasses.asdict(self.configuration).items() if key not in MAY_DIFFER
            },
        }


def summarise(records: Sequence[Record]) -> Summary:
    """Merge records; several of one exchange become the median of theirs.

    Raises:
        UsageError: no record, or records that differ in more than exchange and seed.
    """
    if not records:
        raise UsageError("nothing to report: no record")
    _check_alike(records)
    present = dict.fromkeys(_bar_name(record) for record in records)
    order = [name for name in EXCHANGE_ORDER if name in present] + [
        name for name in present if name not in EXCHANGE_ORDER
    ]
    by_exchange = {name: [record for record in records if _bar_name(record) == name] for name in order}
    measured = [record.rate_bps_measured for record in records if record.rate_bps_measured is not None]
    return Summary(
        exchanges={name: _merge(same) for name, same in by_exchange.items()},
        configuration=records[0].configuration,
        rate_bps_measured=statistics.median(measured) if measured else None,
    )


def _bar_name(record: Record) -> str:
    configuration = record.configuration
    return configuration.exchange + ("+ef" if configuration.error_feedback else "")


def _check_alike(records: Sequence[Record]) -> None:
    first = dataclasses.asdict(records[0].configuration)
    for record in records:
        other = dataclasses.asdict(record.configuration)
        for key in first.keys() - MAY_DIFFER:
            if first[key] != other[key]:
                raise UsageError(f"records differ in {key} ({first[key]} and {other[key]}): report them one by one")


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
