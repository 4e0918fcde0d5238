"""The loop against the engine alone, on every side that is traced, and when it has to stop.

Unix sockets replace the devices.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest

from netoffload.engine.counters import Counter
from netoffload.engine.nic import REBUILT_BATCH, make_settings
from netoffload.engine.state import EngineSettings
from netoffload.nic_options.faults import FaultSettings
from netoffload.wire.vnet import VNET_LEN
from netoffload_daemon.__main__ import compile_loop
from netoffload_daemon.loop import STOPPED, serve
from netoffload_daemon.port import RX, TX, make_port
from netoffload_daemon.port import make_settings as make_loop_settings
from netoffload_daemon.trace import INBOUND, OUTBOUND, SIDES, TraceRing
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic, connect

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the loop calls libc from compiled code")

ISN = 1000
FRAME_MAX = 70_000
QUEUED = 10
"""Datagrams that a Unix socket holds for its reader (net.unix.max_dgram_qlen)."""

FRAMES = [bytes(VNET_LEN) + bytes([number]) * 60 for number in range(6)]
BUNDLING = Nic(in_udp=True, bundles=True).settings


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The loop is compiled before anything waits for it."""
    compile_loop()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """What ends with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


class Bench:
    """A port whose host and wire have ends of ours; with ``is_stopped`` the stop has been given already."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        engine: EngineSettings,
        faults: FaultSettings | None = None,
        trace_sides: int = 0,
        is_stopped: bool = True,
    ) -> None:
        ends = [end for _ in range(2) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
        self.host, self.hosts_end, self.wire, self.far_end = (stack.enter_context(end) for end in ends)
        for end in (self.host, self.wire):
            end.setblocking(False)
        self.settings = make_loop_settings(faults, trace_sides=trace_sides)
        devices = self.host.fileno(), self.wire.fileno()
        self.port = make_port(engine, None, faults, trace_sides != 0, devices=devices)
        self.event = os.eventfd(is_stopped)
        stack.callback(os.close, self.event)

    def serve(self) -> int:
        return int(serve(self.event, TX | RX, self.settings, self.port))


class Running(Bench):
    """A port, its NIC without devices, and the NIC at the far end."""

    def __init__(self, stack: contextlib.ExitStack, faults: FaultSettings | None = None, **engine: Any) -> None:
        self.nic = Nic(**engine)
        super().__init__(stack, self.nic.settings, faults, is_stopped=False)
        for end in (self.hosts_end, self.far_end):
            end.settimeout(20)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self.peer = Nic(in_udp=engine.get("in_udp", False))
        connect(self.nic, self.peer)
        self.port.nic.flows[:] = self.nic.table

    def run(self, enter: socket.socket, leave: socket.socket, frames: list[bytes], expected: int) -> list[bytes]:
        """Send frames into one end while the loop runs, and return as many as are expected at the other."""
        waiting = list(frames)
        with contextlib.suppress(BlockingIOError):  # the socket holds less where net.core.wmem_max is small
            for frame in frames[:QUEUED]:
                os.write(enter.fileno(), frame)
                waiting.pop(0)
        results: list[int] = []
        loop = threading.Thread(target=lambda: results.append(self.serve()))
        feeder = threading.Thread(target=lambda: [enter.send(frame) for frame in waiting])
        loop.start()
        feeder.start()
        try:
            return [leave.recv(FRAME_MAX) for _ in range(expected)]
        finally:
            feeder.join()
            os.eventfd_write(self.event, 1)
            loop.join()
            assert results == [STOPPED]


def segments(lengths: list[int]) -> list[bytes]:
    """Return the host's frames with so many floats each, one behind the other; 0: a small frame that crosses."""
    rng = np.random.default_rng(len(lengths))
    frames, seq = [], ISN + 1
    for number, floats in enumerate(lengths):
        if floats == 0:
            frames.append(make_segment(bytes([number]) * 40, seq=number, tos=0, sport=7, needs_csum=False))
            continue
        payload = rng.normal(0, 0.02, floats).astype(np.float32).tobytes()
        frames.append(make_segment(payload, seq=seq, flags="PA"))
        seq += len(payload)
    return frames


def test_a_nic_that_stood_still_reads_its_host_before_it_sends_lent_octets(stack: contextlib.ExitStack) -> None:
    bench = Running(stack)
    octets = np.random.default_rng(3).normal(0, 0.02, 350).astype(np.float32).tobytes()
    bench.nic.from_host(make_segment(octets[:1002], seq=ISN + 1))
    bench.nic.from_wire([make_segment(seq=6, ack=ISN + 1 + 1000, to_client=True)])
    assert bench.nic.from_clock() == []
    bench.nic.now_ns += 10**8
    assert bench.nic.from_clock() == []
    bench.port.nic.flows[:] = bench.nic.table
    bench.port.nic.agenda[:] = bench.nic.state.agenda
    rest = make_segment(octets[1002:], seq=ISN + 1 + 1002)
    (block,) = bench.run(bench.hosts_end, bench.far_end, [rest], 1)
    assert bench.port.nic.counters[Counter.TX_LENT] == 0
    assert len(block) < len(rest)


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"in_udp": True},
        {"in_udp": True, "bundles": True},
        {"in_udp": True, "bundles": True, "mtu": 9000},
        {"per_segment": True},
        {"mtu": 576},
    ],
    ids=str,
)
def test_host_to_wire(stack: contextlib.ExitStack, engine: dict[str, Any]) -> None:
    bench = Running(stack, **engine)
    frames = segments([16000, 0, 3, 16000, 0, 0, 5000, 16000, 16000, 0, 362, 16000, 16000, 16000, 0] * 3)
    wanted = [sent for frame in frames for sent in bench.nic.from_host(frame)]
    assert bench.run(bench.hosts_end, bench.far_end, frames, len(wanted)) == wanted


