"""Arguments -> devices -> loop. Set-up may end with one clear line; the loop ends only as the exit codes say.

Exit codes: 0 stopped as asked, 1 the loop failed (a bug), 2 wrong arguments, 3 the system refused something, 4 the
host's device was deleted, 5 the wire was deleted.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from netoffload import log
from netoffload.codec import get
from netoffload.compiled.programs import end_at_once
from netoffload.config import TAG_ANY, TOS_MASK
from netoffload.control import serve_control
from netoffload.devices.mtu import watched_mtu
from netoffload.devices.netns import arp_ignore, in_netns, is_same_netns, reflects_tos
from netoffload.devices.packet import open_packet, takes_bundles
from netoffload.devices.sock_diag import open_sock_diag
from netoffload.devices.tap import Tap, keep, open_tap
from netoffload.engine import nic as engine_nic
from netoffload.engine.bypass import socket_program
from netoffload.engine.state import EngineSettings
from netoffload.errors import NetOffloadError, UsageError
from netoffload.netlink.redirect import has_clsact
from netoffload.nic_options import NicProcess
from netoffload_daemon.arguments import asked_log_format, parse_arguments
from netoffload_daemon.bypass import kernel_bypass
from netoffload_daemon.control import make_handlers
from netoffload_daemon.key import load_key
from netoffload_daemon.loop import HOST_GONE, STOPPED, WIRE_GONE, serve
from netoffload_daemon.metrics import serve_metrics
from netoffload_daemon.notices import Notices
from netoffload_daemon.port import RX, TX, LoopSettings, Port, make_port, make_second, make_settings
from netoffload_daemon.privileges import ROOT, drop, find_user, forgo
from netoffload_daemon.sockets import Diag, make_diag
from netoffload_daemon.table import IN_MEMORY, default_path, open_table
from netoffload_daemon.trace import SIDES, TraceFile

EXIT_FAILED: Final = 1
EXIT_HOST_GONE: Final = 4
EXIT_WIRE_GONE: Final = 5

FAILED: Final = 3
"""Outcome beside the results of :func:`~netoffload_daemon.loop.serve`: the loop raised an exception, which is a bug."""


def run(settings: NicProcess) -> int:
    """Forward frames until told to stop; return the exit code."""
    shared = is_same_netns(settings.host_netns, settings.wire_netns)
    if shared and settings.host_name == settings.wire:
        raise UsageError(f"{settings.wire} cannot be both the host's device and the wire: a NIC stands between two")
    stays_root = settings.user == ROOT
    _use_ready_fd(settings, os.fstat)  # before the NIC changes anything
    if not stays_root:
        find_user(settings.user)
        forgo()
    with contextlib.ExitStack() as stack:
        program = socket_program(settings.tag_tos) if settings.bypass == "kernel" else b""
        host, new_tap = _open_host(settings, stack, program)
        wire, mtu = open_packet(settings.wire, settings.wire_netns, program=program)
        stack.enter_context(wire)
        table_path = _table_path(settings)
        flows, keeps_table, is_new = open_table(table_path)  # is locked by a NIC that has these devices already
        unmake = stack.enter_context(contextlib.ExitStack())
        if is_new:  # a start that fails leaves no file behind
            unmake.callback(table_path.unlink, missing_ok=True)
        read_kernel = None
        if program or _have_filters(settings):  # a killed NIC may have left some
            read_kernel = stack.enter_context(kernel_bypass(settings))
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        stack.callback(os.close, event)
        sides = SIDES[settings.trace_side] if settings.trace else 0
        compile_loop()
        engine = _engine_settings(settings, mtu)
        diag = _open_diag(settings, stack)
        faults, devices = settings.fault_settings, (host, wire.fileno())
        port = make_port(engine, flows, faults, sides != 0, diag, devices)
        loop_settings = make_settings(faults, settings.busy_poll_us, settings.host_is_veth, sides, keeps_table)
        stack.enter_context(watched_mtu(settings.wire, settings.wire_netns, partial(engine.mtu.__setitem__, 0)))
        if settings.trace is not None:
            names = (settings.host, settings.wire)
            stack.enter_context(TraceFile(settings.trace, names, (port.tx_trace, port.rx_trace)))
        handlers = make_handlers(settings, port, event, read_kernel)
        if settings.control is not None:
            stack.enter_context(serve_control(settings.control, handlers))
        if settings.metrics_port is not None:
            stack.enter_context(serve_metrics(settings.metrics_port, lambda: str(handlers["metrics"]({})["metrics"])))
        if shared:
            _warn_of_arp(settings)
        stack.enter_context(Notices(port.nic))
        unmake.pop_all()
        if not stays_root:
            drop(settings.user)
        if new_tap is not None and not settings.ephemeral:
            _keep(new_tap, settings)  # only now, so that a failed start leaves no TAP behind
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, lambda *_: os.eventfd_write(event, 1))
        loop = Loop(event, loop_settings, port)
        stack.callback(loop.stop)  # the stack stops the loop before it closes a device
        loop.start(settings.threads)
        words = {"codec": settings.codec, "bound_k": settings.bound_k, "packing": settings.packing}
        log.note("forwarding", "frames are forwarded", host=settings.host, wire=settings.wire, pid=os.getpid(), **words)
        _use_ready_fd(settings, _say_ready)
        outcome = loop.join()
    return _exit_code(outcome, settings)


def _have_filters(settings: NicProcess) -> bool:
    for name, netns in ((settings.wire, settings.wire_netns), (settings.host_name, settings.host_netns)):
        with in_netns(netns):
            if has_clsact(name):
                return True
    return False


def _engine_settings(settings: NicProcess, mtu: int) -> EngineSettings:
    key = None if settings.key is None else load_key(settings.key)
    return engine_nic.make_settings(get(settings.codec).codec_id, settings.bound_k, mtu, key)._replace(
        per_segment=int(settings.packing == "per-segment"),
        in_udp=int(settings.encapsulation == "udp"),
        # Faults and traces apply to datagrams as they are on the wire, so nothing is bundled then.
        bundles=int(takes_bundles() and not settings.fault_settings.is_on and settings.trace is None),
        tag=max(settings.tag_tos, 0),
        tag_mask=0 if settings.tag_tos == TAG_ANY else TOS_MASK,
        ports=np.array(settings.port_ranges, np.int64).reshape(-1, 2),
        trust=int(not settings.asks_sockets),
    )


def _table_path(settings: NicProcess) -> Path:
    """Return the file of the flow table: the one that is named, or a default for devices that outlive the NIC."""
    if settings.flow_table is not None:
        return settings.flow_table
    if settings.ephemeral:
        return IN_MEMORY
    return default_path(settings.host_name, settings.host_netns)


def _open_diag(settings: NicProcess, stack: contextlib.ExitStack) -> Diag:
    """Return how the loop asks for the ToS of the host's sockets; not at all where the operator promises."""
    if not settings.asks_sockets:
        return make_diag()
    netns = settings.socket_netns or settings.host_netns
    diag, interface = stack.enter_context(open_sock_diag(netns)), 0
    if not settings.host_is_veth and settings.socket_netns is None:
        with in_netns(netns):
            interface = socket.if_nametoindex(settings.host_name)
    if reflects_tos(netns):
        log.say(
            "tos_reflected",
            "the host's sockets take the ToS of a peer's SYN (net.ipv4.tcp_reflect_tos=1), so a tag on an accepting "
            "socket may be a router's: set it to 0",
            level="warning",
        )
    return make_diag(diag.fileno(), interface)


