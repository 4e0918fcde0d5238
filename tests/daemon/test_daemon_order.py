"""The loop against the engine alone: with any batches, the same octets in order. Unix sockets replace the devices."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import numba
import numpy as np
import pytest

from netoffload.engine.counters import Counter
from netoffload.engine.nic import REBUILT_BATCH
from netoffload.nic_options.faults import FaultSettings
from netoffload_daemon.__main__ import compile_loop
from netoffload_daemon.loop import STOPPED
from tests.daemon.port_bench import Bench
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic, connect

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the loop calls libc from compiled code")

ISN = 1000
FRAME_MAX = 70_000
QUEUED = 10
"""Datagrams that a Unix socket holds for its reader (net.unix.max_dgram_qlen)."""


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_loop()


class Running(Bench):
    """A port, its NIC without devices, and the NIC at the far end."""

    def __init__(self, faults: FaultSettings | None = None, **engine: int) -> None:
        chosen = {"mtu": 1500, "per_segment": 0, "in_udp": 0, "bundles": 0} | engine
        per_segment, in_udp, bundles = (bool(chosen[name]) for name in ("per_segment", "in_udp", "bundles"))
        self.nic = Nic(10, chosen["mtu"], per_segment, in_udp, bundles)
        super().__init__(self.nic.settings, faults or FaultSettings(), is_stopped=False)
        for end in (self.hosts_end, self.far_end):
            end.settimeout(20)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self.peer = Nic(in_udp=in_udp)
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


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def make(faults: FaultSettings | None = None, **engine: int) -> Running:
        made.append(Running(faults, **engine))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


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


def test_a_nic_that_stood_still_reads_its_host_before_it_sends_lent_octets(make_bench: Callable[..., Running]) -> None:
    bench = make_bench()
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
        {"in_udp": 1},
        {"in_udp": 1, "bundles": 1},
        {"in_udp": 1, "bundles": 1, "mtu": 9000},
        {"per_segment": 1},
        {"mtu": 576},
    ],
    ids=str,
)
def test_host_to_wire(make_bench: Callable[..., Running], engine: dict[str, int]) -> None:
    bench = make_bench(**engine)
    frames = segments([16000, 0, 3, 16000, 0, 0, 5000, 16000, 16000, 0, 362, 16000, 16000, 16000, 0] * 3)
    wanted = [sent for frame in frames for sent in bench.nic.from_host(frame)]
    assert bench.run(bench.hosts_end, bench.far_end, frames, len(wanted)) == wanted


def test_wire_to_host(make_bench: Callable[..., Running]) -> None:
    bench = make_bench()
    bench.port.nic.flows[:] = bench.peer.table
    lengths = [200] * (REBUILT_BATCH + 2) + [0] + [200] * (REBUILT_BATCH - 1) + [0, 0, 200]
    frames = [sent for frame in segments(lengths * 3) for sent in bench.nic.from_host(frame)]
    assert len(frames) == 3 * len(lengths)  # one block each: a batch may end behind any of them
    wanted = [delivered for frame in frames for delivered in bench.peer.from_wire([frame])]
    assert bench.run(bench.far_end, bench.hosts_end, frames, len(wanted)) == wanted


@pytest.mark.parametrize("faults", [FaultSettings(loss=1.0), FaultSettings(delay_ns=50_000_000)], ids=["loss", "delay"])
def test_the_fault_stage_does_not_fill_the_line(make_bench: Callable[..., Running], faults: FaultSettings) -> None:
    bench = make_bench(faults)
    frames = segments([16000] * 30)
    whole = Nic()
    connect(whole, Nic(), ISN)
    expected = 0 if faults.loss else sum(len(whole.from_host(frame)) for frame in frames)
    bench.run(bench.hosts_end, bench.far_end, frames, expected)
    assert bench.port.nic.counters[Counter.TX_HOST_FRAMES] == len(frames)
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == 0
