"""Predictions for clusters of any size, by the formulas of ``netoffload.lab.models.exchange``.

They say from how many nodes on latency takes longer than octets, which hierarchy is fastest, and what compression
gains: in NICs (as fast as INCEPTIONN's engine, or the line) and inline (as fast as a core).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from netoffload.config import format_rate, parse_size_octets
from netoffload.lab.declared import Column, Finding, Progress, Table, left_out, words
from netoffload.lab.models.exchange import WAYS, Link, best_members, latency_bound_nodes, ring_delays_s, ring_s
from netoffload.lab.models.hardware import BEAT_BITS
from netoffload.lab.models.settings import ScalingSettings, node_counts, rates_bps
from netoffload.lab.models.simulation import Checked, checked
from netoffload.lab.reports.panels import Panel, Series, draw_panels
from netoffload.lab.units import parse_clock_hz


@dataclass(frozen=True)
class Row(Finding):
    """One cluster: seconds by way, the fastest way without compression, and compressed rings."""

    rate_bps: Annotated[int, words("rate", form=format_rate)]
    nodes: Annotated[int, Column("nodes")]
    times_s: Annotated[dict[str, float], Column("ring", ".4g", of=itemgetter("ring"))]
    fastest: Annotated[str, words("fastest way")]
    fastest_s: Annotated[float, Column("its time", ".4g")]
    members: Annotated[int, Column("groups of")]  # in the fastest rings of rings; 1 or all: one flat ring
    latency_share: Annotated[float, Column("latency %", ".1f", 0.01)]  # of the plain ring's time
    nic_gain: Annotated[float, Column("NICs", ".2f")]  # the fastest way's time over that with NICs that compress
    inline_gain: Annotated[float, Column("inline", ".2f")]  # likewise, compressed by the ranks


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
    check: list[Checked] | None = left_out()

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        yield Table.of(Row, self.rows, "Seconds; how many times as fast with compression")
        for crossing in self.crossings:
            text = f"{format_rate(crossing.rate_bps)}: a ring's latency takes longer than its octets"
            yield f"{text} from {crossing.nodes:.0f} nodes on"
        if self.check is not None:
            yield Table.of(Checked, self.check, "Formula and simulated time")

    def draw(self, path: Path) -> None:
        """Draw times and gains over the number of nodes."""
        draw_panels(list(self.panels()), "A sum over many nodes, by formula", path)

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


class Scaling:
    """The formulas, for every rate and number of nodes; asked for, beside simulated schedules."""

    found: Findings | None = None

    def __init__(self, asked: ScalingSettings) -> None:
        self._asked, self._nodes, self._rates_bps = asked, node_counts(asked.nodes), rates_bps(asked.rate)
        self._octets, self._core_Bps = parse_size_octets(asked.size), parse_size_octets(asked.core)
        self._add_Bps = parse_size_octets(asked.add)
        self._engine_bps = float(BEAT_BITS * parse_clock_hz(asked.clock))  # a burst in each cycle (INCEPTIONN, VI-A)

    def measure(self, progress: Progress) -> None:
        """Compute every row, and simulate."""
        asked, octets = self._asked, self._octets
        progress("computing")
        links = {rate_bps: Link.of_rate(rate_bps, asked.delay / 1e3, 1 / self._add_Bps) for rate_bps in self._rates_bps}
        self.found = Findings(
            configuration={
                "nodes": self._nodes,
                "rates_bps": self._rates_bps,
                "octets": octets,
                "delay_ms": asked.delay,
                "ratio": asked.ratio,
                "engine_bps": self._engine_bps,
                "core_Bps": self._core_Bps,
                "add_Bps": self._add_Bps,
            },
            crossings=[Crossing(rate_bps, latency_bound_nodes(link, octets)) for rate_bps, link in links.items()],
            rows=[self._row(rate_bps, link, nodes) for rate_bps, link in links.items() for nodes in self._nodes],
        )
        if asked.check:
            self.found = replace(self.found, check=checked(links[self._rates_bps[0]], octets, progress))

    def findings(self, _reason: str | None) -> Findings | None:
        """Return what was found so far."""
        return self.found

    def _row(self, rate_bps: int, link: Link, nodes: int) -> Row:
        octets, ratio = self._octets, self._asked.ratio
        times_s = {name: way(link, nodes, octets) for name, way in WAYS.items()}
        # A rank decodes what it receives and encodes what it sends: both take the core. A NIC has an engine for each.
        in_nics, inline = (
            min(way(link.coded(ratio, octets_per_s), nodes, octets) for way in WAYS.values())
            for octets_per_s in (self._engine_bps / 8, self._core_Bps / 2)
        )
        fastest = min(times_s, key=times_s.__getitem__)
        return Row(
            rate_bps,
            nodes,
            times_s | {"fastest, NICs compress": in_nics},
            fastest,
            times_s[fastest],
            best_members(link, link, nodes, octets),
            ring_delays_s(link, nodes) / ring_s(link, nodes, octets),
            times_s[fastest] / in_nics,
            times_s[fastest] / inline,
        )


def _line(name: str, rows: list[Row], values: list[float]) -> Series:
    return Series(name, tuple(row.nodes for row in rows), tuple(values))
