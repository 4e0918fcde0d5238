"""Draws accuracy over time and over octets on the wires, by method and model.

A run that measured its accuracy on the way is a curve. Its time and octets are those of one iteration, times the
iterations. Runs that differ in their seeds are one curve: the mean, with a band from the lowest to the highest.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from netoffload.errors import UsageError
from netoffload.lab.reports.panels import Panel, Series, draw_panels
from netoffload.lab.reports.summary import method_name
from netoffload.lab.results import Record


def has_curve(record: Record) -> bool:
    """Return whether a run measured its accuracy on the way."""
    return len(record.learning.accuracy_after) >= 2


def draw_curves(records: Sequence[Record], path: Path) -> None:
    """Draw accuracy over octets and over time, and losses, of all records with a curve: three panels for each model."""
    panels = curve_panels(records)
    if not panels:
        raise UsageError("no run measured its accuracy on the way: train with --evaluate-every")
    draw_panels(panels, "Accuracy over what it cost", path)


def curve_panels(records: Sequence[Record]) -> list[Panel]:
    """Return three panels for each model: accuracy over octets and over time, and losses over time."""
    by_model: dict[str, dict[str, list[Record]]] = {}
    for record in filter(has_curve, records):
        title = f"{record.configuration.model} on {record.configuration.data}"
        by_model.setdefault(title, {}).setdefault(_name(record), []).append(record)
    panels = []
    for title, by_name in by_model.items():
        octets, times, losses = [], [], []
        for name, runs in by_name.items():
            octets_mb = statistics.median(run.traffic.wire_octets / run.timed_iterations for run in runs) / 1e6
            time_s = statistics.median(run.timing.wall_s.median for run in runs)
            percents = [{at: 100 * share for at, share in run.learning.accuracy_after.items()} for run in runs]
            octets.append(_curve(name, percents, octets_mb))
            times.append(_curve(name, percents, time_s))
            losses.append(_curve(name, [run.learning.loss_after for run in runs], time_s))
        panels += [
            Panel("lines", title, "% of the test set", tuple(octets), "MB on all wires", log_x=True),
            Panel("lines", title, "% of the test set", tuple(times), "seconds of training"),
            Panel("lines", title, "loss of worker 0", tuple(losses), "seconds of training"),
        ]
    return panels


def _name(record: Record) -> str:
    """Return a run's method, and its codec if that compressed and is not the paper's."""
    codec = record.configuration.codec if record.traffic.raw_octets else None
    return method_name(record) + (f", {codec}" if codec not in (None, "inceptionn") else "")


def _curve(name: str, learnt: Sequence[dict[str, float]], cost: float) -> Series:
    """Return the mean of what runs of several seeds learnt, at points that all have; ``cost`` is an iteration's."""
    places = [at for at in learnt[0] if all(at in points for points in learnt)]
    of = [[points[at] for points in learnt] for at in places]
    band = (tuple(map(min, of)), tuple(map(max, of))) if len(learnt) > 1 else None
    return Series(name, tuple(cost * int(at) for at in places), tuple(map(statistics.fmean, of)), band=band)
