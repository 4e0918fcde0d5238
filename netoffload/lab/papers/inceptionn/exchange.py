"""INCEPTIONN's Fig. 15: how the time of an exchange grows with the nodes: measured, then by the formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from netoffload.config import format_rate
from netoffload.errors import RunError
from netoffload.lab.bench.allreduce import Allreduce
from netoffload.lab.bench.settings import AllreduceSettings
from netoffload.lab.models.cost.exchange import Link, ring_s, star_s
from netoffload.lab.papers.claim import Claim, Standing, scaled
from netoffload.lab.papers.inceptionn.links import GIGABIT
from netoffload.lab.papers.item import Item, Json, Reading, Setting, Step, bound
from netoffload.lab.reports import Panel, Series

RATES_GBIT: Final = (0.1, 1.0)
OCTETS: Final = {0.1: (1_000_000, 2_500_000), 1.0: (10_000_000, 40_000_000)}
BEYOND: Final = tuple(2**power for power in range(2, 14))


def _exchange_times(setting: Setting, gbit: float) -> Json:
    nodes = (2, 3, 4, 6, 8) if setting.is_full else (2, 4, 8)
    sizes = tuple(map(str, OCTETS[gbit]))
    rate = f"{gbit * 1000:g}mbit"
    experiment = Allreduce(AllreduceSettings(nodes, rate, sizes, repeat=3, what=("ring", "wa")))
    experiment.measure(lambda said, _share=None: setting.say(said))
    found = experiment.findings(None)
    if found is None:
        raise RunError("no exchange was measured")
    rows = [[row.what, row.nodes, row.size_octets, row.median_s] for row in found.results]
    return {"rate_bps": found.rate_bps_measured, "rows": rows}


def calibrated(rows: Sequence[Sequence[Any]], way: str) -> tuple[Link, float]:
    """Fit latency and time per octet to measured exchanges of a way, and return them with the largest error (0..1).

    A row is way, nodes, octets and seconds.
    """
    own = [row for row in rows if row[0] == way]
    formula = ring_s if way == "ring" else lambda link, nodes, octets: star_s(link, nodes - 1, octets)
    terms = [(formula(Link(1, 0), p, n), formula(Link(0, 1), p, n)) for _, p, n, _ in own]
    times = np.array([seconds for *_, seconds in own])
    weighted = np.array(terms) / times[:, None]
    alpha_s, beta_s = np.linalg.lstsq(weighted, np.ones(len(own)), rcond=None)[0]
    link = Link(float(alpha_s), float(beta_s))
    errors = [abs(formula(link, p, n) / seconds - 1) for _, p, n, seconds in own]
    return link, float(max(errors))


def _fig15(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels, remarks = [], []
    for key, value in values.items():
        rows, rate = value["rows"], format_rate(float(key) * GIGABIT)
        largest = max(octets for _, _, octets, _ in rows)
        times = {way: {p: s for what, p, n, s in rows if what == way and n == largest} for way in ("wa", "ring")}
        base = times["wa"][4]
        series = [
            Series({"wa": "WA", "ring": "INC"}[way], tuple(of), tuple(s / base for s in of.values()))
            for way, of in times.items()
        ]
        links = {way: calibrated(rows, way) for way in ("ring", "wa")}
        title = f"{rate}, {largest / 1e6:g} MB: over WA with 4"
        panels.append(Panel("lines", title, "exchange time", tuple(series), "nodes"))
        beyond = (
            Series("WA", BEYOND, tuple(star_s(links["wa"][0], p - 1, largest) for p in BEYOND)),
            Series("INC", BEYOND, tuple(ring_s(links["ring"][0], p, largest) for p in BEYOND)),
        )
        panels.append(
            Panel("lines", f"{rate}: the calibrated model beyond", "seconds", beyond, "nodes", log_x=True, log_y=True)
        )
        found |= {
            f"wa.{key}": times["wa"][8] / base,
            f"inc.{key}": times["ring"][8] / times["ring"][4],
            f"model.{key}": 100 * max(error for _, error in links.values()),
        }
        for way, (link, error) in links.items():
            remarks.append(
                f"{rate}, {way}: latency {1e6 * link.alpha_s:.0f} us and {link.beta_s * 1e9:.4g} ns per octet fit; "
                f"the largest error of the formula is {100 * error:.1f} %."
            )
    return Reading(found, panels, remarks)


FIG15: Final = Item(
    "inceptionn-fig15",
    "Fig. 15: exchange time from 4 to 8 nodes, and the model beyond",
    [
        claim
        for key, rate in ((f"{gbit:g}", format_rate(gbit * GIGABIT)) for gbit in RATES_GBIT)
        for claim in (
            scaled(
                f"wa.{key}",
                f"{rate}: WA's time with 8 nodes over that with 4",
                2.0,
                "x",
                "Fig. 15: almost linear",
                within=0.5,
            ),
            scaled(
                f"inc.{key}",
                f"{rate}: INC's time with 8 nodes over that with 4",
                1.17,
                "x",
                "VIII-D: formula, 7/8 over 3/4",
                within=0.2,
            ),
            Claim(
                f"model.{key}",
                f"{rate}: the formulas' largest error on 2 to 8 nodes",
                0.0,
                "%",
                "VIII-D",
                Standing.COMPARABLE,
                within=10.0,
            ),
        )
    ],
    "Paper: gradient exchange of four models on 4 to 8 hosts with 10 Gb/s. Here: sums of vectors of up to 40 MB "
    "on emulated nodes with slower links. One of WA's workers is its aggregator. So the aggregator's link carries 3 "
    "vectors with 4 nodes and 7 with 8, and linear growth is 7/3. A fitted latency can be below 0, because the links' "
    "token bucket lets the first 128 KiB pass at once.",
    lambda _is_full: [Step(f"{gbit:g}", bound(_exchange_times, gbit), needs_root=True) for gbit in RATES_GBIT],
    _fig15,
)
