"""Many bars in one figure, one row each: time per iteration, octets on the wires, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from netoffload.lab.reports.palette import COMMUNICATE_COLOUR, COMPUTE_COLOUR, MUTED_COLOUR, TEXT_COLOUR, WIRE_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME: Final = 24
"""Most characters of a bar's name that fit beside its row."""


class Compared(Protocol):
    """The figures of a row: seconds and octets per iteration, and the accuracy, 0..1."""

    @property
    def s_per_iteration(self) -> float:
        """Seconds of an iteration."""

    @property
    def compute_s(self) -> float:
        """Seconds of computation in an iteration."""

    @property
    def communicate_s(self) -> float:
        """The other seconds of an iteration."""

    @property
    def wire_bytes_per_iteration(self) -> float:
        """Octets of an iteration on all wires, headers included."""

    @property
    def accuracy(self) -> float:
        """Accuracy after the last iteration."""


Rows = Sequence[tuple[str, Compared]]


def draw_comparison(figure: Figure, rows: Rows, title: str, described: str) -> None:
    """Draw more bars than fit side by side, as rows, the fastest first; the figure grows with their number."""
    rows = sorted(rows, key=lambda item: item[1].s_per_iteration)
    height = 2.0 + 0.3 * len(rows)
    figure.set_size_inches(12, height)
    grid = figure.add_gridspec(
        1, 3, width_ratios=(1.5, 1, 0.8), left=0.17, right=0.97, top=1 - 1.15 / height, bottom=0.6 / height, wspace=0.12
    )
    times, wires, accuracies = (figure.add_subplot(grid[0, column]) for column in range(3))
    draw_times(times, rows)
    draw_wires(wires, rows)
    draw_accuracies(accuracies, rows)
    for axes in (times, wires, accuracies):
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [_short(name) for name, _ in rows] if axes is times else [])
        axes.tick_params(axis="y", length=0, labelsize=8.5, labelcolor=TEXT_COLOUR)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_axisbelow(True)
    figure.text(0.02, 1 - 0.4 / height, title, fontsize=15, fontweight="bold")
    figure.text(0.02, 1 - 0.65 / height, described, fontsize=9, color=MUTED_COLOUR)


def draw_times(axes: Axes, rows: Rows) -> None:
    """Draw time per iteration: computation, then communication, which includes compressing on the host."""
    slowest_ms = 1e3 * rows[-1][1].s_per_iteration
    for at, (_, bar) in enumerate(rows):
        compute_ms, communicate_ms = 1e3 * bar.compute_s, 1e3 * bar.communicate_s
        axes.barh(at, compute_ms, 0.66, color=COMPUTE_COLOUR, label="computation" if at == 0 else None)
        axes.barh(
            at,
            communicate_ms,
            0.66,
            left=compute_ms,
            color=COMMUNICATE_COLOUR,
            hatch="////",
            edgecolor="white",
            linewidth=0,
            label="communication, compressing" if at == 0 else None,
        )
        words = f"{1e3 * bar.s_per_iteration:.0f}"
        axes.text(1e3 * bar.s_per_iteration + 0.012 * slowest_ms, at, words, va="center", fontsize=8)
    axes.set_xlim(0, 1.1 * slowest_ms)
    axes.set_xlabel("ms per iteration", fontsize=8.5)
    axes.set_title("Time")
    axes.legend(ncols=2, frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.01, 0.99))


def draw_wires(axes: Axes, rows: Rows) -> None:
    """Draw the octets on all wires per iteration, on a logarithmic scale: a dot and its number."""
    megabytes = [bar.wire_bytes_per_iteration / 1e6 for _, bar in rows]
    axes.plot(megabytes, range(len(rows)), "o", color=WIRE_COLOUR, markeredgecolor=COMPUTE_COLOUR)
    for at, value in enumerate(megabytes):
        axes.annotate(f"{value:.3g}", (value, at), (7, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(megabytes) / 1.6, max(megabytes) * 2.4)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_xlabel("MB per iteration, all wires, headers included", fontsize=8.5)
    axes.set_title("On the wires")


def draw_accuracies(axes: Axes, rows: Rows) -> None:
    """Draw the accuracy on the test set: a dot and its number."""
    accuracies = [100 * bar.accuracy for _, bar in rows]
    axes.plot(accuracies, range(len(rows)), "o", color=WIRE_COLOUR, markeredgecolor=COMPUTE_COLOUR)
    for at, value in enumerate(accuracies):
        axes.annotate(
            f"{value:.1f}", (value, at), (-7, 0), textcoords="offset points", va="center", ha="right", fontsize=8
        )
    spread = max(max(accuracies) - min(accuracies), 1.0)
    axes.set_xlim(min(accuracies) - 0.45 * spread, max(accuracies) + 0.1 * spread)
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_xlabel("% of the test set", fontsize=8.5)
    axes.set_title("Accuracy")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
