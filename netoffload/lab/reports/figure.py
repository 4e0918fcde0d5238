"""Draws a report, and other experiments that time iterations: a row for each bar, with time, traffic and accuracy.

Few rows have more words, and the classes of floats. Colours are Okabe and Ito's (distinct under every common colour
blindness); in grey they differ by lightness, and communication is hatched. The codec's time is a line below its bar,
because it overlaps with communication.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from netoffload.errors import UsageError
from netoffload.lab.reports.summary import VIA_NICS, Summary
from netoffload.lab.reports.table import TIMES, WIDEST, describe_run
from netoffload.lab.results import check_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTE_COLOUR: Final = "#0072B2"
COMMUNICATE_COLOUR: Final = "#E9B872"
CODEC_COLOUR: Final = "#222222"
WIRE_COLOUR: Final = "#56B4E9"
CLASS_COLOURS: Final = {"0": "#E8E8E8", "8": "#A6CEE3", "16": "#5E9FC9", "32": "#0B4F7D"}
SERIES_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#222222", "#B8A900")
PRINTED_COLOUR: Final = "#A8A8A8"  # colour of a paper's printed values
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

DESCRIPTION_CHARACTERS: Final = 150  # characters of a line below the headline that fit into the figure

LONG_NAMES: Final = {
    "wa": "worker-aggregator",
    f"wa{VIA_NICS}": "via idle NICs",
    "wa+c": "with compression",
    "inc": "ring",
    f"inc{VIA_NICS}": "via idle NICs",
    "inc+c": "with compression",
}

LONGEST_NAME: Final = 24  # most characters of a bar's name that fit beside its row

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
    bars = list(summary.bars.items())
    if len(bars) > WIDEST:
        bars.sort(key=lambda item: item[1].s_per_iteration)
        draw_rows(bars, f"{len(bars)} {summary.axis.title}", describe_run(summary), path)
    else:
        draw_rows(bars, _headline(summary), describe_run(summary), path, summary)


def draw_rows(rows: Rows, title: str, described: str, path: Path, few: Summary | None = None) -> None:
    """Draw a row for each bar; the figure grows with their number. ``few``: their summary, which has more to say."""
    with written(path) as figure:
        lay_out(figure, rows, title, described, few)


def lay_out(figure: Figure, rows: Rows, title: str, described: str, few: Summary | None = None) -> None:
    """Fill an empty figure as :func:`draw_rows` does."""
    has_classes = few is not None and any(bar.classes for bar in few.bars.values())
    height = 1.75 + (0.25 + 0.75 * len(rows) if few else 0.3 * len(rows))
    figure.set_size_inches(15 if has_classes else 12, height)
    room = {"left": 0.14 if has_classes else 0.17, "right": 0.94 if has_classes else 0.97, "wspace": 0.12}
    room |= {"top": 1 - 1.15 / height, "bottom": (0.85 if few else 0.6) / height}
    ratios = (1.5, 1, 0.8, 1.2)[: 4 if has_classes else 3]
    grid = figure.add_gridspec(1, len(ratios), width_ratios=ratios, **room)
    panels = [figure.add_subplot(grid[0, column]) for column in range(len(ratios))]
    _draw_times(panels[0], rows, few)
    _draw_wires(panels[1], rows, few)
    _draw_accuracies(panels[2], rows)
    if few is not None and has_classes:
        _draw_classes(panels[3], few)
    for axes in panels:
        axes.set_yticks(range(len(rows)), [_long(name, few) if axes is panels[0] else "" for name, _ in rows])
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=TEXT_COLOUR)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_axisbelow(True)
    figure.text(0.02, 1 - 0.4 / height, title, fontsize=15, fontweight="bold")
    said = textwrap.fill(described, DESCRIPTION_CHARACTERS)
    figure.text(0.02, 1 - 0.5 / height, said, fontsize=9, color=MUTED_COLOUR, va="top")
    if few is not None:
        figure.text(0.02, 0.12 / height, _footnote(few), fontsize=7.5, color=MUTED_COLOUR, linespacing=1.4)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Figure]:
    """Yield an empty figure, and write it to a file at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    check_figure(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.2), dpi=160, facecolor="white")
        yield figure
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot write the figure to {path}: {reason}") from error


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
        "NIC codec, the line below a bar: compressing and decompressing in the busiest NIC per iteration; it overlaps "
        "with communication. Wires: octets all nodes sent. Ratio: payload before over after."
    )


