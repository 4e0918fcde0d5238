"""The trace's rings and file, and what the loop writes into them; sockets replace the devices (more: tests/netns)."""

import os
import resource
import socket
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from scapy.utils import RawPcapNgReader

from netoffload.engine.counters import Counter, make_counters
from netoffload.engine.nic import make_settings
from netoffload.wire.vnet import VNET_LEN
from netoffload_daemon.loop import serve
from netoffload_daemon.port import RX, TX, make_port
from netoffload_daemon.port import make_settings as make_loop_settings
from netoffload_daemon.trace import INBOUND, OUTBOUND, SIDES, TraceFile, TraceRing, make_ring, record, with_traced

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the ring is written by compiled code")

ROOM_OCTETS = 1 << 20
FRAME = np.arange(VNET_LEN + 60_001, dtype=np.uint64).astype(np.uint8)


def write(ring: TraceRing, frames: int) -> None:
    for number in range(frames):
        record(ring, 0, INBOUND, FRAME.ctypes.data, FRAME.size, number)


def counted(rings: tuple[TraceRing, ...]) -> tuple[int, int]:
    summed = with_traced(make_counters(), rings)
    return int(summed[Counter.TRACE_FRAMES]), int(summed[Counter.TRACE_MISSED])


def test_both_directions_are_added_up_and_a_full_ring_counts(tmp_path: Path) -> None:
    rings = (make_ring(1 << 16), make_ring(1 << 16))
    write(rings[0], 3)
    write(rings[1], 6)  # 256 KiB are room for four
    assert counted(rings) == (7, 2)
    path = tmp_path / "frames.pcapng"
    with TraceFile(path, ("a", "b"), rings):
        pass
    with RawPcapNgReader(str(path)) as reader:
        assert [octets for octets, _ in reader] == [FRAME[VNET_LEN:].tobytes()] * 7


@pytest.mark.parametrize("frames_before", [0, 5])
def test_a_file_that_takes_no_more_ends_whole_and_the_rest_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frames_before: int
) -> None:
    path = tmp_path / "frames.pcapng"
    rings = (make_ring(1 << 19), make_ring(1 << 19))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_OCTETS, hard))
    try:
        with TraceFile(path, ("a", "b"), rings):
            write(rings[0], frames_before)
            write(rings[1], 25)  # more than there is room for
            deadline = time.monotonic() + 10
            while counted(rings)[1] == 0 and time.monotonic() < deadline:
                time.sleep(0.005)
            write(rings[0], 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with RawPcapNgReader(str(path)) as reader:
        whole = [octets for octets, _ in reader]
    assert whole == [FRAME[VNET_LEN:].tobytes()] * len(whole)
    assert counted(rings) == (len(whole), frames_before + 27 - len(whole))
    assert len(whole) == 17  # as many as 1 MiB has room for
    said = capsys.readouterr().err
    assert (said.count("\n"), f"trace {path} ends here" in said) == (1, True)


def sides_and_ways(ring: TraceRing) -> list[tuple[int, int]]:
    """Return interface and direction of every block in a ring."""
    blocks, at = [], 0
    while ring.words[at]:
        end = at + int(ring.words[at + 1]) // 4
        blocks.append((int(ring.words[at + 2]), int(ring.words[end - 3])))
        at = end
    return blocks


@pytest.mark.parametrize("side", SIDES)
def test_the_loop_traces_both_directions_on_the_sides_that_are_chosen(side: str) -> None:
    host, hosts_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    wire, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    event = os.eventfd(1)
    with host, hosts_end, wire, far_end:
        host.setblocking(False)
        wire.setblocking(False)
        port = make_port(make_settings(), traced=True, devices=(host.fileno(), wire.fileno()))
        for end in (hosts_end, far_end):
            end.send(bytes(VNET_LEN + 60))
        serve(event, TX | RX, make_loop_settings(trace_sides=SIDES[side]), port)
    os.close(event)
    host_side, wire_side = side != "wire", side != "host"
    assert sides_and_ways(port.tx_trace) == [(0, INBOUND)] * host_side + [(1, OUTBOUND)] * wire_side
    assert sides_and_ways(port.rx_trace) == [(1, INBOUND)] * wire_side + [(0, OUTBOUND)] * host_side
