"""Arguments -> devices -> loop. Set-up may exit with one clear line; the loop only stops.

Exit codes: 0 stopped as asked, 1 the loop failed (a bug), 2 wrong arguments, 3 the system refused something, 4 the
host's device was deleted, 5 the wire was deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from netoffload.codec import get
from netoffload.config import (
    BOUND_K_DEFAULT,
    BYPASSES,
    CODECS,
    ENCAPSULATIONS,
    PACKINGS,
    TAG_ANY,
    TOS_COMPRESS,
    TOS_MASK,
    format_tag,
    parse_ports,
    parse_tag,
)
from netoffload.control import ControlServer
from netoffload.devices.mtu import MtuWatch
from netoffload.devices.netns import arp_ignore, is_same_netns
from netoffload.devices.packet import open_packet, takes_bundles
from netoffload.devices.qdisc import has_clsact
from netoffload.devices.tap import Tap, keep, open_tap
from netoffload.engine.blocks import EngineSettings
from netoffload.engine.bypass import socket_program
from netoffload.engine.counters import Int64Array
from netoffload.errors import NetOffloadError, UsageError
from netoffload.faults import parse_faults
from netoffload_daemon.bypass import KernelBypass
from netoffload_daemon.control import make_handlers
from netoffload_daemon.loop import serve
from netoffload_daemon.metrics import serve_metrics
from netoffload_daemon.port import RX, TX, LoopSettings, Port, make_port, make_second, make_settings
from netoffload_daemon.privileges import ROOT, USER_DEFAULT, drop, find_user, forgo
from netoffload_daemon.settings import TRACE_SIDES, NicSettings
from netoffload_daemon.table import open_table
from netoffload_daemon.trace import SIDES, TraceFile
from netoffload_daemon.trouble import HOST_GONE, STOPPED, WIRE_GONE

EXIT_FAILED: Final = 1
EXIT_HOST_GONE: Final = 4
EXIT_WIRE_GONE: Final = 5

FAILED: Final = 3
"""Beside the results of :func:`~netoffload_daemon.loop.serve`: it raised something, and nobody knows what was sent."""

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


def run(settings: NicSettings) -> int:
    """Forward frames until told to stop; return the exit code.

    Raises:
        NetOffloadError: a device or the control socket cannot be opened, or both devices are one.
    """
    shared = is_same_netns(settings.host_netns, settings.wire_netns)
    if shared and settings.host_name == settings.wire:
        raise UsageError(f"{settings.wire} cannot be both the host's device and the wire: a NIC stands between two")
    stays_root = settings.user == ROOT
    if settings.ready_fd is not None:
        _check_ready(settings.ready_fd)
    if not stays_root:
        find_user(settings.user)
        forgo()
    with contextlib.ExitStack() as stack:
        program = socket_program(settings.tag) if settings.bypass == "kernel" else b""
        host, new_tap = _open_host(settings, stack, program)
        wire, mtu = open_packet(settings.wire, settings.wire_netns, program=program)
        stack.enter_context(wire)
        bypass = None
        devices = (settings.wire, settings.wire_netns), (settings.host_name, settings.host_netns)
        if program or any(has_clsact(*device) for device in devices):
            bypass = stack.enter_context(KernelBypass(settings))
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        stack.callback(os.close, event)
        sides = SIDES[settings.trace_side] if settings.trace else 0
        compile_loop()
        port = make_port(open_table(settings.flow_table), settings.faults, mtu, traced=sides != 0)
        engine = _engine_settings(settings, port.mtu)
        told = make_settings(engine, settings.faults, settings.busy_poll_us, settings.host_is_veth, sides)
        stack.enter_context(MtuWatch(settings.wire, settings.wire_netns, partial(port.mtu.__setitem__, 0)))
        if settings.trace is not None:
            names = (settings.host, settings.wire)
            stack.enter_context(TraceFile(settings.trace, names, (port.tx_trace, port.rx_trace)))
        handlers = make_handlers(settings, port, event, bypass)
        if settings.control is not None:
            stack.enter_context(ControlServer(settings.control, handlers))
        if settings.metrics_port is not None:
            stack.enter_context(serve_metrics(settings.metrics_port, lambda: str(handlers["metrics"]({})["metrics"])))
        if shared:
            _warn_of_arp(settings)
        if not stays_root:
            drop(settings.user)
        if new_tap is not None and not settings.ephemeral:
            _keep(new_tap, settings)  # nothing is left of a NIC that cannot start
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.eventfd_write(event, 1))
        loop = Loop(host, wire.fileno(), event, told, port)
        stack.callback(loop.stop)  # before any device is closed, whatever happens here
        loop.start(settings.threads)
        if settings.ready_fd is not None:
            _say_ready(settings.ready_fd)
        outcome = loop.join()
    return _exit_code(outcome, settings)


def _engine_settings(settings: NicSettings, mtu: Int64Array) -> EngineSettings:
    return EngineSettings(
        codec_id=int(get(settings.codec).codec_id),
        bound_k=settings.bound_k,
        mtu=mtu,
        per_segment=int(settings.packing == "per-segment"),
        in_udp=int(settings.encapsulation == "udp"),
        # A fault hits, and a trace shows, what one would see on the wire: datagrams.
        bundles=int(takes_bundles() and not settings.faults.is_on and settings.trace is None),
        tag=max(settings.tag, 0),
        tag_mask=0 if settings.tag == TAG_ANY else TOS_MASK,
        ports=np.array(settings.ports, np.int64).reshape(-1, 2),
    )


def _warn_of_arp(settings: NicSettings) -> None:
    """Say it where the host's kernel answers ARP for the address of its TAP on the wire, past the NIC."""
    if not settings.host_is_veth and arp_ignore(settings.wire, settings.wire_netns) == 0:
        print(
            f"netoffload: warning: {settings.host} and wire {settings.wire} share a network namespace, whose kernel "
            "answers ARP on the wire too: peers then send past this NIC, and get raw data; put the wire into a "
            "namespace of its own (--wire-netns), or set net.ipv4.conf.all.arp_ignore=1",
            file=sys.stderr,
        )


