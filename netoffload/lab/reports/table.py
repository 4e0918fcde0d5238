"""A summary as a table and as text."""

from collections.abc import Callable
from typing import Final

from netoffload.config import format_rate
from netoffload.lab.declared import NOTHING, Table, numbers, words
from netoffload.lab.reports.summary import Bar, Summary

TIMES: Final = "\N{MULTIPLICATION SIGN}"


def describe_run(summary: Summary) -> str:
    """Return one line about the runs: model, data, workers, link, codec."""
    run = summary.configuration
    fixed = {"nodes": f"{run.nodes} workers", "exchange": run.exchange, "bound_k": f" 2^-{run.bound_k}"}
    fixed |= dict.fromkeys(summary.axis.varies, "")
    parts = [
        f"{run.model.upper()} on {run.data}, {run.parameters / 1e6:.2f} M parameters",
        fixed["exchange"],
        f"{fixed['nodes']} of batch {run.batch}" if fixed["nodes"] else f"batch {run.batch}",
        f"{run.iterations} iterations",
    ]
    links = "links not shaped" if run.rate_bps is None else f"{format_rate(run.rate_bps)} links"
    if run.rate_bps is not None and summary.rate_bps_measured is not None:
        links += f" (measured {format_rate(summary.rate_bps_measured)})"
    parts.append(links)
    if run.codec is not None:
        packing = f", {run.packing}" if run.has_nics else ""
        parts.append(f"{run.codec}{fixed['bound_k']}{packing}, MTU {run.mtu}")
    parts.append(_learning_rates(summary))
    runs = {bar.runs for bar in summary.bars.values()}
    if max(runs) > 1:
        parts.append(f"{' or '.join(map(str, sorted(runs)))} runs each: {PLUS_MINUS} their standard deviation")
    if not run.optimizer.startswith("sgd:"):
        parts.append(run.optimizer.partition(":")[0])
    if not run.schedule.startswith("step:warmup=0,"):
        parts.append(run.schedule.replace(",", ", "))
    if run.clip_norm is not None:
        parts.append(f"clipped to norm {run.clip_norm:g}")
    if run.loss_scale != 1:
        parts.append(f"loss scale {run.loss_scale:g}")
    parts += [f"differing {name}: {', '.join(values)}" for name, values in summary.differences.items()]
    return " · ".join(part for part in parts if part)


def _learning_rates(summary: Summary) -> str:
    rates = list(summary.learning_rates.values())
    usual = max(rates, key=rates.count)
    others = [f"{name} {rate:g}" for name, rate in summary.learning_rates.items() if rate != usual]
    return f"learning rate {usual:g}" + (f" ({', '.join(others)})" if others else "")


WIDEST: Final = 6  # with more bars than this, bars become rows and quantities columns

PLUS_MINUS: Final = "\N{PLUS-MINUS SIGN}"

Cell = Callable[[Bar], str]

QUANTITIES: Final[tuple[tuple[str, str, Cell], ...]] = (
    ("time, ms", "time ms", lambda bar: _over_runs(bar, "s_per_iteration", 1e3, ".1f", bar.s_per_iteration)),
    ("  computation, ms", "compute", lambda bar: f"{1e3 * bar.compute_s:.1f}"),
    ("    forward, ms", "", lambda bar: _known(bar.forward_s, 1e3)),
    ("    backward, ms", "", lambda bar: _known(bar.backward_s, 1e3)),
    ("    update, ms", "", lambda bar: _known(bar.update_s, 1e3)),
    ("  communication, ms", "communicate", lambda bar: f"{1e3 * bar.communicate_s:.1f}"),
    ("    adding gradients, ms", "", lambda bar: _known(bar.sum_s, 1e3)),
    ("  hidden behind backward, ms", "", lambda bar: _known(bar.hidden_s, 1e3)),
    ("  codec in busiest NIC, ms", "", lambda bar: f"{1e3 * bar.codec_s:.1f}" if bar.classes else "-"),
    ("on the wires, MB", "wires MB", lambda bar: f"{bar.wire_bytes_per_iteration / 1e6:.3g}"),
    ("on the wires, frames", "frames", lambda bar: f"{bar.wire_frames_per_iteration:.0f}"),
    ("codec's compression ratio", "", lambda bar: f"{bar.ratio:.2f}" if bar.classes else "-"),
    ("compression efficiency, %", "efficiency %", lambda bar: f"{100 * bar.compression_efficiency:.3g}"),
    (
        "floats of 0/8/16/32 bit, %",
        "",
        lambda bar: "/".join(f"{100 * share:.0f}" for share in bar.classes.values()) or "-",
    ),
    ("memory of largest rank, MB", "", lambda bar: _known(bar.peak_memory_bytes, 1e-6, 0)),
    ("accuracy on test set, %", "accuracy %", lambda bar: _over_runs(bar, "accuracy", 100, ".1f")),
    ("loss of last batch", "loss", lambda bar: _over_runs(bar, "final_loss", 1, ".3g")),
)
"""Name with unit, short name (empty: not in wide tables), and a function that returns a cell's text."""


def table_of(summary: Summary) -> Table:
    """Return a row per quantity and a column per bar; the other way round if there are many bars."""
    if len(summary.bars) <= WIDEST:
        rows = [[label, *(cell(bar) for bar in summary.bars.values())] for label, _, cell in QUANTITIES]
        for baseline in summary.baselines:
            rows.append([f"faster than {baseline}", *(_times(summary, baseline, name) for name in summary.bars)])
        return Table(None, [words("per iteration"), *numbers(*summary.bars)], rows)
    quantities = [(short, cell) for _, short, cell in QUANTITIES if short]
    headings = [*(short for short, _ in quantities), *(f"than {baseline}" for baseline in summary.baselines)]
    rows = [
        [name, *(cell(bar) for _, cell in quantities), *(_times(summary, one, name) for one in summary.baselines)]
        for name, bar in summary.bars.items()
    ]
    return Table(None, [words("per iteration"), *numbers(*headings)], rows)


def table_text(summary: Summary) -> str:
    """Return plain text: a line about the runs, and the table."""
    return f"{describe_run(summary)}\n\n{table_of(summary).text()}\n"


def _over_runs(bar: Bar, name: str, factor: float, digits: str, value: float | None = None) -> str:
    """Return ``value``, or the mean of a bar's runs, and their deviation if there are several."""
    found = bar.over_runs[name]
    if found is None:
        return NOTHING
    text = f"{factor * (found.mean if value is None else value):{digits}}"
    return text if bar.runs == 1 else f"{text} {PLUS_MINUS} {factor * found.deviation:.2g}"


def _known(value: float | None, factor: float, digits: int = 1) -> str:
    return NOTHING if value is None else f"{factor * value:.{digits}f}"


def _times(summary: Summary, slow: str, fast: str) -> str:
    factor = summary.speedup(slow, fast)
    return NOTHING if factor is None else f"{factor:.2f}{TIMES}"