def _warn_of_arp(settings: NicProcess) -> None:
    """Warn if the host's kernel answers ARP requests for the TAP's address on the wire, past the NIC."""
    if not settings.host_is_veth and arp_ignore(settings.wire, settings.wire_netns) == 0:
        log.say(
            "arp_answered_by_host",
            f"{settings.host} and wire {settings.wire} share a network namespace, whose kernel answers ARP on the wire "
            "too, so peers send past this NIC and get raw data: put the wire into another namespace (--wire-netns), "
            "or set net.ipv4.conf.all.arp_ignore=1",
            level="warning",
            host=settings.host,
            wire=settings.wire,
        )


def _open_host(settings: NicProcess, stack: contextlib.ExitStack, program: bytes) -> tuple[int, Tap | None]:
    """Return a descriptor of the host's device, which the stack closes, and the TAP if this call made one."""
    if settings.host_is_veth:
        host, _ = open_packet(settings.host_name, settings.host_netns, "host device", program)
        return stack.enter_context(host).fileno(), None
    tap = open_tap(settings.host_name, settings.host_netns)
    stack.callback(os.close, tap.descriptor)
    return tap.descriptor, tap if tap.is_new else None


def _keep(tap: Tap, settings: NicProcess) -> None:
    """Make a new TAP persistent, so that the host's connections outlive this process, and say so."""
    keep(tap)
    name, netns = settings.host_name, settings.host_netns
    enter = "" if netns is None else f"nsenter --net={netns} "
    log.say(
        "tap_made",
        f"made the TAP {name}; it stays when this NIC ends, and so do the host's connections; "
        f"`{enter}ip link del {name}` removes it (with --ephemeral it ends with the NIC)",
        host=settings.host,
        host_netns=netns,
    )