def _open_host(settings: NicSettings, stack: contextlib.ExitStack, program: bytes) -> tuple[int, Tap | None]:
    """Return a descriptor of the host's device, which the stack closes, and the TAP if one was made."""
    if settings.host_is_veth:
        host, _ = open_packet(settings.host_name, settings.host_netns, "host device", program)
        return stack.enter_context(host).fileno(), None
    tap = open_tap(settings.host_name, settings.host_netns)
    stack.callback(os.close, tap.descriptor)
    return tap.descriptor, tap if tap.is_new else None


def _keep(tap: Tap, settings: NicSettings) -> None:
    """Let a TAP that was made stay behind, so that the host's connections outlive this process, and say so."""
    keep(tap)
    name, netns = settings.host_name, settings.host_netns
    enter = "" if netns is None else f"nsenter --net={netns} "
    print(
        f"netoffload: made the TAP {name}; it stays when this NIC ends, and so do the host's connections; "
        f"`{enter}ip link del {name}` removes it (--ephemeral makes one that goes)",
        file=sys.stderr,
    )


class Loop:
    """The threads that run :func:`~netoffload_daemon.loop.serve`: one for both directions, or one for each."""

    def __init__(self, host: int, wire: int, event: int, settings: LoopSettings, port: Port) -> None:
        self._arguments = (host, wire, event)
        self._event = event
        self._settings = settings
        self._port = port
        self._outcomes: list[int] = []
        self._threads: list[threading.Thread] = []

    def start(self, threads: int) -> None:
        """Forward from now on."""
        work = [(TX | RX, self._port)] if threads == 1 else [(TX, self._port), (RX, make_second(self._port))]
        for roles, port in work:
            thread = threading.Thread(target=self._run, args=(roles, port), name=f"loop-{roles}")
            thread.start()
            self._threads.append(thread)

    def join(self) -> int:
        """Return why the loop ended, when it has: a result of ``serve``, or ``FAILED``."""
        for thread in self._threads:
            thread.join()
        return max(self._outcomes, default=STOPPED)

    def stop(self) -> None:
        """End the loop and wait for it."""
        os.eventfd_write(self._event, 1)
        self.join()

    def _run(self, roles: int, port: Port) -> None:
        try:
            self._outcomes.append(serve(*self._arguments, roles, self._settings, port))
        except Exception:
            traceback.print_exc()
            self._outcomes.append(FAILED)
        finally:
            os.eventfd_write(self._event, 1)  # one direction alone is no NIC


def _exit_code(outcome: int, settings: NicSettings) -> int:
    reasons = {
        HOST_GONE: (f"{settings.host} was deleted", EXIT_HOST_GONE),
        WIRE_GONE: (f"wire {settings.wire} was deleted", EXIT_WIRE_GONE),
        FAILED: ("the loop failed, nothing is forwarded any more: please report what stands above", EXIT_FAILED),
    }
    if outcome not in reasons:
        return 0
    reason, code = reasons[outcome]
    print(f"netoffload: {reason}", file=sys.stderr)
    return code


def _check_ready(ready_fd: int) -> None:
    """Refuse a descriptor that is not there, before anything is made."""
    try:
        os.fstat(ready_fd)
    except OSError as error:
        raise _nobody_told(ready_fd, error) from error


def _nobody_told(ready_fd: int, error: OSError) -> UsageError:
    return UsageError(f"nobody can be told on descriptor {ready_fd} that the NIC is ready: {error.strerror}")


def _say_ready(ready_fd: int) -> None:
    try:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
    except OSError as error:
        raise _nobody_told(ready_fd, error) from error


def compile_loop() -> None:
    """Compile the loop, or load it from the cache, by running it on no devices with the stop already given."""
    event = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    nothing = np.zeros((0, 2), np.int64)
    engine = EngineSettings(0, 0, np.zeros(1, np.int64), 0, 0, 0, tag=0, tag_mask=0, ports=nothing)
    settings = make_settings(engine)
    try:
        serve(-1, -1, event, TX | RX, settings, make_port(open_table(None)))
    finally:
        os.close(event)


def main(arguments: Sequence[str] | None = None, program: str = "netoffloadd") -> int:
    """Run the command line; errors become one line and an exit code."""
    try:
        return run(parse_arguments(sys.argv[1:] if arguments is None else arguments, program))
    except NetOffloadError as error:
        print(f"netoffload: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
