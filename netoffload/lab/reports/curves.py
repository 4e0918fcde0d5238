"""Draws accuracy over time and over octets on the wires, by method and model.

A run that measured its accuracy on the way is a curve. Its time and octets are those of one iteration, times the
iterations. Runs that differ in their seeds are one curve: the mean, with a band from the lowest to the highest.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload.errors import UsageError
from netoffload.lab.reports.panels import Panel, Series, draw_panels
from netoffload.lab.reports.summary import method_name
from netoffload.lab.results import Record

POINTS_LEAST: Final = 2
MEGA: Final = 1e6


def has_curve(record: Record) -> bool:
    """Return whether a run measured its accuracy on the way."""
    return len(record.learning.accuracy_after) >= POINTS_LEAST


def draw_curves(records: Sequence[Record], path: Path) -> None:
    """Draw accuracy over octets and over time, and losses, into a file: three panels for each model.

    Records without a curve are left out.
    """
    panels = curve_panels(records)
    if not panels:
        raise UsageError("no run measured its accuracy on the way: train with --evaluate-every")
    draw_panels(panels, "Accuracy over what it cost", path)


def curve_panels(records: Sequence[Record]) -> list[Panel]:
    """Return three panels for each model: accuracy over octets and over time, and losses over time."""
    panels = []
    drawn = [record for record in records if has_curve(record)]
    for model in dict.fromkeys(record.configuration.model for record in drawn):
        own = [record for record in drawn if record.configuration.model == model]
        data = own[0].configuration.data
        methods = dict.fromkeys(curve_name(record) for record in own)
        of = {name: [record for record in own if curve_name(record) == name] for name in methods}
        title = f"{model} on {data}"
        octets, times = (
            tuple(curve(name, runs, cost(runs)) for name, runs in of.items()) for cost in (octets_mb, time_s)
        )
        losses = tuple(curve(name, runs, time_s(runs), of_losses=True) for name, runs in of.items())
        panels.append(Panel("lines", title, "% of the test set", octets, "MB on all wires", log_x=True))
        panels.append(Panel("lines", title, "% of the test set", times, "seconds of training"))
        panels.append(Panel("lines", title, "loss of worker 0", losses, "seconds of training"))
    return panels


def curve_name(record: Record) -> str:
    """Return a run's method, and its codec if that compressed and is not the paper's."""
    codec = record.configuration.codec if record.traffic.raw_octets else None
    return method_name(record) + (f", {codec}" if codec not in (None, "inceptionn") else "")


def octets_mb(runs: Sequence[Record]) -> float:
    """Return the octets of an iteration in 10^6, for runs that differ only in their seeds."""
    return statistics.median(run.traffic.wire_octets / run.timed_iterations for run in runs) / MEGA


def time_s(runs: Sequence[Record]) -> float:
    """Return the seconds of an iteration, for runs that differ only in their seeds."""
    return statistics.median(run.timing.wall_s.median for run in runs)


def curve(name: str, runs: Sequence[Record], cost: float, *, of_losses: bool = False) -> Series:
    """Return the mean of the runs' accuracies, in per cent, or of their losses, at points that all runs have."""
    learnt = [run.learning.loss_after if of_losses else run.learning.accuracy_after for run in runs]
    places = [at for at in learnt[0] if all(at in points for points in learnt)]
    of = [[points[at] * (1 if of_losses else 100) for points in learnt] for at in places]
    band = (tuple(map(min, of)), tuple(map(max, of))) if len(runs) > 1 else None
    return Series(name, tuple(cost * int(at) for at in places), tuple(map(statistics.fmean, of)), band=band)
