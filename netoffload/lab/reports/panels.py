"""Figures of any kind from plain numbers: panels of bars, lines, steps and heaps, in one row or several.

A paper's printed values are grey, beside ours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.lab.reports.figure import MUTED_COLOUR, PRINTED_COLOUR, SERIES_COLOURS, TEXT_COLOUR, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 3  # number of panels side by side
BAND_ALPHA: Final = 0.15
PANEL_INCHES: Final = (3.9, 3.1)
NARROWEST: Final = 1.4  # least width of a figure, in panels, so that its title fits
HEADROOM: Final = 1.25  # height of the y axis over the highest bar, to leave room for the legend
TITLE_CHARACTERS: Final = 46
LONGEST_TICK: Final = 12
MARKERS: Final = "oD^"  # markers of lines; the next one is taken when the colours begin again


@dataclass(frozen=True)
class Series:
    """A named series of numbers."""

    name: str
    xs: tuple[float | str, ...]  # numbers, or names of bars
    ys: tuple[float, ...]
    printed: bool = False  # a paper's, not ours
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Around a line: the lowest and the highest of several runs at each place."""
    notes: tuple[str, ...] = ()  # beside the points of a line


@dataclass(frozen=True)
class Panel:
    """One coordinate system, whose ``kind`` is bars, heaps of stacked bars, lines, or steps of a histogram."""

    kind: str
    title: str
    y_label: str
    series: tuple[Series, ...]
    x_label: str = ""
    log_x: bool = False
    log_y: bool = False


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Draw panels into a file; its suffix decides the format (PNG, SVG, PDF).

    A panel with the series of the one to its left has no legend.
    """
    rows = -(-len(panels) // COLUMNS)
    columns = min(len(panels), COLUMNS)
    with written(path) as figure:
        wide, high = PANEL_INCHES
        figure.set_size_inches(max(columns, NARROWEST) * wide, rows * high + 0.5)
        figure.set_layout_engine("constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        for number, panel in enumerate(panels):
            names = [series.name for series in panel.series]
            is_new = number % columns == 0 or names != [series.name for series in panels[number - 1].series]
            _draw(figure.add_subplot(rows, columns, number + 1), panel, has_legend=is_new and len(names) > 1)


def _draw(axes: Axes, panel: Panel, *, has_legend: bool) -> None:
    is_bars = panel.kind in ("bars", "heaps")
    (_draw_bars if is_bars else _draw_lines)(axes, panel)
    axes.set_title(textwrap.fill(panel.title, TITLE_CHARACTERS), fontsize=9.5)
    axes.set_xlabel(panel.x_label, fontsize=8.5)
    axes.set_ylabel(panel.y_label, fontsize=8.5)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    axes.tick_params(labelsize=7.5, labelcolor=TEXT_COLOUR)
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    if has_legend:
        axes.legend(framealpha=0.85, edgecolor="none", fontsize=7, handlelength=1.4)
        if is_bars and not panel.log_y:
            axes.set_ylim(top=HEADROOM * axes.get_ylim()[1])


def _colours(panel: Panel) -> list[str]:
    own = iter(SERIES_COLOURS * len(panel.series))
    return [PRINTED_COLOUR if series.printed else next(own) for series in panel.series]


def _name_places(axes: Axes, places: Sequence[float | str]) -> None:
    names = [textwrap.fill(x, LONGEST_TICK) if isinstance(x, str) else f"{x:g}" for x in places]
    tilted = len(places) > 6
    axes.set_xticks(range(len(places)), names, rotation=45 if tilted else 0, ha="right" if tilted else "center")
    axes.tick_params(axis="x", length=0)


def _draw_bars(axes: Axes, panel: Panel) -> None:
    places = list(dict.fromkeys(x for series in panel.series for x in series.xs))
    count, is_heap = len(panel.series), panel.kind == "heaps"
    width, below = 0.7 if is_heap else 0.8 / count, dict.fromkeys(places, 0.0)
    for number, (series, colour) in enumerate(zip(panel.series, _colours(panel), strict=True)):
        shift = 0.0 if is_heap else (number - (count - 1) / 2) * width
        at, bottoms = [places.index(x) + shift for x in series.xs], [below[x] for x in series.xs]
        drawn = axes.bar(at, series.ys, width, bottom=bottoms, label=series.name, color=colour)
        if is_heap:
            below |= {x: below[x] + y for x, y in zip(series.xs, series.ys, strict=True)}
        elif len(places) * count <= 12:
            axes.bar_label(drawn, fmt="%.3g", fontsize=6.5, color=MUTED_COLOUR)
    _name_places(axes, places)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    for number, (series, colour) in enumerate(zip(panel.series, _colours(panel), strict=True)):
        xs = [float(x) for x in series.xs]
        has_points = len(xs) <= 20 and panel.kind == "lines"
        axes.plot(
            xs,
            series.ys,
            "--" if series.printed else "-",
            label=series.name,
            color=colour,
            marker=MARKERS[number // len(SERIES_COLOURS) % len(MARKERS)] if has_points else None,
            markersize=3.5,
            drawstyle="steps-mid" if panel.kind == "steps" else "default",
            linewidth=1.4,
        )
        if series.band is not None:
            axes.fill_between(xs, *series.band, color=colour, alpha=BAND_ALPHA, linewidth=0)
        for x, y, note in zip(xs, series.ys, series.notes, strict=False):
            axes.annotate(note, (x, y), (4, 3), textcoords="offset points", fontsize=6.5)
