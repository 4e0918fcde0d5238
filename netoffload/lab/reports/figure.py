"""Draws a report: a few bars beside each other, with traffic and classes; many as rows, also of other experiments.

Colours are Okabe and Ito's (distinct under every common colour blindness); in grey they differ by lightness, and
communication is hatched. The codec's time is a bracket beside its bar, because it overlaps with communication.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from netoffload.errors import UsageError
from netoffload.lab.reports.summary import VIA_NICS, Bar, Summary
from netoffload.lab.reports.table import TIMES, WIDEST, describe_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTE_COLOUR: Final = "#0072B2"
COMMUNICATE_COLOUR: Final = "#E9B872"
CODEC_COLOUR: Final = "#222222"
WIRE_COLOUR: Final = "#56B4E9"
CLASS_COLOURS: Final = {"0": "#E8E8E8", "8": "#A6CEE3", "16": "#5E9FC9", "32": "#0B4F7D"}
SERIES_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222", "#B8A900")
PRINTED_COLOUR: Final = "#A8A8A8"
"""Colour of a paper's printed values."""
TEXT_COLOUR: Final = "#222222"
MUTED_COLOUR: Final = "#666666"

STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "xtick.color": TEXT_COLOUR,
    "ytick.color": MUTED_COLOUR,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "netoffload",  # the same figure gives the same file
}

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

LONGEST_NAME: Final = 24
"""Most characters of a bar's name that fit beside its row."""

LEGEND: Final[dict[str, Any]] = {
    "frameon": False,
    "fontsize": 8,
    "loc": "lower right",
    "bbox_to_anchor": (1.01, 0.99),
    "columnspacing": 1,
    "handlelength": 1.2,
}


