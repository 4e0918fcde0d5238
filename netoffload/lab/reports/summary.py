"""Records merged into the numbers of a report, and the axes along which its bars differ."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from netoffload.config import Offload, check_choice
from netoffload.errors import UsageError
from netoffload.lab.results import Configuration, Record, Versions

VIA_NICS: Final = " via NICs"  # end of the name of an uncompressed method that went through NICs
INLINE: Final = " inline"  # end of the name of a method whose ranks compressed by themselves

EXCHANGE_ORDER: Final = (
    *("wa", f"wa{VIA_NICS}", "wa+c", f"wa+c{INLINE}"),
    *("inc", f"inc{VIA_NICS}", "inc+c", f"inc+c{INLINE}"),
)
"""The order of bars and rows, each method beside its compressed form; others follow in the order of their runs."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """The axis along which bars differ, and fields of the configuration that may differ."""

    name: str
    bar_name: Callable[[Record], str]
    place: Callable[[Record], int]  # orders the bars; those with the same place stand in the order of their runs
    varies: frozenset[str]  # between bars
    title: str  # stands behind the number of bars in a figure of many
    marked: frozenset[str] = frozenset()  # between bars too, but not within a bar; the report names them
    optional: frozenset[str] = frozenset()  # between runs with NICs and without

    @property
    def may_differ(self) -> frozenset[str]:
        """Fields in which a report's runs may differ; repeated runs of a bar may differ in their seeds."""
        return self.varies | self.marked | {"seed"}


def method_name(record: Record) -> str:
    """Return a record's method with its variant: error feedback, buckets, inline, idle NICs."""
    configuration, compressed = record.configuration, record.traffic.raw_octets > 0
    way = VIA_NICS if configuration.has_nics and not compressed else ""
    if compressed and configuration.offload == Offload.INLINE:
        way = INLINE
    return variant_name(configuration.exchange, configuration) + way


def variant_name(method: str, run: Any) -> str:
    """Return a method with its variant: error feedback, buckets, split; ``run`` is a configuration, or settings."""
    name = method + ("+ef" if run.error_feedback else "") + (f" {run.bucket_mb:g} MB" if run.bucket_mb else "")
    if run.parallel == "data":
        return name
    return f"{name} {run.parallel} {run.activations}" + (f" by {run.sub_batches}" if run.sub_batches > 1 else "")


def _place(record: Record) -> int:
    return EXCHANGE_ORDER.index(method_name(record)) if method_name(record) in EXCHANGE_ORDER else len(EXCHANGE_ORDER)


EXCHANGE: Final = Axis(
    "exchange",
    method_name,
    _place,
    varies=frozenset({"exchange", "error_feedback", "offload", "bucket_mb", "parallel", "activations", "sub_batches"}),
    title="methods",
    marked=frozenset({"learning_rate"}),
    optional=frozenset({"codec", "bound_k", "packing"}),
)
BOUND: Final = Axis(
    "bound",
    lambda record: f"2^-{record.configuration.bound_k}",
    lambda record: record.configuration.bound_k or 0,
    varies=frozenset({"bound_k"}),
    title="error bounds",
)
NODES: Final = Axis(
    "nodes",
    lambda record: f"{record.configuration.nodes} workers",
    lambda record: record.configuration.nodes,
    varies=frozenset({"nodes"}),
    title="numbers of workers",
)
AXES: Final = {axis.name: axis for axis in (EXCHANGE, BOUND, NODES)}


def get(name: str) -> Axis:
    """Return an axis by its name."""
    return AXES[check_choice("axis", name, tuple(AXES))]


SPEEDUPS: Final = (("wa", "wa+c"), ("wa", "inc"), ("inc", "inc+c"), ("wa", "inc+c"))


@dataclasses.dataclass(frozen=True)
class OverRuns:
    """Mean of several runs, and their sample standard deviation (0 for one run)."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> OverRuns | None:
        """Summarise the runs; None: there are no values."""
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar. Times are seconds per iteration, traffic is that of all nodes per iteration, memory the largest rank's.

    ``over_runs`` has means over the runs; all other figures are medians over the runs. A loss that is not finite is
    left out. None: records of older formats lack the figure.
    """

    s_per_iteration: float
    compute_s: float
    communicate_s: float
    wire_bytes_per_iteration: float
    wire_frames_per_iteration: float
    ratio: float
    compression_efficiency: float
    accuracy: float
    codec_s: float
    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    sum_s: float | None
    hidden_s: float | None
    peak_memory_bytes: float | None
    s_per_iteration_quartiles: tuple[float, float]
    classes: dict[str, float]
    runs: int
    over_runs: dict[str, OverRuns | None]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A whole report: the bars in their order, and what they share."""

    axis: Axis  # the axis along which the bars differ
    bars: dict[str, Bar]
    configuration: Configuration
    """The first record's through NICs, else the first record's; other records may differ along :attr:`axis`."""
    machine: str  # the machine of all records, in words
    differences: dict[str, list[str]]  # versions in which the records differ: their values, by name
    rate_bps_measured: float | None
    learning_rates: dict[str, float]  # learning rates at the start, by bar

    def speedup(self, slow: str, fast: str) -> float | None:
        """Return time per iteration of ``slow`` over that of ``fast``; None if one was not run.

        An uncompressed ``slow`` is taken without NICs, which cost time, or through NICs if it was only run so.
        """
        slow = slow if slow in self.bars else slow + VIA_NICS
        if slow not in self.bars or fast not in self.bars:
            return None
        return self.bars[slow].s_per_iteration / self.bars[fast].s_per_iteration

    @property
    def baselines(self) -> tuple[str, ...]:
        """The bars that the others are compared with: the papers' two baselines, or the axis' first bar."""
        return ("inc", "wa") if self.axis is EXCHANGE else tuple(self.bars)[:1]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``summary.json``, without speed-ups over methods that were not run."""
        speedups = {f"speedup_{slow}_to_{fast}": self.speedup(slow, fast) for slow, fast in SPEEDUPS}
        return {
            "axis": self.axis.name,
            "exchanges": {name: dataclasses.asdict(bar) for name, bar in self.bars.items()},
            "rate_bps_asked": self.configuration.rate_bps,
            "rate_bps_measured": self.rate_bps_measured,
            "learning_rates": self.learning_rates,
            **{key: value for key, value in speedups.items() if value is not None},
            "configuration": {
                key: value
                for key, value in dataclasses.asdict(self.configuration).items()
                if key not in self.axis.may_differ
            },
            "machine": self.machine,
            "differences": self.differences,
        }


