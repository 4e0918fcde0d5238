"""``netoffload stats``: the counters of this machine's NICs, in the manner of ``ethtool -S``."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from netoffload import config, control
from netoffload.cli.app import app
from netoffload.cli.known import lab_offer
from netoffload.control import NicControl
from netoffload.errors import ControlError, UsageError

if TYPE_CHECKING:
    from netoffload.engine.summary import Rates

_Read = TypeVar("_Read")

Nic = Annotated[
    str | None,
    typer.Argument(
        metavar="[NIC]", help="Node (n0, or RUN/n0), or path of a control socket. Default: all NICs of all testbeds."
    ),
]

HEADING_EVERY = 20
"""Lines of ``--watch`` between two headings: a screen's worth."""


@app.command()
def stats(
    nic: Nic = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="Print rates, once per interval, until Ctrl-C."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="With --watch: stop after COUNT intervals.", show_default="no end")
    ] = None,
    all_counters: Annotated[bool, typer.Option("--all", help="Show counters that are 0 as well.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what every counter counts; needs no NIC.")] = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Print Prometheus metrics of one NIC.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Print a dashboard for Grafana; needs no NIC.")
    ] = False,
    alerts: Annotated[bool, typer.Option("--alerts", help="Print alert rules for Prometheus; needs no NIC.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; with --watch one object per NIC and interval, on a line.")
    ] = False,
) -> None:
    """Show what NICs have done: octets, ratio, classes, drops and bypasses by reason, flows.

    Example: netoffload stats n0

    Example: netoffload stats --watch 1

    Example: netoffload stats --explain
    """
    if explain:
        _explain(as_json)
        return
    if alerts and as_json:
        raise UsageError("--alerts are YAML, as Prometheus reads them: leave out --json")
    if dashboard and alerts:
        raise UsageError("--dashboard and --alerts are two files: ask for one at a time")
    if dashboard or alerts:
        _print_file("grafana.json" if dashboard else "alerts.yml")
        return
    if prometheus and (as_json or watch is not None):
        raise UsageError("--prometheus has its own format: leave out --json and --watch")
    if count is not None and watch is None:
        raise UsageError("--count goes with --watch SECONDS")
    nics = nic_controls(nic)
    if prometheus:
        if len(nics) > 1:
            raise UsageError(f"--prometheus shows one NIC, say which: {', '.join(one.name for one in nics)}")
        print(control.request(nics[0].path, "metrics")["metrics"], end="")
        return
    if watch is not None:
        _watch(nics, watch, count, as_json)
        return
    silent: set[str] = set()
    shown = list(_read_all(nics, read_nic, silent).values())
    if as_json:
        print(json.dumps({"nics": shown}, indent=2))
    else:
        for state in shown:
            _print_nic(state, all_counters)
    if silent:
        raise typer.Exit(ControlError.exit_code)  # the remarks name the silent NICs


def _print_file(name: str) -> None:
    file = resources.files("netoffload_daemon").joinpath(f"monitoring/{name}")
    print(file.read_text(encoding="utf-8"), end="")


def _explain(as_json: bool) -> None:
    from netoffload.engine.counters import MEANINGS

    if as_json:
        print(json.dumps(MEANINGS, indent=2))
        return
    for name, text in MEANINGS.items():
        print(f"{name:22} {text}")


def nic_controls(wanted: str | None = None) -> list[NicControl]:
    """Return the NIC with this name or control socket, or all that have a name: those of testbeds."""
    if of_testbeds := lab_offer("nic_controls"):
        return list(of_testbeds(wanted))
    if wanted is None or not Path(wanted).exists():
        raise UsageError(f"no NIC {wanted or 'has a name here'}: give the path of a control socket")
    return [NicControl(wanted, Path(wanted))]


def read_nic(nic: NicControl) -> dict[str, Any]:
    """Return a NIC's state and the ratios derived from it, as JSON values."""
    from netoffload.engine.summary import summarise

    info = control.request(nic.path, "info")
    flows = control.request(nic.path, "flows")["flows"]
    return {"nic": nic.name, "control": str(nic.path), "info": info, **summarise(_read_counters(nic), flows)}


def _read_all(nics: list[NicControl], read: Callable[[NicControl], _Read], silent: set[str]) -> dict[str, _Read]:
    """Return what ``read`` makes of each NIC that answers, by name; of several, a silent one is remarked on once.

    ``silent`` has the names of those that did not answer the last time.
    """
    answers = {}
    for nic in nics:
        try:
            answers[nic.name] = read(nic)
            silent.discard(nic.name)
        except ControlError as error:
            if len(nics) == 1:
                raise
            if nic.name not in silent:
                print(f"netoffload: {error}", file=sys.stderr)
            silent.add(nic.name)
    if not answers:
        raise ControlError("no NIC answered")
    return answers