class _Compared(Protocol):
    """The figures of a row: seconds and octets per iteration, headers included, and the accuracy, 0..1."""

    @property
    def s_per_iteration(self) -> float: ...
    @property
    def compute_s(self) -> float: ...
    @property
    def communicate_s(self) -> float: ...
    @property
    def wire_bytes_per_iteration(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


Rows = Sequence[tuple[str, _Compared]]


def draw_figure(summary: Summary, path: Path) -> None:
    """Draw a summary into a file; its suffix decides the format (PNG, SVG, PDF)."""
    if len(summary.bars) > WIDEST:
        draw_rows(list(summary.bars.items()), f"{len(summary.bars)} {summary.axis.title}", describe_run(summary), path)
        return
    with written(path) as figure:
        _draw_few(figure, summary)


def draw_rows(rows: Rows, title: str, described: str, path: Path) -> None:
    """Draw more bars than fit side by side, as rows, the fastest first; the figure grows with their number."""
    rows = sorted(rows, key=lambda item: item[1].s_per_iteration)
    height = 2.0 + 0.3 * len(rows)
    with written(path) as figure:
        figure.set_size_inches(12, height)
        room = {"left": 0.17, "right": 0.97, "top": 1 - 1.15 / height, "bottom": 0.6 / height, "wspace": 0.12}
        grid = figure.add_gridspec(1, 3, width_ratios=(1.5, 1, 0.8), **room)
        times, wires, accuracies = (figure.add_subplot(grid[0, column]) for column in range(3))
        _draw_row_times(times, rows)
        _draw_row_wires(wires, rows)
        _draw_row_accuracies(accuracies, rows)
        for axes in (times, wires, accuracies):
            _name_rows(axes, [_short(name) if axes is times else "" for name, _ in rows])
            axes.set_axisbelow(True)
        figure.text(0.02, 1 - 0.4 / height, title, fontsize=15, fontweight="bold")
        figure.text(0.02, 1 - 0.65 / height, described, fontsize=9, color=MUTED_COLOUR)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Figure]:
    """Yield an empty figure, and write it to a file at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.2), dpi=160, facecolor="white")
        yield figure
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write the figure to {path}: {error}") from error


def _draw_few(figure: Figure, summary: Summary) -> None:
    room = {"left": 0.07, "right": 0.97, "top": 0.83, "bottom": 0.2, "wspace": 0.27, "hspace": 0.62}
    grid = figure.add_gridspec(2, 2, width_ratios=(1.75, 1), **room)
    _draw_times(figure.add_subplot(grid[:, 0]), summary)
    _draw_wire(figure.add_subplot(grid[0, 1]), summary)
    _draw_classes(figure.add_subplot(grid[1, 1]), summary)
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


def _draw_times(axes: Axes, summary: Summary) -> None:
    bars = list(summary.bars.items())
    tallest_ms = max(1e3 * bar.s_per_iteration for _, bar in bars)
    for at, (name, bar) in enumerate(bars):
        _draw_parts(axes.bar, at, bar, 0.56, "bottom", "communication")
        top = 1e3 * bar.s_per_iteration
        axes.text(at, top + 0.045 * tallest_ms, f"{top:.0f} ms", ha="center", fontsize=12, fontweight="bold")
        note = _speedup_note(summary, name)
        axes.text(at, top + 0.015 * tallest_ms, note, ha="center", fontsize=8, color=MUTED_COLOUR)
        _draw_codec(axes, at, bar, is_first=not any(earlier.classes for _, earlier in bars[:at]))
    axes.set_ylim(0, 1.13 * tallest_ms)
    axes.set_xlim(-0.55, len(bars) - 0.3)
    axes.set_xticks(range(len(bars)), [_tick(name, bar) for name, bar in bars])
    axes.tick_params(axis="x", length=0, pad=6, labelsize=8)
    axes.set_ylabel("ms per iteration")
    axes.set_title("Time per iteration")
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(ncols=3, **LEGEND)


def _speedup_note(summary: Summary, name: str) -> str:
    baseline = summary.baselines[-1]
    factor = summary.speedup(baseline, name)
    return "" if factor is None or name == baseline else f"{factor:.1f}{TIMES} faster than {baseline}"


def _tick(name: str, bar: Bar) -> str:
    numbers = f"computation {1e3 * bar.compute_s:.1f} ms\naccuracy {100 * bar.accuracy:.1f} %"
    return f"{name}\n{LONG_NAMES.get(name, '')}\n{numbers}"


def _draw_codec(axes: Axes, at: int, bar: Bar, *, is_first: bool) -> None:
    if not bar.classes:
        return
    codec_ms, bottom_ms = 1e3 * bar.codec_s, 1e3 * bar.compute_s
    label = "NIC codec (overlaps)" if is_first else None
    axes.bar(at + 0.335, codec_ms, 0.05, bottom=bottom_ms, color=CODEC_COLOUR, label=label)
    axes.text(at + 0.375, bottom_ms + codec_ms / 2, f"{codec_ms:.1f}", va="center", fontsize=8, color=MUTED_COLOUR)


def _draw_wire(axes: Axes, summary: Summary) -> None:
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


def _draw_classes(axes: Axes, summary: Summary) -> None:
    compressed = [(name, bar) for name, bar in summary.bars.items() if bar.classes]
    axes.set_title("Bits per float")
    if not compressed:
        axes.text(0.5, 0.5, "nothing was compressed", ha="center", va="center", color=MUTED_COLOUR)
        axes.set_axis_off()
        return
    for at, (_, bar) in enumerate(compressed):
        start = 0.0
        for bits, share in bar.classes.items():
            how: dict[str, Any] = {
                "color": CLASS_COLOURS[bits],
                "edgecolor": "white",
                "label": bits if at == 0 else None,
            }
            axes.barh(at, 100 * share, 0.62, left=start, **how)
            if share > 0.08:
                colour, words = "white" if bits == "32" else TEXT_COLOUR, f"{100 * share:.0f} %"
                axes.text(start + 50 * share, at, words, ha="center", va="center", fontsize=8, color=colour)
            start += 100 * share
    _name_rows(axes, [name for name, _ in compressed])
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of compressed floats; 2 bits of tag come on top", fontsize=8.5)
    axes.legend(ncols=4, **LEGEND)


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=TEXT_COLOUR)
    axes.tick_params(axis="x", labelsize=8)


def _draw_parts(draw: Callable[..., Any], at: int, bar: _Compared, width: float, start: str, second: str) -> None:
    """Draw computation, then communication; ``start`` is the argument of ``draw`` at which a bar begins."""
    compute_ms, communicate_ms = 1e3 * bar.compute_s, 1e3 * bar.communicate_s
    first, second = ("computation", second) if at == 0 else ("", "")  # one entry of the legend each
    hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0, start: compute_ms}
    draw(at, compute_ms, width, color=COMPUTE_COLOUR, label=first)
    draw(at, communicate_ms, width, color=COMMUNICATE_COLOUR, label=second, **hatched)


def _draw_row_times(axes: Axes, rows: Rows) -> None:
    slowest_ms = 1e3 * rows[-1][1].s_per_iteration
    for at, (_, bar) in enumerate(rows):
        _draw_parts(axes.barh, at, bar, 0.66, "left", "communication, compressing")
        words = f"{1e3 * bar.s_per_iteration:.0f}"
        axes.text(1e3 * bar.s_per_iteration + 0.012 * slowest_ms, at, words, va="center", fontsize=8)
    axes.set_xlim(0, 1.1 * slowest_ms)
    axes.set_xlabel("ms per iteration", fontsize=8.5)
    axes.set_title("Time")
    axes.legend(ncols=2, **LEGEND)


def _draw_row_wires(axes: Axes, rows: Rows) -> None:
    megabytes = [bar.wire_bytes_per_iteration / 1e6 for _, bar in rows]
    _draw_dots(axes, megabytes, ".3g", 7, "left")
    axes.set_xscale("log")
    axes.set_xlim(min(megabytes) / 1.6, max(megabytes) * 2.4)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("MB per iteration, all wires, headers included", fontsize=8.5)
    axes.set_title("On the wires")


def _draw_row_accuracies(axes: Axes, rows: Rows) -> None:
    accuracies = [100 * bar.accuracy for _, bar in rows]
    _draw_dots(axes, accuracies, ".1f", -7, "right")
    spread = max(max(accuracies) - min(accuracies), 1.0)
    axes.set_xlim(min(accuracies) - 0.45 * spread, max(accuracies) + 0.1 * spread)
    axes.set_xlabel("% of the test set", fontsize=8.5)
    axes.set_title("Accuracy")


def _draw_dots(axes: Axes, values: list[float], form: str, shift: int, side: str) -> None:
    axes.plot(values, range(len(values)), "o", color=WIRE_COLOUR, markeredgecolor=COMPUTE_COLOUR)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": side, "fontsize": 8}
    for at, value in enumerate(values):
        axes.annotate(f"{value:{form}}", (value, at), (shift, 0), **beside)
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
