"""How the loop treats frames that are on their way when it has to stop; Unix sockets replace the devices."""

import threading
import time

import numba
import pytest

from netoffload.engine.counters import Counter
from netoffload.nic_options.faults import FaultSettings
from netoffload.wire.vnet import VNET_LEN
from netoffload_daemon.__main__ import compile_loop
from netoffload_daemon.loop import STOPPED
from tests.daemon.port_bench import Bench
from tests.engine.nic_pair import Nic

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="the loop calls libc from compiled code")

FRAMES = [bytes(VNET_LEN) + bytes([number]) * 60 for number in range(6)]
ENGINE = Nic(in_udp=True, bundles=True).settings


class Draining(Bench):
    """A host with frames to send, and a stop that has been given already."""

    def __init__(self, faults: FaultSettings) -> None:
        super().__init__(ENGINE, faults, is_stopped=True)
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


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The loop is compiled before anything waits for it."""
    compile_loop()


def test_a_full_wire_is_waited_for() -> None:
    bench = Draining(FaultSettings())
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
    bench.close()


def test_held_frames_are_waited_for() -> None:
    bench = Draining(FaultSettings(delay_ns=20_000_000))
    assert bench.serve() == STOPPED
    assert [bench.far_end.recv(2000)[VNET_LEN:] for _ in FRAMES] == [frame[VNET_LEN:] for frame in FRAMES]
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == 0
    bench.close()


@pytest.mark.slow
def test_a_wire_that_stays_full_costs_the_frames_and_they_are_counted() -> None:
    bench = Draining(FaultSettings())
    bench.fill_wire()
    assert bench.serve() == STOPPED
    assert bench.port.nic.counters[Counter.DROP_WIRE_FULL] == len(FRAMES)
    assert bench.port.nic.counters[Counter.TX_WIRE_FRAMES] == 0
    bench.close()