def _print_nic(state: dict[str, Any], all_counters: bool) -> None:
    """Print in lines that are never cut or wrapped: for eyes, grep and awk."""
    from netoffload.engine.counters import MEANINGS

    info, derived = state["info"], state["summary"]
    engine = f"{info['codec']}, bound 2^-{info['bound_k']}, {info['packing']}, {info['encapsulation']}"
    process = f"kernel {info['kernel']}, pid {info['pid']}"
    print(f"NIC {state['nic']}: {info['host']} - {info['wire']}, {engine}, {process}")
    for name, label in (("tx", "sent"), ("rx", "received")):
        print(f"  {label:9}{_direction_text(derived[name])}")
    past = derived["kernel"]
    if any(past.values()):
        tx, rx = (f"{past[f'{one}_octets']:,} octets in {past[f'{one}_frames']:,} frames" for one in ("tx", "rx"))
        print(f"  {'kernel':9}carried past it: sent {tx}, received {rx}")
    if derived["class_shares"]:
        shares = "  ".join(f"{bits} bit {share:.1%}" for bits, share in derived["class_shares"].items())
        print(f"  {'floats':9}{shares}")
    print("  counters")
    for name, value in state["counters"].items():
        if value or all_counters:
            print(f"    {name:24} {value:>17,}  {MEANINGS.get(name, '')}".rstrip())
    if state["flows"]:
        _print_flows(state["flows"])


def _direction_text(direction: dict[str, Any]) -> str:
    crossed = f"{direction['wire_octets']:,} octets in {direction['frames']:,} frames"
    if direction["ratio"] is None:
        return f"{crossed}, nothing compressed"
    return (
        f"{crossed}; payload {direction['raw_octets']:,} as {direction['payload_octets']:,}, "
        f"ratio {direction['ratio']:.2f}, {direction['codec_s']:.3f} s in the codec"
    )


def _print_flows(flows: list[dict[str, Any]]) -> None:
    width = max(len(flow["flow"]) for flow in flows)
    print(f"  {'flows':{width + 5}} {'raw octets':>17} {'payload octets':>17}  ratio  bypassed  promised by   state")
    for flow in flows:
        octets = f"{flow['raw_octets']:17,} {flow['payload_octets']:17,} {ratio_text(flow['ratio']):>6}"
        state = f"{flow.get('promised_by', '-'):12}  {flow['state']}" + (", closed" if flow["closed"] else "")
        print(f"    {flow['direction']} {flow['flow']:{width}} {octets} {flow['bypassed_segments']:9,}  {state}")


def ratio_text(ratio: float | None) -> str:
    """Write a compression ratio; a dash where nothing was compressed."""
    return "-" if ratio is None else f"{ratio:.2f}"


def _watch(nics: list[NicControl], interval_s: float, count: int | None, as_json: bool) -> None:
    """Print one line per NIC and interval, for ``count`` intervals or without end."""
    width = max(len(nic.name) for nic in nics)
    lines = 0
    silent: set[str] = set()
    for intervals, measured in enumerate(_intervals(nics, interval_s, silent), 1):
        for name, rates in measured.items():
            if as_json:
                print(
                    json.dumps({"nic": name, "time_s": round(time.time(), 3), **dataclasses.asdict(rates)}), flush=True
                )
                continue
            if lines % HEADING_EVERY == 0:
                print(_WATCH_HEADING.format("NIC", width=width))
            print(_watch_line(name, width, rates), flush=True)
            lines += 1
        if intervals == count:
            break
    if silent:
        raise typer.Exit(ControlError.exit_code)


_WATCH_HEADING = (
    "{:{width}}    sent by host      on wire ratio  given to host      on wire ratio frames/s bypass/s drops/s"
)


def _watch_line(name: str, width: int, rates: Rates) -> str:
    tx = f"{config.format_rate(rates.tx_host_bps):>15}{config.format_rate(rates.tx_wire_bps):>13}"
    rx = f"{config.format_rate(rates.rx_host_bps):>15}{config.format_rate(rates.rx_wire_bps):>13}"
    counts = f"{rates.frames_per_s:9.0f}{rates.bypasses_per_s:9.0f}{rates.drops_per_s:8.0f}"
    return f"{name:{width}} {tx}{ratio_text(rates.tx_ratio):>6}{rx}{ratio_text(rates.rx_ratio):>6}{counts}"


def _intervals(nics: list[NicControl], interval_s: float, silent: set[str]) -> Iterator[dict[str, Rates]]:
    """Yield each interval's rates by NIC as long as one NIC answers; ``silent`` gets the names of those that do not."""
    from netoffload.engine.summary import rates

    before, read_at_s = _read_all(nics, _read_counters, silent), time.monotonic()
    while True:
        time.sleep(max(0.0, read_at_s + interval_s - time.monotonic()))
        after, now_s = _read_all(nics, _read_counters, silent), time.monotonic()
        yield {name: rates(before[name], after[name], now_s - read_at_s) for name in after if name in before}
        before, read_at_s = after, now_s


def _read_counters(nic: NicControl) -> dict[str, int]:
    counters: dict[str, int] = control.request(nic.path, "counters")["counters"]
    return counters
