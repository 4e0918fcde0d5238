"""Draws a report of a few bars; ``comparison`` draws many.

Communication is hatched, so that the bars can be read in grey. The codec's time is a bracket beside its bar, because it
overlaps with communication.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.errors import UsageError
from netoffload.lab.reports.axis import VIA_NICS
from netoffload.lab.reports.comparison import Rows, draw_comparison
from netoffload.lab.reports.palette import (
    CLASS_COLOURS,
    CODEC_COLOUR,
    COMMUNICATE_COLOUR,
    COMPUTE_COLOUR,
    MUTED_COLOUR,
    STYLE,
    TEXT_COLOUR,
    WIRE_COLOUR,
)
from netoffload.lab.reports.summary import Bar, Summary
from netoffload.lab.reports.table import TIMES, WIDEST, describe_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DESCRIPTION_CHARACTERS: Final = 130
"""Characters of a line below the headline that fit into the figure."""

LONG_NAMES: Final = {
    "wa": "worker-aggregator",
    f"wa{VIA_NICS}": "via idle NICs",
    "wa+c": "with compression",
    "inc": "ring",
    f"inc{VIA_NICS}": "via idle NICs",
    "inc+c": "with compression",
}


def draw_figure(summary: Summary, path: Path) -> None:
    """Draw a summary into a file; its suffix decides the format (PNG, SVG, PDF)."""
    with written(path) as figure:
        if len(summary.bars) > WIDEST:
            title = f"{len(summary.bars)} {summary.axis.title}"
            draw_comparison(figure, list(summary.bars.items()), title, describe_run(summary))
        else:
            _draw_few(figure, summary)


def draw_rows(rows: Rows, title: str, described: str, path: Path) -> None:
    """Draw any rows into a file; arguments as in :func:`~netoffload.lab.reports.comparison.draw_comparison`."""
    with written(path) as figure:
        draw_comparison(figure, rows, title, described)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Figure]:
    """Yield an empty figure, and write it to a file at the end."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("the figure needs matplotlib: pip install 'netoffload[report]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.2), dpi=160, facecolor="white")
        yield figure
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write the figure to {path}: {error}") from error


def _draw_few(figure: Figure, summary: Summary) -> None:
    grid = figure.add_gridspec(
        2, 2, width_ratios=(1.75, 1), left=0.07, right=0.97, top=0.83, bottom=0.2, wspace=0.27, hspace=0.62
    )
    draw_times(figure.add_subplot(grid[:, 0]), summary)
    draw_wire(figure.add_subplot(grid[0, 1]), summary)
    draw_classes(figure.add_subplot(grid[1, 1]), summary)
    figure.text(0.02, 0.945, _headline(summary), fontsize=15, fontweight="bold")
    described = textwrap.fill(describe_run(summary), DESCRIPTION_CHARACTERS)
    figure.text(0.02, 0.905, described, fontsize=9, color=MUTED_COLOUR, va="center")
    figure.text(0.02, 0.022, _footnote(summary), fontsize=7.5, color=MUTED_COLOUR, linespacing=1.4)


def _headline(summary: Summary) -> str:
    over_ring, over_wa = summary.speedup("inc", "inc+c"), summary.speedup("wa", "inc+c")
    if over_ring is None:
        return "Time per training iteration"
    beside = f", {over_wa:.1f}{TIMES} faster than worker-aggregator" if over_wa is not None else ""
    return f"Compressed ring: {over_ring:.1f}{TIMES} faster than the plain ring{beside}"


def _footnote(summary: Summary) -> str:
    low_high = [bar.s_per_iteration_quartiles for bar in summary.bars.values()]
    spread = max((high - low) / 2 for low, high in low_high)
    return (
        "Bars: medians over iterations of the workers' mean; half of all iterations lie within "
        f"±{1e3 * spread:.1f} ms or less. Communication includes waiting for other workers.\n"
        "NIC codec: compressing and decompressing in the busiest NIC per iteration; it overlaps with communication. "
        "Wire: octets all nodes sent, headers included. Ratio: payload before over after."
    )