def summarise(records: Sequence[Record], axis: Axis = EXCHANGE) -> Summary:
    """Merge records; several of one bar become the median of theirs."""
    if not records:
        raise UsageError("nothing to report: no record")
    _check_alike(records, axis)
    by_bar: dict[str, list[Record]] = {}
    for record in sorted(records, key=axis.place):
        by_bar.setdefault(axis.bar_name(record), []).append(record)
    measured = [record.rate_bps_measured for record in records if record.rate_bps_measured is not None]
    return Summary(
        axis=axis,
        bars={name: _merge(same) for name, same in by_bar.items()},
        configuration=_leading(records).configuration,
        machine=records[0].versions.computer,
        differences=_differences([record.versions for record in records]),
        rate_bps_measured=statistics.median(measured) if measured else None,
        learning_rates={name: same[0].configuration.learning_rate for name, same in by_bar.items()},
    )


def _differences(versions: Sequence[Versions]) -> dict[str, list[str]]:
    values = {field.name: {str(getattr(one, field.name)) for one in versions} for field in dataclasses.fields(Versions)}
    return {name: sorted(found) for name, found in values.items() if len(found) > 1}


def _leading(records: Sequence[Record]) -> Record:
    """Return the first record through NICs, which has the most complete configuration, else the first record."""
    return next((record for record in records if record.configuration.has_nics), records[0])


def _check_alike(records: Sequence[Record], axis: Axis) -> None:
    leading = _leading(records)
    of_bar: dict[str, Record] = {}
    names = {field.name for field in dataclasses.fields(Configuration)} - axis.may_differ
    for record in records:
        first = of_bar.setdefault(axis.bar_name(record), record)
        _check_fields(first, record, axis.marked)
        has_nics = record.configuration.has_nics
        _check_fields(leading, record, names if has_nics else names - axis.optional)
        mine, other = leading.versions.computer, record.versions.computer
        if mine != other:
            raise UsageError(
                f"records are of two machines ({mine} and {other}), so their times cannot be compared: "
                "report them one by one"
            )


def _check_fields(first: Record, other: Record, names: Collection[str]) -> None:
    for name in sorted(names):
        one, two = getattr(first.configuration, name), getattr(other.configuration, name)
        if one != two:
            axis = next((f", or with --axis {axis.name}" for axis in AXES.values() if name in axis.varies), "")
            raise UsageError(f"records differ in {name} ({one} and {two}): report them one by one{axis}")


def _merge(records: Sequence[Record]) -> Bar:
    def median(of: Callable[[Record], float]) -> float:
        return float(statistics.median(map(of, records)))

    def part(name: str) -> float | None:
        has_all = all(getattr(record.timing, name) is not None for record in records)
        return median(lambda record: getattr(record.timing, name).median) if has_all else None

    coded = [record.traffic.classes for record in records if record.traffic.classes.total]
    peaks = [record.peak_memory_octets for record in records]
    wall_s = median(lambda record: record.timing.wall_s.median)
    compute_s = median(lambda record: record.timing.compute_s.median)
    return Bar(
        s_per_iteration=wall_s,
        compute_s=compute_s,
        communicate_s=wall_s - compute_s,
        wire_bytes_per_iteration=median(lambda record: record.traffic.wire_octets / record.timed_iterations),
        wire_frames_per_iteration=median(lambda record: record.traffic.wire_frames / record.timed_iterations),
        ratio=median(lambda record: record.traffic.ratio),
        compression_efficiency=median(lambda record: record.compression_efficiency),
        accuracy=median(lambda record: record.learning.accuracy),
        codec_s=median(lambda record: record.traffic.codec_s / record.timed_iterations),
        **{name: part(name) for name in ("forward_s", "backward_s", "update_s", "sum_s", "hidden_s")},
        peak_memory_bytes=None if None in peaks else float(max(max(peak) for peak in peaks if peak)),
        s_per_iteration_quartiles=(
            median(lambda record: record.timing.wall_s.quartile_low),
            median(lambda record: record.timing.wall_s.quartile_high),
        ),
        classes={
            str(bits): float(statistics.median(getattr(each, f"bits_{bits}") / each.total for each in coded))
            for bits in ((0, 8, 16, 32) if coded else ())
        },
        runs=len(records),
        over_runs={
            "s_per_iteration": OverRuns.of([record.timing.wall_s.median for record in records]),
            "accuracy": OverRuns.of([record.learning.accuracy for record in records]),
            "final_loss": OverRuns.of([loss for one in records if (loss := one.learning.final_loss) is not None]),
        },
    )
