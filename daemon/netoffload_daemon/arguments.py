"""The words of a NIC's command line, and the settings that they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from netoffload.codec import get
from netoffload.config import (
    BOUND_K_DEFAULT,
    BYPASSES,
    CODECS,
    ENCAPSULATIONS,
    PACKINGS,
    TOS_COMPRESS,
    format_tag,
    parse_ports,
    parse_tag,
)
from netoffload.errors import UsageError
from netoffload.faults import parse_faults
from netoffload_daemon.privileges import USER_DEFAULT
from netoffload_daemon.settings import TRACE_SIDES, NicSettings

EXAMPLES: Final = """\
examples:
  netoffload nic --host tap:inc0 --host-netns /run/netns/n0 --wire wire0 --wire-netns /run/netns/n0w \\
                 --bound 8 --packing per-segment --control /run/nic-n0.sock
  netoffload nic --host veth:host0 --wire eth1 --threads 2 --trace frames.pcapng --trace-side wire

The host's programs mark a socket with setsockopt(IPPROTO_IP, IP_TOS, 0x28) before connecting, on both ends,
and send nothing but float32 on it. Everything else crosses unchanged. --tag takes another mark, and --ports narrows it.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuse in one line, as everything else does, instead of with the list of all options."""
        raise UsageError(f"{message}; see {self.prog} --help")


def parse_arguments(arguments: Sequence[str], program: str = "netoffloadd") -> NicSettings:
    """Return the settings that the words of a command line say.

    Raises:
        UsageError: an option is missing, unknown, or has a value that cannot be.
    """
    parser = _Parser(
        prog=program,
        description="Run one NIC: compress tagged TCP segments between a host's interface and a wire.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_devices(parser)
    _add_engine(parser)
    _add_operation(parser)
    words = parser.parse_args(arguments)
    get(words.codec)
    return NicSettings(
        host=words.host,
        wire=words.wire,
        host_netns=words.host_netns,
        wire_netns=words.wire_netns,
        codec=words.codec,
        bound_k=words.bound,
        packing=words.packing,
        encapsulation=words.encapsulation,
        control=words.control,
        flow_table=words.flow_table,
        key=words.key,
        metrics_port=words.metrics_port,
        ready_fd=words.ready_fd,
        faults=parse_faults(words.fault),
        threads=words.threads,
        busy_poll_us=words.busy_poll,
        user=words.user,
        trace=words.trace,
        trace_side=words.trace_side,
        bypass=words.bypass,
        ephemeral=words.ephemeral,
        tag=parse_tag(words.tag),
        ports=parse_ports(words.ports),
    )


def _add_devices(parser: argparse.ArgumentParser) -> None:
    host = "the host's device: a TAP (made if it is not there), or the NIC's end of a veth pair"
    parser.add_argument("--host", required=True, metavar="KIND:NAME", help=f"{host}; KIND is tap or veth")
    parser.add_argument("--wire", required=True, metavar="NAME", help="the wire's interface")
    parser.add_argument("--host-netns", metavar="PATH", help="network namespace of the host's device")
    parser.add_argument(
        "--ephemeral", action="store_true", help="a TAP that is made goes with the NIC, and the host's connections too"
    )
    parser.add_argument("--wire-netns", metavar="PATH", help="network namespace of the wire")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--codec", default=CODECS[0], help=f"one of {', '.join(CODECS)} (default %(default)s)")
    parser.add_argument(
        "--bound", type=int, default=BOUND_K_DEFAULT, metavar="K", help="error bound 2^-K, 1..16 (default %(default)s)"
    )
    parser.add_argument(
        "--tag",
        default=format_tag(TOS_COMPRESS),
        metavar="TOS",
        help="ToS or traffic class of tagged connections: 0x28, 40, AF11; any, with --ports (default %(default)s)",
    )
    parser.add_argument(
        "--ports", default="", metavar="LIST", help="tag only connections from or to these: 5000-5999,7000"
    )
    parser.add_argument("--packing", default=PACKINGS[0], help=f"{' or '.join(PACKINGS)} (default %(default)s)")
    parser.add_argument(
        "--encapsulation",
        default=ENCAPSULATIONS[0],
        help=f"how blocks travel: {' or '.join(ENCAPSULATIONS)} (default %(default)s, to peers that take it)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="1, or 2: one per direction (default %(default)s)"
    )
    parser.add_argument(
        "--busy-poll", type=int, default=0, metavar="US", help="look for frames this long before sleeping, microseconds"
    )
    parser.add_argument(
        "--bypass",
        default=BYPASSES[0],
        help="who carries frames that are not touched: user, this process; kernel, tc filters (default %(default)s)",
    )
    parser.add_argument(
        "--fault",
        default="",
        metavar="FAULTS",
        help="damage frames for the wire: loss=P,dup=P,reorder=P,flip=P,truncate=P,delay=5ms,seed=N, any of them",
    )


def _add_operation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--control", type=Path, metavar="PATH", help="listen here for counters, flows, stop")
    parser.add_argument("--key", type=Path, metavar="FILE", help="add a MAC of this key to every block, and ask for it")
    parser.add_argument("--flow-table", type=Path, metavar="FILE", help="keep the flows here, for a restart")
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="serve Prometheus metrics at http://127.0.0.1:N/metrics"
    )
    parser.add_argument("--ready-fd", type=int, metavar="N", help="write 'ready' to this descriptor when forwarding")
    parser.add_argument(
        "--user",
        default=USER_DEFAULT,
        help="who to be once the devices are open; root stays root (default %(default)s)",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the frames that cross to this pcapng file")
    parser.add_argument(
        "--trace-side", default="both", help=f"whose frames: {', '.join(TRACE_SIDES)} (default %(default)s)"
    )