def draw_times(axes: Axes, summary: Summary) -> None:
    """Draw the stacked bars: computation below, communication above, the codec's time beside."""
    bars = list(summary.bars.items())
    tallest_ms = max(1e3 * bar.s_per_iteration for _, bar in bars)
    for at, (name, bar) in enumerate(bars):
        compute_ms, communicate_ms = 1e3 * bar.compute_s, 1e3 * bar.communicate_s
        axes.bar(at, compute_ms, 0.56, color=COMPUTE_COLOUR, label="computation" if at == 0 else None)
        axes.bar(
            at,
            communicate_ms,
            0.56,
            bottom=compute_ms,
            color=COMMUNICATE_COLOUR,
            edgecolor="white",
            hatch="////",
            linewidth=0,
            label="communication" if at == 0 else None,
        )
        top = compute_ms + communicate_ms
        axes.text(at, top + 0.045 * tallest_ms, f"{top:.0f} ms", ha="center", fontsize=12, fontweight="bold")
        note = _speedup_note(summary, name)
        axes.text(at, top + 0.015 * tallest_ms, note, ha="center", fontsize=8, color=MUTED_COLOUR)
        _draw_codec(axes, at, bar, compute_ms, first=not any(earlier.classes for _, earlier in bars[:at]))
    axes.set_ylim(0, 1.13 * tallest_ms)
    axes.set_xlim(-0.55, len(bars) - 0.3)
    axes.set_xticks(range(len(bars)), [_tick(name, bar) for name, bar in bars])
    axes.tick_params(axis="x", length=0, pad=6, labelsize=8)
    axes.set_ylabel("ms per iteration")
    axes.set_title("Time per iteration")
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(
        ncols=3,
        frameon=False,
        fontsize=8,
        loc="lower right",
        bbox_to_anchor=(1.01, 0.99),
        columnspacing=1,
        handlelength=1.2,
    )


def _speedup_note(summary: Summary, name: str) -> str:
    baseline = summary.baselines[-1]
    factor = summary.speedup(baseline, name)
    return "" if factor is None or name == baseline else f"{factor:.1f}{TIMES} faster than {baseline}"


def _tick(name: str, bar: Bar) -> str:
    numbers = f"computation {1e3 * bar.compute_s:.1f} ms\naccuracy {100 * bar.accuracy:.1f} %"
    return f"{name}\n{LONG_NAMES.get(name, '')}\n{numbers}"


def _draw_codec(axes: Axes, at: int, bar: Bar, bottom_ms: float, *, first: bool) -> None:
    if not bar.classes:
        return
    codec_ms = 1e3 * bar.codec_s
    axes.bar(
        at + 0.335,
        codec_ms,
        0.05,
        bottom=bottom_ms,
        color=CODEC_COLOUR,
        label="NIC codec (overlaps)" if first else None,
    )
    axes.text(at + 0.375, bottom_ms + codec_ms / 2, f"{codec_ms:.1f}", va="center", fontsize=8, color=MUTED_COLOUR)


def draw_wire(axes: Axes, summary: Summary) -> None:
    """Draw the traffic on the wires per iteration: octets as bars, frames and ratio in words."""
    bars = list(summary.bars.items())
    widest_mb = max(bar.wire_bytes_per_iteration for _, bar in bars) / 1e6
    for at, (_, bar) in enumerate(bars):
        megabytes = bar.wire_bytes_per_iteration / 1e6
        axes.barh(at, megabytes, 0.62, color=WIRE_COLOUR)
        words = f"{megabytes:.1f} MB · {bar.wire_frames_per_iteration:,.0f} frames"
        if bar.classes:
            words += f" · ratio {bar.ratio:.1f}"
        axes.text(megabytes + 0.03 * widest_mb, at, words, va="center", fontsize=8)
    _name_rows(axes, [name for name, _ in bars])
    axes.set_xlim(0, 1.95 * widest_mb)  # the words need room to the right of the longest bar
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.05 * widest_mb])
    axes.spines["bottom"].set_bounds(0, 1.05 * widest_mb)
    axes.set_xlabel("MB per iteration, all nodes", fontsize=8.5, loc="left")
    axes.set_title("On the wire")


def draw_classes(axes: Axes, summary: Summary) -> None:
    """Draw the shares of the classes of compressed floats."""
    compressed = [(name, bar) for name, bar in summary.bars.items() if bar.classes]
    axes.set_title("Bits per float")
    if not compressed:
        axes.text(0.5, 0.5, "nothing was compressed", ha="center", va="center", color=MUTED_COLOUR)
        axes.set_axis_off()
        return
    for at, (_, bar) in enumerate(compressed):
        start = 0.0
        for bits, share in bar.classes.items():
            axes.barh(
                at,
                100 * share,
                0.62,
                left=start,
                color=CLASS_COLOURS[bits],
                edgecolor="white",
                label=f"{bits}" if at == 0 else None,
            )
            if share > 0.08:
                colour, words = "white" if bits == "32" else TEXT_COLOUR, f"{100 * share:.0f} %"
                axes.text(start + 50 * share, at, words, ha="center", va="center", fontsize=8, color=colour)
            start += 100 * share
    _name_rows(axes, [name for name, _ in compressed])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of compressed floats; 2 bits of tag come on top", fontsize=8.5)
    axes.legend(
        ncols=4,
        frameon=False,
        fontsize=8,
        loc="lower right",
        bbox_to_anchor=(1.03, 0.98),
        columnspacing=1,
        handlelength=1,
    )


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=TEXT_COLOUR)
    axes.tick_params(axis="x", labelsize=8)
