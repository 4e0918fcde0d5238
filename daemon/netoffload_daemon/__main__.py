"""Arguments -> devices -> loop. Set-up may exit with one clear line; the loop only stops.

Exit codes: 0 stopped as asked, 2 wrong arguments, 3 the system refused something, 4 the host's device was deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload.codec import get
from netoffload.config import BOUND_K_DEFAULT, CODECS, PACKINGS
from netoffload.control import ControlServer
from netoffload.devices.packet import open_packet
from netoffload.devices.tap import open_tap
from netoffload.engine.transmit import TransmitSettings
from netoffload.errors import NetOffloadError, UsageError
from netoffload_daemon.control import make_handlers
from netoffload_daemon.loop import HOST_GONE, make_port, serve
from netoffload_daemon.metrics import serve_metrics
from netoffload_daemon.settings import NicSettings
from netoffload_daemon.table import open_tables

EXIT_HOST_GONE: Final = 4

EXAMPLES: Final = """\
examples:
  netoffload nic --host tap:inc0 --host-netns /run/netns/n0 --wire wire0 --wire-netns /run/netns/n0w \\
                 --bound 8 --packing per-segment --control /run/nic-n0.sock

The host's programs mark a socket with setsockopt(IPPROTO_IP, IP_TOS, 0x28) before connecting, on both ends,
and send nothing but float32 on it. Everything else crosses unchanged.
"""


def parse_arguments(arguments: Sequence[str], program: str = "netoffloadd") -> NicSettings:
    """Return the settings that the words of a command line say."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run one NIC: compress tagged TCP segments between a host's TAP interface and a wire.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", required=True, metavar="tap:NAME", help="the host's device; made if it is not there")
    parser.add_argument("--wire", required=True, metavar="NAME", help="the wire's interface")
    parser.add_argument("--host-netns", metavar="PATH", help="network namespace of the host's device")
    parser.add_argument("--wire-netns", metavar="PATH", help="network namespace of the wire")
    parser.add_argument("--codec", default=CODECS[0], help=f"one of {', '.join(CODECS)} (default %(default)s)")
    parser.add_argument(
        "--bound", type=int, default=BOUND_K_DEFAULT, metavar="K", help="error bound 2^-K, 1..16 (default %(default)s)"
    )
    parser.add_argument("--packing", default=PACKINGS[0], help=f"{' or '.join(PACKINGS)} (default %(default)s)")
    parser.add_argument("--control", type=Path, metavar="PATH", help="listen here for counters, flows, stop")
    parser.add_argument("--flow-table", type=Path, metavar="FILE", help="keep the flows here, for a restart")
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="serve Prometheus metrics at http://127.0.0.1:N/metrics"
    )
    parser.add_argument("--ready-fd", type=int, metavar="N", help="write 'ready' to this descriptor when forwarding")
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
        control=words.control,
        flow_table=words.flow_table,
        metrics_port=words.metrics_port,
        ready_fd=words.ready_fd,
    )


def run(settings: NicSettings) -> int:
    """Forward frames until told to stop; return the exit code.

    Raises:
        NetOffloadError: a device or the control socket cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        host = open_tap(settings.host_name, settings.host_netns)
        stack.callback(os.close, host)
        wire, mtu = open_packet(settings.wire, settings.wire_netns)
        stack.enter_context(wire)
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        stack.callback(os.close, event)
        engine = TransmitSettings(
            codec_id=int(get(settings.codec).codec_id),
            bound_k=settings.bound_k,
            mtu=mtu,
            per_segment=int(settings.packing == "per-segment"),
        )
        compile_loop()
        port = make_port(*open_tables(settings.flow_table))
        handlers = make_handlers(settings, port, event)
        if settings.control is not None:
            stack.enter_context(ControlServer(settings.control, handlers))
        if settings.metrics_port is not None:
            stack.enter_context(serve_metrics(settings.metrics_port, lambda: str(handlers["metrics"]({})["metrics"])))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.eventfd_write(event, 1))
        outcome: list[int] = []
        thread = threading.Thread(
            target=lambda: outcome.append(serve(host, wire.fileno(), event, engine, port)), name="loop"
        )
        thread.start()
        stack.callback(_stop, thread, event)  # before any device is closed, whatever happens here
        if settings.ready_fd is not None:
            _say_ready(settings.ready_fd)
        thread.join()
    if outcome == [HOST_GONE]:
        print(f"netoffload: {settings.host} was deleted", file=sys.stderr)
        return EXIT_HOST_GONE
    return 0


def _say_ready(ready_fd: int) -> None:
    try:
        os.write(ready_fd, b"ready\n")
        os.close(ready_fd)
    except OSError as error:
        raise UsageError(
            f"nobody can be told on descriptor {ready_fd} that the NIC is ready: {error.strerror}"
        ) from error


def _stop(thread: threading.Thread, event: int) -> None:
    os.eventfd_write(event, 1)
    thread.join()


def compile_loop() -> None:
    """Compile the loop, or load it from the cache, by running it on no devices with the stop already given."""
    event = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        serve(
            -1, -1, event, TransmitSettings(codec_id=0, bound_k=0, mtu=0, per_segment=0), make_port(*open_tables(None))
        )
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
