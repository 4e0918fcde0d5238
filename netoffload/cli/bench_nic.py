"""``netoffload bench nic``: what a pair of NICs costs and gains, beside plain wires and beside tunnels of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import TIGHT, add_columns, console, notes, progress_line, told_anyway
from netoffload.cli.bench import bench_app
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array

BLOCK_OCTETS: Final = 4 * 1024 * 1024
"""Repeated by every stream: too long for a compressor of frames to see the repetition, short enough for the cache."""
STOLEN_SHARE_TOLD: Final = 0.02
"""A hypervisor that takes less is not worth a word."""
PEERS_ALL: Final = "all"
PEERS_NONE: Final = "none"


@bench_app.command("nic")
def bench_nic(
    rates: Annotated[str, typer.Option(help="Rates of the shaped links, with commas.")] = "100mbit,1gbit",
    size: Annotated[str, typer.Option(help="Octets of a stream over unshaped wires.")] = "2GB",
    seconds: Annotated[float, typer.Option(min=0.1, help="What a stream over a shaped link should take.")] = 3.0,
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds; one more warms up.")] = 3,
    peers: Annotated[str, typer.Option(help="Tunnels beside it, with commas; all, none.")] = PEERS_ALL,
    mtu: Annotated[int, typer.Option(help="MTU of every link in octets.")] = 1500,
    gradients: Annotated[
        str, typer.Option(help="gaussian:STANDARD_DEVIATION, or a float32 .npy file.")
    ] = "gaussian:0.002",
    bound: Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")] = config.BOUND_K_DEFAULT,
    codec: Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")] = "inceptionn",
    round_trips: Annotated[int, typer.Option(min=1, help="Timed round trips per round.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of gaussian gradients.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Time TCP streams between two nodes: kernel alone, through NICs untagged and tagged.

    Untagged once through the NICs' processes (bypass) and once past
    them (bypass_kernel: see the option --bypass of netoffload up).

    First over unshaped wires, with the round-trip time; then at each rate,
    beside OpenVPN, tinc and vtun where they are installed. What arrives is
    compared octet by octet before a time is reported. The ratio is that of
    the octets on the wire, headers and all. Peers see plain wires. What is
    measured already is reported even if a later rate cannot be measured.

    Example: netoffload bench nic --rates 1gbit --peers openvpn-lz4 --json
    """
    from netoffload.bench import nic as nic_bench
    from netoffload.bench import nic_report
    from netoffload.testbed import NicSettings, build

    build.check_root()
    asked = nic_bench.Asked(
        rates_bps=tuple(config.parse_rate_bps(word) for word in _words(rates)),
        size_octets=config.parse_size_octets(size) // 4 * 4,
        seconds=seconds,
        repeat=repeat,
        peers=_peers(peers),
        mtu=mtu,
        nic=NicSettings(codec, bound),
        round_trips=round_trips,
    )
    if asked.size_octets == 0:
        raise UsageError("size is less than one float32, 4 octets")
    values = _values(gradients, seed)
    found = nic_bench.Findings()

    def tell(reason: str | None) -> None:
        if found.unshaped is None:
            return
        report = nic_report.report(asked, found, reason)
        report["configuration"] |= {"gradients": gradients, "seed": seed}
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            _print_tables(report)

    with told_anyway(tell), progress_line() as progress:
        nic_bench.measure(asked, values, progress, found)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in (part.strip() for part in text.split(",")) if word))


def _peers(text: str) -> tuple[str, ...]:
    from netoffload.bench.vpn_peers import PEERS, missing

    names = {PEERS_ALL: tuple(PEERS), PEERS_NONE: ()}.get(text) or (() if text == PEERS_NONE else _words(text))
    for name in names:
        config.check_choice("peer", name, tuple(PEERS))
        if reason := missing(PEERS[name]):
            notes.print(f"without {name}: {reason}", highlight=False)
    return names


