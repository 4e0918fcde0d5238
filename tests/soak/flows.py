"""Running connections of a soak, each with two ``stream_end`` programs, and their findings."""

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from netoffload.errors import RunError
from netoffload.lab.testbed import stream_end
from netoffload.lab.testbed.build import Testbed
from tests.soak.options import Direction, FlowOptions, Values

ENDPOINT: Final = Path(stream_end.__file__)
PIPE_OCTETS: Final = 65536


@dataclass(frozen=True)
class Found:
    """What one direction of a flow carried, as the receiving endpoint judged it; see ``stream_end``."""

    options: Direction
    sent_octets: int
    received_octets: int
    values: int
    rounded: int
    exact: int
    exact_after_begun: int
    wrong: int
    tail_wrong: int
    elapsed_s: float
    """From the open connection to the end of the stream."""
    examples: list[tuple[int, str, str, str]]
    """Wrong values: index, and the bits that were sent, that arrived, and that the codec makes."""


class Flow:
    """Two running endpoints; a context manager that ends them."""

    def __init__(self, bed: Testbed, options: FlowOptions, values: Values, port: int) -> None:
        """Start the listener; the connector starts when it listens."""
        self.options = options
        self.error: str | None = None
        self.moved_s = time.monotonic()
        self.sent_octets = self.received_octets = 0
        self._bed, self._values, self._port = bed, values, port
        self._processes: list[subprocess.Popen[bytes]] = []
        self._partial: dict[int, bytes] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._progress: dict[int, list[int]] = {}
        self._selector = selectors.DefaultSelector()
        self._start("listen")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._selector.close()

    @property
    def is_done(self) -> bool:
        return len(self._said) == 2 or self.error is not None

    @property
    def wrong(self) -> int:
        """Wrong values that both ends have reported so far."""
        return sum(progress[3] for progress in self._progress.values())

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when :meth:`read` has something to do."""
        return [key.fd for key in self._selector.get_map().values()]

    def read(self, timeout_s: float = 0) -> None:
        """Read the endpoints' lines; wait up to ``timeout_s`` for the first one."""
        for key, _ in self._selector.select(timeout_s):
            index = int(key.data)
            octets = os.read(key.fd, PIPE_OCTETS)
            if not octets:
                self._selector.unregister(key.fd)
                if index not in self._said:
                    self.error = self.error or f"endpoint {index} ended without a result"
            lines = (self._partial.get(index, b"") + octets).split(b"\n")
            self._partial[index] = lines.pop()
            for line in lines:
                self._hear(index, json.loads(line))

    def stop(self) -> None:
        """Let both writers end their streams."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.write(b"stop\n")
                    process.stdin.flush()

    def finish(self, timeout_s: float) -> list[Found]:
        deadline = time.monotonic() + timeout_s
        while not self.is_done:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"the flow {self.told()} did not end within {timeout_s:g} s")
            self.read(remaining_s)
        return self.found()

    def found(self) -> list[Found]:
        """Return the results that endpoints have reported, by direction."""
        results = {index: said["result"] for index, said in self._said.items()}
        found = []
        for direction, (writer, reader) in zip(self.options.directions, ((1, 0), (0, 1)), strict=True):
            if reader in results:
                judged = {name: result for name, result in results[reader].items() if name in Found.__annotations__}
                sent_octets = results[writer]["sent_octets"] if writer in results else self._sent(writer)
                found.append(Found(**judged | {"options": direction, "sent_octets": sent_octets}))
        return found

    def told(self) -> str:
        """Return the options as JSON, for messages from which the flow can be repeated."""
        return json.dumps(asdict(self.options))

    def _sent(self, index: int) -> int:
        return self._progress.get(index, [0])[0]

    def _hear(self, index: int, said: dict[str, Any]) -> None:
        if "ready" in said:
            self.moved_s = time.monotonic()
            self._start("connect")
        elif "progress" in said:
            if said["progress"] != self._progress.get(index):
                self.moved_s = time.monotonic()
            self._progress[index] = said["progress"]
            self.sent_octets = sum(progress[0] for progress in self._progress.values())
            self.received_octets = sum(progress[1] for progress in self._progress.values())
        else:
            self._said[index] = said
            if "error" in said:
                self.error = self.error or str(said["error"])

    def _start(self, role: str) -> None:
        options, index = self.options, len(self._processes)
        node = (options.listener, options.connector)[index]
        words = {
            "role": role,
            "address": self._address(options.listener),
            "port": self._port,
            "md5_peer": self._signature(self._address((options.connector, options.listener)[index])),
            "send": self._send_words(options.directions[1 - index], options.seed + index),
            "receive": self._receive_words(options.directions[index], options.seed + 2 + index),
            **{name: getattr(options, name) for name in ("tos", "rcvbuf_octets", "sndbuf_octets", "maxseg", "nodelay")},
        }
        argv = [sys.executable, "-I", str(ENDPOINT), json.dumps(words)]
        process = self._bed.popen(
            node, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        self._processes.append(process)
        assert process.stdout is not None
        self._selector.register(process.stdout.fileno(), selectors.EVENT_READ, index)

    def _address(self, node: int) -> str:
        return ipv6_address(node) if self.options.is_ipv6 else self._bed.plan.nodes[node].address

    def _signature(self, peer: str) -> str:
        """Return ``struct tcp_md5sig`` (linux/tcp.h) for an IPv4 peer in hexadecimal, or nothing without a key."""
        key = self.options.md5_key.encode()
        if not key:
            return ""
        sockaddr = struct.pack("=HH4s120x", socket.AF_INET, 0, socket.inet_aton(peer))
        return (sockaddr + struct.pack("=BBHi80s", 0, 0, len(key), 0, key)).hex()

    def _send_words(self, direction: Direction, seed: int) -> dict[str, Any]:
        names = ("rotation", "octets", "write_octets", "rate_octets_per_s", "more", "cork")
        words = {name: getattr(direction, name) for name in names}
        sent = str(self._values.sent(direction.distribution))
        return {**words, "sent": sent, "whole": direction.is_whole, "seed": seed}

    def _receive_words(self, direction: Direction, seed: int) -> dict[str, Any]:
        words = {name: getattr(direction, name) for name in ("rotation", "read_octets", "pause_share", "pause_s")}
        paths = {name: str(getattr(self._values, name)(direction.distribution)) for name in ("sent", "rounded")}
        return {**words, **paths, "seed": seed}


def await_progress(flow: Flow, octets: int, timeout_s: float) -> None:
    """Wait until a flow's readers have received ``octets`` together."""
    deadline = time.monotonic() + timeout_s
    while flow.received_octets < octets:
        remaining_s = deadline - time.monotonic()
        if flow.is_done or remaining_s <= 0:
            why = flow.error or ("ended" if flow.is_done else f"moved too little in {timeout_s:g} s")
            raise RunError(f"a flow {why}, {flow.received_octets} of {octets} octets arrived: {flow.told()}")
        flow.read(remaining_s)


