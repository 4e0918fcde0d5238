"""A summary as text: rows for whoever draws tables, and a plain aligned table for files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from netoffload.config import format_rate
from netoffload.reports.summary import ExchangeSummary, Summary

TIMES: Final = "\N{MULTIPLICATION SIGN}"


def describe_run(summary: Summary) -> str:
    """Say in one line what was run: model, data, workers, link, codec."""
    run = summary.configuration
    parts = [
        f"{run.model.upper()} on {run.data}, {run.parameters / 1e6:.2f} M parameters",
        f"{run.nodes} workers of batch {run.batch}",
        f"{run.iterations} iterations",
    ]
    if run.rate_bps is not None:
        measured = summary.rate_bps_measured
        parts.append(
            f"{format_rate(run.rate_bps)} links" + (f" (measured {format_rate(measured)})" if measured else "")
        )
    else:
        parts.append("links not shaped")
    if run.codec is not None:
        parts.append(f"{run.codec} 2^-{run.bound_k}, {run.packing}, MTU {run.mtu}")
    parts.append(_learning_rates(summary))
    if run.loss_scale != 1:
        parts.append(f"loss scale {run.loss_scale:g}")
    return " · ".join(parts)


def _learning_rates(summary: Summary) -> str:
    rates = list(summary.learning_rates.values())
    usual = max(rates, key=rates.count)
    others = [f"{name} {rate:g}" for name, rate in summary.learning_rates.items() if rate != usual]
    return f"learning rate {usual:g}" + (f" ({', '.join(others)})" if others else "")


WIDEST: Final = 6
"""With more exchanges than this, exchanges become rows and quantities columns."""

Cell = Callable[[Summary, str, ExchangeSummary], str]

QUANTITIES: Final[tuple[tuple[str, str, Cell], ...]] = (
    ("time, ms", "time ms", lambda _, __, bar: f"{1e3 * bar.s_per_iteration:.1f}"),
    ("  computation, ms", "compute", lambda _, __, bar: f"{1e3 * bar.compute_s:.1f}"),
    ("  communication, ms", "communicate", lambda _, __, bar: f"{1e3 * bar.communicate_s:.1f}"),
    ("  codec in busiest NIC, ms", "", lambda _, __, bar: f"{1e3 * bar.codec_s:.1f}" if bar.classes else "-"),
    ("on the wires, MB", "wires MB", lambda _, __, bar: f"{bar.wire_bytes_per_iteration / 1e6:.3g}"),
    ("on the wires, frames", "frames", lambda _, __, bar: f"{bar.wire_frames_per_iteration:.0f}"),
    ("compression ratio in NICs", "", lambda _, __, bar: f"{bar.ratio:.2f}" if bar.classes else "-"),
    ("compression efficiency, %", "efficiency %", lambda _, __, bar: f"{100 * bar.compression_efficiency:.3g}"),
    ("floats of 0/8/16/32 bit, %", "", lambda _, __, bar: "/".join(_percent(bar.classes.values())) or "-"),
    ("accuracy on test set, %", "accuracy %", lambda _, __, bar: f"{100 * bar.accuracy:.1f}"),
    ("faster than inc", "than inc", lambda summary, name, _: _times(summary.speedup("inc", name))),
    ("faster than wa", "than wa", lambda summary, name, _: _times(summary.speedup("wa", name))),
)
"""Name with unit, the same in short (empty: left out of wide tables), and a cell's text."""


def table_header(summary: Summary) -> tuple[str, ...]:
    """Return the names of the columns: one per exchange, or one per quantity if there are many exchanges."""
    if len(summary.exchanges) > WIDEST:
        return ("per iteration", *(short for _, short, _ in QUANTITIES if short))
    return ("per iteration", *summary.exchanges)


def table_rows(summary: Summary) -> list[tuple[str, ...]]:
    """Return one row per quantity, or one per exchange if there are many, under :func:`table_header`."""
    if len(summary.exchanges) > WIDEST:
        return [
            (name, *(cell(summary, name, bar) for _, short, cell in QUANTITIES if short))
            for name, bar in summary.exchanges.items()
        ]
    return [(label, *(cell(summary, *item) for item in summary.exchanges.items())) for label, _, cell in QUANTITIES]


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{100 * share:.0f}" for share in shares]


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}{TIMES}"


def table_text(summary: Summary) -> str:
    """Return the table as plain text: one line that says what was run, a header, a line per quantity."""
    return "\n".join([describe_run(summary), "", *_aligned([table_header(summary), *table_rows(summary)])]) + "\n"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *numbers = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *numbers]).rstrip())
    return lines
