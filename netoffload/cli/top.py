"""``netoffload top``: shows what the NICs do, live, on the whole screen."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from netoffload import config
from netoffload.cli.app import Interrupted, app, console, make_table
from netoffload.cli.stats import Nic, nic_controls, ratio_text, read_nic
from netoffload.errors import NetOffloadError, UsageError

if TYPE_CHECKING:
    from netoffload.engine.summary import Rates

BUSIEST: Final = 10
"""Flows shown."""
TIGHT: Final[dict[str, Any]] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
"""The form of a table with many columns."""


@app.command()
def top(
    nic: Nic = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="Between two readings.")
    ] = 1.0,
) -> None:
    """Watch NICs live: rates before and after compression, frames, drops, busiest flows. q or Ctrl-C ends it.

    Example: netoffload top --interval 0.5
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal: `netoffload stats --watch 1` prints the same rates to a file or pipe")
    nic_controls(nic)  # raises one clear line if there is no NIC, instead of an empty screen
    with contextlib.suppress(Interrupted), _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        before = _read(nic)
        while not _quit_pressed(max(0.0, before.read_at_s + interval - time.monotonic())):
            after = _read(nic)
            live.update(_screen(before, after), refresh=True)
            before = after


@dataclass(frozen=True)
class _Reading:
    """All NICs at one moment."""

    read_at_s: float
    nics: dict[str, dict[str, Any]]
    silent: tuple[str, ...]
    """A line for each NIC that should run and does not answer."""


def _read(wanted: str | None) -> _Reading:
    """Read every NIC, also those of new runs; an error becomes a line on the screen and does not end it."""
    nics, silent = {}, []
    try:
        for nic in nic_controls(wanted):
            try:
                nics[nic.name] = read_nic(nic)
            except NetOffloadError as error:
                silent.append(str(error))
    except NetOffloadError as error:
        silent.append(str(error))
    return _Reading(time.monotonic(), nics, tuple(silent))


def _screen(before: _Reading, after: _Reading) -> Group:
    from netoffload.engine.summary import rates

    interval_s = after.read_at_s - before.read_at_s
    both = [name for name in after.nics if name in before.nics]
    measured = {name: rates(before.nics[name]["counters"], after.nics[name]["counters"], interval_s) for name in both}
    head = Text(f"netoffload top   {time.strftime('%H:%M:%S')}   {len(after.nics)} NICs   q quits", style="bold")
    lines = [Text(line, style="red") for line in after.silent]
    return Group(head, *lines, _nic_table(measured), _busiest(before, after, interval_s))


def _nic_table(measured: dict[str, Rates]) -> Table:
    columns = ("NIC", "", "host", "on wire", "ratio", "frames/s", "bypass/s", "drops/s")
    table = make_table(columns, ("NIC", ""), **TIGHT)
    for name, now in measured.items():
        drops = Text(f"{now.drops_per_s:.0f}", style="red" if now.drops_per_s else "")
        sent = (config.format_rate(now.tx_host_bps), config.format_rate(now.tx_wire_bps), ratio_text(now.tx_ratio))
        got = (config.format_rate(now.rx_host_bps), config.format_rate(now.rx_wire_bps), ratio_text(now.rx_ratio))
        table.add_row(name, "sent", *sent, f"{now.frames_per_s:.0f}", f"{now.bypasses_per_s:.0f}", drops)
        table.add_row("", "received", *got)
    return table


def _busiest(before: _Reading, after: _Reading, interval_s: float) -> Table:
    """Return a table of the flows whose hosts gave the NICs most octets in the interval."""
    columns = ("NIC", "busiest flows, sent", "floats", "on wire", "ratio", "state")
    table = make_table(columns, ("NIC", "busiest flows, sent", "state"), **TIGHT)
    grown = []
    for name, state in after.nics.items():
        old = {flow["flow"]: flow for flow in before.nics.get(name, {}).get("flows", []) if flow["direction"] == "tx"}
        for flow in state["flows"]:
            if flow["direction"] == "tx":
                was = old.get(flow["flow"], {})
                raw, payload = (flow[key] - was.get(key, 0) for key in ("raw_octets", "payload_octets"))
                if raw > 0 or not flow["closed"]:
                    grown.append((raw, payload, name, flow))
    busiest = sorted(grown, key=lambda row: -row[0])[:BUSIEST]
    for raw, payload, name, flow in busiest:
        table.add_row(
            name,
            flow["flow"],
            config.format_rate(max(raw, 0) * 8 / interval_s),
            config.format_rate(max(payload, 0) * 8 / interval_s),
            ratio_text(raw / payload if raw > 0 and payload > 0 else None),
            flow["state"] + (", closed" if flow["closed"] else ""),
        )
    return table


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Let the terminal pass on single keys instead of lines; restore it afterwards."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _quit_pressed(timeout_s: float) -> bool:
    """Wait for a key, at most ``timeout_s``; return True if it is q, or if the terminal is closed."""
    deadline = time.monotonic() + timeout_s
    while select.select([sys.stdin], [], [], max(0.0, deadline - time.monotonic()))[0]:
        key = os.read(sys.stdin.fileno(), 1)
        if key in (b"q", b"Q", b""):
            return True
    return False