def _draw_times(axes: Axes, rows: Rows, few: Summary | None) -> None:
    places, compute_ms = range(len(rows)), [1e3 * bar.compute_s for _, bar in rows]
    hatched: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0, "left": compute_ms}
    axes.barh(places, compute_ms, 0.66, color=COMPUTE_COLOUR, label="computation")
    rest_ms, label = [1e3 * bar.communicate_s for _, bar in rows], "communication, compressing"
    drawn = axes.barh(places, rest_ms, 0.66, color=COMMUNICATE_COLOUR, label=label, **hatched)
    words = [f"{1e3 * bar.s_per_iteration:.0f}" + (_more(few, name) if few else "") for name, bar in rows]
    axes.bar_label(drawn, words, padding=3, fontsize=8)
    if few is not None:
        codec_ms = [1e3 * bar.codec_s if bar.classes else 0.0 for bar in few.bars.values()]
        axes.barh([at + 0.38 for at in places], codec_ms, 0.07, left=compute_ms, color=CODEC_COLOUR)
    axes.set_xlim(0, (1.35 if few else 1.1) * max(1e3 * bar.s_per_iteration for _, bar in rows))
    axes.set_xlabel("ms per iteration", fontsize=8.5)
    axes.set_title("Time")
    axes.legend(ncols=2, **LEGEND)


def _more(summary: Summary, name: str) -> str:
    """Return lines about a bar: its computation, its codec, and its speed-up."""
    bar, baseline = summary.bars[name], summary.baselines[-1]
    lines = ["", f"computation {1e3 * bar.compute_s:.1f}"]
    lines += [f"codec {1e3 * bar.codec_s:.1f}"] if bar.classes else []
    if name != baseline and (factor := summary.speedup(baseline, name)) is not None:
        lines.append(f"{factor:.1f}{TIMES} faster than {baseline}")
    return "\n".join(lines)


def _draw_wires(axes: Axes, rows: Rows, few: Summary | None) -> None:
    megabytes = [bar.wire_bytes_per_iteration / 1e6 for _, bar in rows]
    words = [f"{value:.3g}" for value in megabytes]
    if few is not None:
        frames = (bar.wire_frames_per_iteration for bar in few.bars.values())
        words = [f"{text}\n{count:,.0f} frames" for text, count in zip(words, frames, strict=True)]
    _draw_dots(axes, megabytes, words, 7, "left")
    least, most = min(megabytes) / 1.6, max(megabytes)
    axes.set_xscale("log")
    axes.set_xlim(least, 2.4 * most * ((most / least) ** 0.4 if few else 1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("MB per iteration, with all headers", fontsize=8.5)
    axes.set_title("On the wires")


def _draw_accuracies(axes: Axes, rows: Rows) -> None:
    accuracies = [100 * bar.accuracy for _, bar in rows]
    _draw_dots(axes, accuracies, [f"{value:.1f}" for value in accuracies], -7, "right")
    spread = max(max(accuracies) - min(accuracies), 1.0)
    axes.set_xlim(min(accuracies) - 0.45 * spread, max(accuracies) + 0.1 * spread)
    axes.set_xlabel("% of the test set", fontsize=8.5)
    axes.set_title("Accuracy")


def _draw_dots(axes: Axes, values: list[float], words: list[str], shift: int, side: str) -> None:
    axes.plot(values, range(len(values)), "o", color=WIRE_COLOUR, markeredgecolor=COMPUTE_COLOUR)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": side, "fontsize": 8}
    for at, (value, text) in enumerate(zip(values, words, strict=True)):
        axes.annotate(text, (value, at), (shift, 0), **beside)
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)


def _draw_classes(axes: Axes, summary: Summary) -> None:
    bars = list(summary.bars.values())
    ends, drawn = [0.0] * len(bars), None
    for bits, colour in CLASS_COLOURS.items():
        shares = [100 * bar.classes.get(bits, 0.0) for bar in bars]
        drawn = axes.barh(range(len(bars)), shares, 0.62, left=ends, color=colour, edgecolor="white", label=bits)
        words = [f"{share:.0f} %" if share > 8 else "" for share in shares]
        on_it = "white" if bits == "32" else TEXT_COLOUR
        axes.bar_label(drawn, words, label_type="center", fontsize=8, color=on_it)
        ends = [end + share for end, share in zip(ends, shares, strict=True)]
    assert drawn is not None
    axes.bar_label(drawn, [f"ratio {bar.ratio:.1f}" if bar.classes else "" for bar in bars], padding=3, fontsize=8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of compressed floats, tags not counted", fontsize=8.5)
    axes.set_title("Bits per float")
    axes.legend(ncols=4, **LEGEND)


def _long(name: str, few: Summary | None) -> str:
    """Return a bar's name, cut where it is too long for its row, and what it stands for if there is room."""
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    return f"{short}\n{LONG_NAMES[name]}" if few and name in LONG_NAMES else short