def test_wire_to_host(stack: contextlib.ExitStack) -> None:
    bench = Running(stack)
    bench.port.nic.flows[:] = bench.peer.table
    lengths = [200] * (REBUILT_BATCH + 2) + [0] + [200] * (REBUILT_BATCH - 1) + [0, 0, 200]
    frames = [sent for frame in segments(lengths * 3) for sent in bench.nic.from_host(frame)]
    assert len(frames) == 3 * len(lengths)  # one block each: a batch may end behind any of them
    wanted = [delivered for frame in frames for delivered in bench.peer.from_wire([frame])]
    assert bench.run(bench.far_end, bench.hosts_end, frames, len(wanted)) == wanted


@pytest.mark.parametrize("faults", [FaultSettings(loss=1.0), FaultSettings(delay_ns=50_000_000)], ids=["loss", "delay"])
def test_the_fault_stage_does_not_fill_the_line(stack: contextlib.ExitStack, faults: FaultSettings) -> None:
    bench = Running(stack, faults)
    frames = segments([16000] * 30)
    whole = Nic()
    connect(whole, Nic(), ISN)
    expected = 0 if faults.loss else sum(len(whole.from_host(frame)) for frame in frames)
    bench.run(bench.hosts_end, bench.far_end, frames, expected)
    assert bench.port.nic.counters[Counter.TX_HOST_FRAMES] == len(frames)
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == 0


class Draining(Bench):
    """A host with frames to send, and a stop that has been given already."""

    def __init__(self, stack: contextlib.ExitStack, faults: FaultSettings | None = None) -> None:
        super().__init__(stack, BUNDLING, faults)
        for frame in FRAMES:
            self.hosts_end.send(frame)

    def fill_wire(self) -> int:
        """Put frames on the wire until it takes no more; return how many."""
        count = 0
        try:
            while True:
                self.wire.send(b"before")
                count += 1
        except BlockingIOError:
            return count


def test_a_full_wire_is_waited_for(stack: contextlib.ExitStack) -> None:
    bench = Draining(stack)
    before = bench.fill_wire()
    got: list[bytes] = []

    def read() -> None:
        deadline = time.monotonic() + 10
        while bench.port.nic.counters[Counter.TX_WIRE_WAITS] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        bench.far_end.settimeout(10)
        got.extend(bench.far_end.recv(2000) for _ in range(before + len(FRAMES)))

    reader = threading.Thread(target=read)
    reader.start()
    assert bench.serve() == STOPPED
    reader.join()
    assert got[before:] == FRAMES
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == 0


def test_held_frames_are_waited_for(stack: contextlib.ExitStack) -> None:
    bench = Draining(stack, FaultSettings(delay_ns=20_000_000))
    assert bench.serve() == STOPPED
    assert [bench.far_end.recv(2000)[VNET_LEN:] for _ in FRAMES] == [frame[VNET_LEN:] for frame in FRAMES]
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == 0


@pytest.mark.slow
def test_a_wire_that_stays_full_costs_the_frames_and_they_are_counted(stack: contextlib.ExitStack) -> None:
    bench = Draining(stack)
    bench.fill_wire()
    assert bench.serve() == STOPPED
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == len(FRAMES)
    assert bench.port.nic.counters[Counter.TX_WIRE_FRAMES] == 0


def sides_and_ways(ring: TraceRing) -> list[tuple[int, int]]:
    """Return interface and direction of every block in a ring."""
    blocks, at = [], 0
    while ring.words[at]:
        end = at + int(ring.words[at + 1]) // 4
        blocks.append((int(ring.words[at + 2]), int(ring.words[end - 3])))
        at = end
    return blocks


@pytest.mark.parametrize("side", SIDES)
def test_the_loop_traces_both_directions_on_the_sides_that_are_chosen(stack: contextlib.ExitStack, side: str) -> None:
    bench = Bench(stack, make_settings(), trace_sides=SIDES[side])
    for end in (bench.hosts_end, bench.far_end):
        end.send(bytes(VNET_LEN + 60))
    bench.serve()
    host_side, wire_side = side != "wire", side != "host"
    assert sides_and_ways(bench.port.tx_trace) == [(0, INBOUND)] * host_side + [(1, OUTBOUND)] * wire_side
    assert sides_and_ways(bench.port.rx_trace) == [(1, INBOUND)] * wire_side + [(0, OUTBOUND)] * host_side