def wait_for_any(flows: Iterable[Flow], timeout_s: float) -> None:
    """Wait until an endpoint of one of the flows writes a line, and read it."""
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            for descriptor in flow.descriptors():
                selector.register(descriptor, selectors.EVENT_READ, flow)
        for key, _ in selector.select(max(timeout_s, 0)):
            key.data.read()


def ipv6_address(node: int) -> str:
    """Return the IPv6 address that a soak gives a node."""
    return f"fd98::{node + 1}"


def carry(bed: Testbed, flows: Sequence[FlowOptions], values: Values, timeout_s: float, port: int) -> list[Found]:
    """Run connections side by side to their ends and return what arrived, for each direction that carried anything.

    The first one listens at ``port``, the others at the next ones; the time limit is of all together.
    """
    found: list[Found] = []
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(Flow(bed, options, values, port + index)) for index, options in enumerate(flows)]
        deadline = time.monotonic() + timeout_s
        while waiting := [flow for flow in running if not flow.is_done]:
            if time.monotonic() > deadline:
                raise RunError(f"a flow did not end within {timeout_s:g} s: {waiting[0].told()}")
            wait_for_any(waiting, deadline - time.monotonic())
        for flow in running:
            carried = [each for each in flow.found() if each.sent_octets]
            if flow.error is not None:
                raise RunError(f"a flow broke ({flow.error}): {flow.told()}")
            if any(each.received_octets != each.sent_octets for each in carried):
                raise RunError(f"a flow arrived short: {flow.told()}")
            found += carried
    return found