class Loop:
    """The threads that run :func:`~netoffload_daemon.loop.serve`: one for both directions, or one for each."""

    def __init__(self, event: int, settings: LoopSettings, port: Port) -> None:
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
        """Wait for the loop's end; return why it ended: a result of ``serve``, or ``FAILED``."""
        for thread in self._threads:
            thread.join()
        return max(self._outcomes, default=STOPPED)

    def stop(self) -> None:
        """End the loop and wait for it."""
        os.eventfd_write(self._event, 1)
        self.join()

    def _run(self, roles: int, port: Port) -> None:
        try:
            self._outcomes.append(serve(self._event, roles, self._settings, port))
        except Exception as error:
            log.failed("loop_failed", error)
            self._outcomes.append(FAILED)
        finally:
            os.eventfd_write(self._event, 1)  # if one direction ends, the other one must end too


def _exit_code(outcome: int, settings: NicProcess) -> int:
    reasons = {
        HOST_GONE: ("host_deleted", f"{settings.host} was deleted", EXIT_HOST_GONE),
        WIRE_GONE: ("wire_deleted", f"wire {settings.wire} was deleted", EXIT_WIRE_GONE),
        FAILED: ("ended", "the loop failed and the NIC ends: please report the lines above", EXIT_FAILED),
    }
    if outcome not in reasons:
        log.note("stopped", "stopped as asked", exit_code=0)
        return 0
    event, reason, code = reasons[outcome]
    log.say(event, reason, level="error", exit_code=code, host=settings.host, wire=settings.wire)
    return code


def _use_ready_fd(settings: NicProcess, use: Callable[[int], object]) -> None:
    """Call ``use`` with the descriptor of ``--ready-fd``, if there is one."""
    if settings.ready_fd is not None:
        try:
            use(settings.ready_fd)
        except OSError as error:
            raise UsageError(
                f"--ready-fd: descriptor {settings.ready_fd} cannot be written: {error.strerror}"
            ) from error


def _say_ready(descriptor: int) -> None:
    os.write(descriptor, b"ready\n")
    os.close(descriptor)


def compile_loop() -> None:
    """Compile the loop, or load it from the cache, by running it without devices and with a stop already signalled."""
    event = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        serve(event, TX | RX, make_settings(), make_port(engine_nic.make_settings()))
    finally:
        os.close(event)


def main(arguments: Sequence[str] | None = None, program: str = "netoffloadd") -> int:
    """Run the command line; errors become one line and an exit code."""
    end_at_once()
    words = sys.argv[1:] if arguments is None else arguments
    log.choose(asked_log_format(words))
    try:
        return run(parse_arguments(words, program))
    except NetOffloadError as error:
        log.say("refused", str(error), level="error", exit_code=error.exit_code)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
