"""The axes of reports: the bars of a report differ along one axis, and agree in everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from netoffload.config import Offload, check_choice
from netoffload.lab.results import Record

VIA_NICS: Final = " via NICs"
"""End of the name of an uncompressed method that went through NICs."""

INLINE: Final = " inline"
"""End of the name of a method whose ranks compressed by themselves."""

EXCHANGE_ORDER: Final = (
    *("wa", f"wa{VIA_NICS}", "wa+c", f"wa+c{INLINE}"),
    *("inc", f"inc{VIA_NICS}", "inc+c", f"inc+c{INLINE}"),
)
"""The order of bars and rows, each method beside its compressed form; others follow in the order of their runs."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """The axis along which bars differ.

    Attributes:
        place: returns the place of the bar; bars with the same place stand in the order of their runs.
        varies: fields of the configuration in which the bars differ.
        marked: fields that may differ between bars too, but not within a bar; the report names them.
        optional: fields that may differ between runs with NICs and without.
        title: title of a figure of many bars, behind their number.
    """

    name: str
    bar_name: Callable[[Record], str]
    place: Callable[[Record], int]
    varies: frozenset[str]
    title: str
    marked: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    @property
    def may_differ(self) -> frozenset[str]:
        """Fields in which a report's runs may differ; repeated runs of a bar may differ in their seeds."""
        return self.varies | self.marked | {"seed"}

    def order(self, records: Sequence[Record]) -> list[str]:
        """Return the bars' names in their order."""
        return list(dict.fromkeys(self.bar_name(record) for record in sorted(records, key=self.place)))


def method_name(record: Record) -> str:
    """Return a record's method with its variant: error feedback, buckets, inline, idle NICs."""
    configuration, compressed = record.configuration, record.traffic.raw_octets > 0
    way = VIA_NICS if configuration.has_nics and not compressed else ""
    if compressed and configuration.offload == Offload.INLINE:
        way = INLINE
    buckets = f" {configuration.bucket_mb:g} MB" if configuration.bucket_mb else ""
    split = split_name(configuration.parallel, configuration.activations, configuration.sub_batches)
    return configuration.exchange + ("+ef" if configuration.error_feedback else "") + buckets + split + way


def split_name(parallel: str, activations: str, sub_batches: int) -> str:
    """Return the end of the name of a method whose model is split over the ranks."""
    if parallel == "data":
        return ""
    return f" {parallel} {activations}" + (f" by {sub_batches}" if sub_batches > 1 else "")


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
    check_choice("axis", name, tuple(AXES))
    return AXES[name]
