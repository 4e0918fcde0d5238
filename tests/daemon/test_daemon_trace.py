"""The trace's rings and file (what the loop writes into them: ``test_daemon_loop``; more: tests/netns)."""

import resource
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from scapy.utils import RawPcapNgReader

from netoffload.engine.counters import Counter, make_counters
from netoffload.wire.vnet import VNET_LEN
from netoffload_daemon.trace import INBOUND, TraceFile, TraceRing, make_ring, record, with_traced

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
