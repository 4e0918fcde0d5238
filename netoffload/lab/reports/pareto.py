"""Draws the ratio of each codec and compressor against its worst error, a panel per data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from netoffload.lab.reports.figure import written
from netoffload.lab.reports.palette import MUTED_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#222222",
    "#999999",
    "#8C564B",
    "#7F3C8D",
)
MARKERS: Final = "osD^vPX*<h"


class Point(NamedTuple):
    """One codec, with one bound, on one vector.

    Attributes:
        max_error: the worst error; 0: every bit comes back.
        ratio: octets before over octets after.
    """

    data: str
    name: str
    max_error: float
    ratio: float
    k: int | None


def draw_pareto(points: Sequence[Point], described: str, path: Path) -> None:
    """Draw points into a file; its suffix decides the format. Lossless compressors stand at the left edge."""
    data = list(dict.fromkeys(point.data for point in points))
    names = list(dict.fromkeys(point.name for point in points))
    with written(path) as figure:
        grid = figure.add_gridspec(1, len(data), left=0.06, right=0.84, top=0.84, bottom=0.12, wspace=0.22)
        for column, name in enumerate(data):
            axes = figure.add_subplot(grid[column])
            _draw_panel(axes, [point for point in points if point.data == name], names)
            axes.set_title(name)
            axes.set_xlabel("worst error")
        figure.axes[0].set_ylabel("ratio")
        handles = {
            label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(0.85, 0.5), frameon=False)
        figure.text(0.02, 0.945, "Ratio against worst error", fontsize=15, fontweight="bold")
        figure.text(0.02, 0.905, described, fontsize=9, color=MUTED_COLOUR, va="center")


def _draw_panel(axes: Axes, points: Sequence[Point], names: Sequence[str]) -> None:
    smallest = min((point.max_error for point in points if point.max_error > 0), default=1e-6)
    exact = 10 ** (math.floor(math.log10(smallest)) - 1)
    for at, name in enumerate(names):
        mine = sorted((point.max_error or exact, point.ratio, point.k) for point in points if point.name == name)
        if not mine:
            continue
        errors, ratios = [point[0] for point in mine], [point[1] for point in mine]
        axes.plot(
            errors, ratios, color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)], label=name, linewidth=1
        )
        for error, ratio, k in mine:
            if k is not None:
                axes.annotate(f"{k}", (error, ratio), (4, 3), textcoords="offset points", fontsize=6.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", color="#EEEEEE")
    if any(point.max_error == 0 for point in points):
        axes.axvline(exact * 1.6, color="#DDDDDD", linewidth=0.8, linestyle=":")
        axes.text(exact, axes.get_ylim()[1], "exact", fontsize=7, color=MUTED_COLOUR, ha="center", va="top")
