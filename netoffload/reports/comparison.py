"""Many exchanges in one figure: time per iteration as bars, and accuracy against what crossed the wires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netoffload.reports.palette import COMMUNICATE_COLOUR, COMPUTE_COLOUR, MUTED_COLOUR, TEXT_COLOUR, WIRE_COLOUR
from netoffload.reports.summary import Summary
from netoffload.reports.table import describe_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_comparison(figure: Figure, summary: Summary) -> None:
    """Draw a summary of more exchanges than bars fit side by side; the figure grows with their number."""
    height = 2.2 + 0.3 * len(summary.exchanges)
    figure.set_size_inches(12, max(6.2, height))
    grid = figure.add_gridspec(1, 2, width_ratios=(1.1, 1), left=0.17, right=0.97, top=0.86, bottom=0.1, wspace=0.22)
    draw_times(figure.add_subplot(grid[0, 0]), summary)
    draw_accuracy(figure.add_subplot(grid[0, 1]), summary)
    figure.text(0.02, 0.955, f"{len(summary.exchanges)} ways to exchange gradients", fontsize=15, fontweight="bold")
    figure.text(0.02, 0.915, describe_run(summary), fontsize=9, color=MUTED_COLOUR)


def draw_times(axes: Axes, summary: Summary) -> None:
    """Draw time per iteration, computation and communication, the fastest exchange at the top."""
    bars = sorted(summary.exchanges.items(), key=lambda item: item[1].s_per_iteration)
    slowest_ms = 1e3 * bars[-1][1].s_per_iteration
    for at, (_, bar) in enumerate(bars):
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
            label="communication and compressing" if at == 0 else None,
        )
        words = f"{1e3 * bar.s_per_iteration:.0f} ms"
        axes.text(1e3 * bar.s_per_iteration + 0.015 * slowest_ms, at, words, va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.16 * slowest_ms)
    axes.tick_params(axis="y", length=0, labelsize=8.5, labelcolor=TEXT_COLOUR)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("ms per iteration", fontsize=8.5)
    axes.set_title("Time per iteration")
    axes.legend(frameon=False, loc="lower right", fontsize=8.5)


def draw_accuracy(axes: Axes, summary: Summary) -> None:
    """Draw the accuracy of every exchange against the octets it put on the wires (logarithmic)."""
    for name, bar in summary.exchanges.items():
        at = bar.wire_bytes_per_iteration / 1e6, 100 * bar.accuracy
        axes.plot(*at, "o", color=WIRE_COLOUR, markersize=7, markeredgecolor=COMPUTE_COLOUR)
        axes.annotate(name, at, xytext=(6, 3), textcoords="offset points", fontsize=7.5)
    axes.set_xscale("log")
    axes.margins(x=0.16, y=0.08)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("MB on all wires per iteration, headers included", fontsize=8.5)
    axes.set_ylabel("accuracy on the test set, %", fontsize=8.5)
    axes.set_title("Accuracy and octets")
    axes.grid(color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