def _values(gradients: str, seed: int) -> Float32Array:
    """Return one block of float32: drawn, or the beginning of a file (repeated if it is shorter)."""
    from netoffload.collectives.samples import gradient_of, parse_sigma, read_gradients

    floats = BLOCK_OCTETS // 4
    if gradients.startswith("gaussian:"):
        return gradient_of(0, floats, parse_sigma(gradients), seed)
    return np.resize(read_gradients(Path(gradients)), floats)


def _print_tables(report: dict[str, Any]) -> None:
    cpu, asked = report["cpu"], report["configuration"]
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        padding=TIGHT,
        title=f"Gb/s of payload, medians of {asked['repeat']}, MTU {asked['mtu']}, {asked['gradients']}",
        caption=(
            "frames per 10^6 and octets on the wire per octet of payload; CPU seconds per 10^9: own, of the\n"
            f"NICs or the tunnel; all, of the machine's {cpu['cores']} cores, whoever used them"
        ),
    )
    columns = ("link", "stream", "Gb/s", "min", "max", "frames", "octets", "own", "all", "limit")
    add_columns(table, columns, ("link", "stream", "limit"))
    for row in report["streams"]:
        speed, cpu_s = row["Gbps"], row["cpu_s_per_GB"]
        table.add_row(
            *(row["rate"] or "unshaped", row["contender"]),
            *(f"{speed[key]:.3g}" for key in ("median", "minimum", "maximum")),
            *(f"{row['frames_per_MB']:.0f}", f"{row['wire_octets_per_MB'] / 1e6:.3f}"),
            *(f"{cpu_s['carriers']:.1f}", f"{cpu_s['machine']:.1f}", row["limit"]),
        )
    console.print(table)
    for line in _remarks(report):
        console.print(line, highlight=False)


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    rtt = report["rtt_us"]
    bypass, coalesced = report["bypass_over_kernel"], report["coalesced_over_bypass"]
    past = report["bypass_kernel_over_kernel"]
    yield f"over kernel: bypass {bypass:.2f}, bypass in the kernel {past:.2f}; coalesced over bypass {coalesced:.2f}"
    for row in report["shaped"]:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in row["over_link"].items())
        yield f"{row['rate']}: ratio on the wire {row['ratio']:.2f}; of what the link allows at that ratio: {shares}"
    yield (
        f"round trip of one octet: kernel {rtt['kernel']:.0f} us (99 %: {rtt['kernel_p99']:.0f}), "
        f"NICs {rtt['nic']:.0f} us (99 %: {rtt['nic_p99']:.0f}), added {rtt['added']:.0f} us; "
        f"busy polling {rtt['nic_busy_poll']:.0f} us, added {rtt['nic_busy_poll_added']:.0f} us; "
        f"bypass in the kernel {rtt['bypass_kernel']:.0f} us (99 %: {rtt['bypass_kernel_p99']:.0f}), "
        f"added {rtt['bypass_kernel_added']:.0f} us"
    )
    for name, entry in report["peers"].items():
        if "missing" in entry:
            yield f"{name}: {entry['missing']}"
            continue
        for rate, times in entry["coalesced_over_peer"].items():
            yield f"coalesced over {name} {entry['version']} at {rate}: {times:.2f}"
        for rate, reason in entry.get("failed", {}).items():
            yield f"{name} {entry['version']} at {rate}: {reason}"
    for rate, reason in report["missing"].items():
        yield f"{rate}: missing: {reason}"
    stolen = max(row["stolen_share"] for row in report["streams"])
    if stolen >= STOLEN_SHARE_TOLD:
        yield (
            f"a hypervisor gave up to {stolen:.0%} of the cores' time to others: ratios hold better than figures, "
            "and more rounds (--repeat) better than few"
        )
    load = report["load_average"]
    yield f"load average before {load['before']:.1f}, after {load['after']:.1f}"
