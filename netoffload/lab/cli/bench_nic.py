"""``netoffload bench nic``: what a pair of NICs costs and gains, beside plain wires and beside tunnels of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netoffload import config
from netoffload.cli.app import console
from netoffload.cli.codec_options import Bound, NicCodec
from netoffload.lab.cli.bench_command import GRADIENTS, AsJson, run
from netoffload.lab.cli.figures import mega, table

if TYPE_CHECKING:
    from netoffload.lab.bench.nic_report import Findings

STOLEN_SHARE_TOLD: Final = 0.02
"""Share of the cores' time; if a hypervisor takes less, the report does not mention it."""
PEERS_ALL: Final = "all"
PEERS_NONE: Final = "none"
COLUMNS: Final = ("link", "stream", "Gb/s", "min", "max", "frames", "octets", "own", "all", "limit")


def command(
    rates: Annotated[str, typer.Option(help="Rates of the shaped links, with commas.")] = "100mbit,1gbit",
    size: Annotated[str, typer.Option(help="Octets of a stream over unshaped wires.")] = "2GB",
    seconds: Annotated[float, typer.Option(min=0.1, help="Time of a stream over a shaped link.")] = 3.0,
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds; one more warms up.")] = 3,
    peers: Annotated[str, typer.Option(help="Tunnels to compare with, with commas; or all, none.")] = PEERS_ALL,
    mtu: Annotated[int, typer.Option(help="MTU of every link in octets.")] = 1500,
    gradients: Annotated[str, typer.Option(help="gaussian:STANDARD_DEVIATION, or a float32 .npy file.")] = GRADIENTS,
    bound: Bound = config.BOUND_K_DEFAULT,
    codec: NicCodec = "inceptionn",
    round_trips: Annotated[int, typer.Option(min=1, help="Timed round trips per round.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of gaussian gradients.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Time TCP streams between two nodes: kernel alone, through NICs untagged and tagged.

    Untagged streams go once through the NICs' processes (bypass) and once
    past them (bypass_kernel: see the option --bypass of netoffload up).

    It first times streams and round trips over unshaped wires, then streams
    at each rate, beside OpenVPN, tinc and vtun if they are installed. Every
    octet that arrives is compared before a time is reported. The ratio counts
    octets on the wire, with headers. Tunnels run over wires without NICs. If
    a rate cannot be measured, the results of the others are reported.

    Example: netoffload bench nic --rates 1gbit --peers openvpn-lz4 --json
    """
    from netoffload.lab.bench.nic import Asked, NicBench
    from netoffload.lab.bench.vectors import parse_vector_octets
    from netoffload.lab.bench.vpn_peers import PEERS
    from netoffload.lab.testbed import NicSettings

    asked = Asked(
        rates_bps=tuple(config.parse_rate_bps(word) for word in _words(rates)),
        size_octets=parse_vector_octets(size),
        seconds=seconds,
        repeat=repeat,
        peers={PEERS_ALL: tuple(PEERS), PEERS_NONE: ()}.get(peers, _words(peers)),
        mtu=mtu,
        nic=NicSettings(codec, bound),
        round_trips=round_trips,
        gradients=gradients,
        seed=seed,
    )
    run(NicBench(asked), _print_tables, as_json=as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in (part.strip() for part in text.split(",")) if word))


def _print_tables(found: Findings) -> None:
    asked = found.configuration
    streams = table(
        f"Gb/s of payload, medians of {asked['repeat']}, MTU {asked['mtu']}, {asked['gradients']}",
        COLUMNS,
        ("link", "stream", "limit"),
        "frames per 10^6 and octets on the wire per octet of payload; CPU seconds per 10^9: own, of the\n"
        f"NICs or the tunnel; all, of the machine's {found.cpu['cores']} cores, other programs included",
    )
    for row in found.streams:
        speeds = (row.Gbps.median, row.Gbps.minimum, row.Gbps.maximum)
        streams.add_row(
            *(row.rate or "unshaped", row.contender, *(f"{speed:.3g}" for speed in speeds)),
            *(f"{row.frames_per_MB:.0f}", mega(row.wire_octets_per_MB, ".3f")),
            *(f"{row.cpu_s_per_GB.carriers:.1f}", f"{row.cpu_s_per_GB.machine:.1f}", row.limit),
        )
    console.print(streams)
    for line in _remarks(found):
        console.print(line, highlight=False)


def _remarks(found: Findings) -> Iterator[str]:
    rtt = found.rtt_us
    yield (
        f"over kernel: bypass {found.bypass_over_kernel:.2f}, bypass in the kernel "
        f"{found.bypass_kernel_over_kernel:.2f}; coalesced over bypass {found.coalesced_over_bypass:.2f}"
    )
    for row in found.shaped:
        shares = ", ".join(f"{name} {share:.3f}" for name, share in row.over_link.items())
        yield f"{row.rate}: ratio on the wire {row.ratio:.2f}; of what the link allows at that ratio: {shares}"
    yield (
        f"round trip of one octet: kernel {rtt['kernel']:.0f} us (99 %: {rtt['kernel_p99']:.0f}), "
        f"NICs {rtt['nic']:.0f} us (99 %: {rtt['nic_p99']:.0f}), added {rtt['added']:.0f} us; "
        f"busy polling {rtt['nic_busy_poll']:.0f} us, added {rtt['nic_busy_poll_added']:.0f} us; "
        f"bypass in the kernel {rtt['bypass_kernel']:.0f} us (99 %: {rtt['bypass_kernel_p99']:.0f}), "
        f"added {rtt['bypass_kernel_added']:.0f} us"
    )
    for name, peer in found.peers.items():
        if peer.missing:
            yield f"{name}: {peer.missing}"
        for rate, times in (peer.coalesced_over_peer or {}).items():
            yield f"coalesced over {name} {peer.version} at {rate}: {times:.2f}"
        for rate, reason in (peer.failed or {}).items():
            yield f"{name} {peer.version} at {rate}: {reason}"
    for rate, lack in found.missing.items():
        yield f"{rate}: missing: {lack}"
    if found.stolen_share >= STOLEN_SHARE_TOLD:
        yield (
            f"a hypervisor gave up to {found.stolen_share:.0%} of the cores' time to others: trust ratios more than "
            "figures, and measure more rounds (--repeat)"
        )
    load = found.load_average
    yield f"load average before {load['before']:.1f}, after {load['after']:.1f}"
