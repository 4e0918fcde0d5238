"""Predictions for clusters of any size, by the formulas of ``netoffload.lab.models.cost.exchange``.

They say from how many nodes on latency takes longer than octets, which hierarchy is fastest, and what compression
gains: in NICs (as fast as INCEPTIONN's engine, or the line) and inline (as fast as a core).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from netoffload.config import format_rate, parse_rate_bps
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import AllOrNothing, Finding, Progress
from netoffload.lab.models.cost.exchange import WAYS, Link, best_members, latency_bound_nodes, ring_s
from netoffload.lab.models.hardware.ports import BEAT_BITS
from netoffload.lab.reports import Panel, Series

RATES_MBPS: Final = (10, 100, 1000, 2500, 10_000, 25_000, 40_000, 100_000, 400_000, 800_000)
"""Rates of Ethernet."""
MOST_GBIT: Final = 1600


@dataclass(frozen=True)
class Asked:
    """What to model.

    Attributes:
        nodes: numbers of nodes, each 2 or more.
        rates_bps: rates of the links.
        octets: length of the vector.
        delay_ms: delay of a link, one way.
        ratio: compression ratio of the codec.
        engine_bps: bits of float32 that a NIC's engine takes in a second.
        core_Bps: octets of float32 that a rank encodes or decodes in a second.
        add_Bps: octets of float32 that a rank adds in a second.
    """

    nodes: tuple[int, ...]
    rates_bps: tuple[int, ...]
    octets: int
    delay_ms: float
    ratio: float
    engine_bps: float
    core_Bps: float  # noqa: N815 - the unit as it is written
    add_Bps: float  # noqa: N815

    def __post_init__(self) -> None:
        """Refuse impossible clusters, links and codecs."""
        if min(self.nodes) < 2:
            raise UsageError(f"{min(self.nodes)} nodes exchange nothing: use at least 2")
        if self.ratio < 1 or self.delay_ms < 0:
            raise UsageError("the ratio must be at least 1, and the delay at least 0")

    def link(self, rate_bps: float) -> Link:
        """Return a link of that rate."""
        return Link.of_rate(rate_bps, self.delay_ms / 1e3, 1 / self.add_Bps)


@dataclass(frozen=True)
class Row(Finding):
    """One cluster: seconds by way, the fastest way without compression, and compressed rings.

    Attributes:
        members: size of each group in the fastest rings of rings; 1 or all: one flat ring.
        latency_share: share of the plain ring's time that is latency.
        nic_gain: the fastest way's time over that of the fastest one with NICs that compress.
        inline_gain: likewise, compressed by the ranks.
    """

    rate_bps: int
    nodes: int
    times_s: dict[str, float]
    fastest: str
    members: int
    latency_share: float
    nic_gain: float
    inline_gain: float


@dataclass(frozen=True)
class Crossing(Finding):
    """The number of nodes from which on a plain ring's latency takes longer than its octets."""

    rate_bps: int
    nodes: float


@dataclass(frozen=True)
class Findings(Finding):
    """Every rate and number of nodes."""

    configuration: dict[str, Any]
    crossings: list[Crossing]
    rows: list[Row]

    def panels(self) -> Iterator[Panel]:
        """Yield a panel of times for the least, middle and largest rate, and one of what NICs gain."""
        rates = sorted({row.rate_bps for row in self.rows})
        for rate_bps in dict.fromkeys((rates[0], rates[len(rates) // 2], rates[-1])):
            rows = [row for row in self.rows if row.rate_bps == rate_bps]
            series = tuple(_line(way, rows, [row.times_s[way] for row in rows]) for way in rows[0].times_s)
            yield Panel("lines", f"{format_rate(rate_bps)} links", "seconds", series, "nodes", log_x=True, log_y=True)
        by_rate = {rate: [row for row in self.rows if row.rate_bps == rate] for rate in rates}
        gains = tuple(_line(format_rate(rate), rows, [row.nic_gain for row in rows]) for rate, rows in by_rate.items())
        yield Panel("lines", "What compressing NICs gain", "times as fast", gains, "nodes", log_x=True)


class Scaling(AllOrNothing[Findings]):
    """The formulas, for every rate and number of nodes."""

    def __init__(self, asked: Asked) -> None:
        """Nothing is computed yet."""
        self._asked = asked

    def measure(self, progress: Progress) -> None:
        """Compute every row."""
        asked = self._asked
        progress("computing")
        rows = [self._row(rate_bps, nodes) for rate_bps in asked.rates_bps for nodes in asked.nodes]
        crossings = [
            Crossing(rate, latency_bound_nodes(self._asked.link(rate), asked.octets)) for rate in asked.rates_bps
        ]
        self.found = Findings(asdict(asked), crossings, rows)

    def _row(self, rate_bps: int, nodes: int) -> Row:
        asked, link = self._asked, self._asked.link(rate_bps)
        times_s = {name: way(link, nodes, asked.octets) for name, way in WAYS.items()}
        # A rank decodes what it receives and encodes what it sends: both take the core. A NIC has an engine for each.
        in_nics, inline = (
            min(way(link.coded(asked.ratio, octets_per_s), nodes, asked.octets) for way in WAYS.values())
            for octets_per_s in (asked.engine_bps / 8, asked.core_Bps / 2)
        )
        fastest = min(times_s, key=times_s.__getitem__)
        return Row(
            rate_bps,
            nodes,
            times_s | {"fastest, NICs compress": in_nics},
            fastest,
            best_members(link, link, nodes, asked.octets),
            2 * (nodes - 1) * link.alpha_s / ring_s(link, nodes, asked.octets),
            times_s[fastest] / in_nics,
            times_s[fastest] / inline,
        )


def _line(name: str, rows: list[Row], values: list[float]) -> Series:
    return Series(name, tuple(row.nodes for row in rows), tuple(values))


def engine_bps(clock_hz: int) -> float:
    """Return the float32 that INCEPTIONN's engine takes at a clock: a burst in each cycle (VI-A)."""
    return float(BEAT_BITS * clock_hz)


def node_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of ``4..100000`` (both ends, and doublings of the first one between), or of ``4,8,16``.

    Raises:
        UsageError: no numbers.
    """
    try:
        first, dots, last = text.partition("..")
        if not dots:
            return tuple(int(word) for word in text.split(","))
        count, found = int(first), []
        while 0 < count < int(last):
            found.append(count)
            count *= 2
        return (*found, int(last))
    except ValueError as error:
        raise UsageError(f"nodes {text!r} are no numbers: write 4..100000 or 4,8,16") from error


def rates_bps(text: str) -> tuple[int, ...]:
    """Return the rates of ``1gbit..400gbit`` (both ends, and Ethernet's between), or of ``1gbit,10gbit``.

    Raises:
        UsageError: no rates.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return tuple(parse_rate_bps(word, MOST_GBIT) for word in text.split(","))
    least, most = parse_rate_bps(first, MOST_GBIT), parse_rate_bps(last, MOST_GBIT)
    between = (10**6 * mbps for mbps in RATES_MBPS)
    return tuple(dict.fromkeys((least, *(rate for rate in between if least < rate < most), most)))
