"""Tagged flows without the peer's NIC, without a way for blocks, and after a kill of their own NIC."""

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.compiled.arrays import Float32Array, Uint32Array
from netoffload.devices.packet import open_packet
from netoffload.devices.tap import open_tap
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.plan import NodePlan
from netoffload.netlink import netns_path
from tests.shared.beds import asked, built, counters, flows, wait_for_end_of_nic
from tests.shared.transfers import transfer
from tests.soak.events import kill_nic, start_nic

VALUES = np.random.default_rng(3).normal(0, 2e-3, 500_000).astype(np.float32)


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with built() as made:
        yield made


def sent(bed: Testbed, sender: int, receiver: int, values: Float32Array = VALUES) -> Uint32Array:
    """Send values over a tagged connection and return what arrived, as bits."""
    got = transfer(bed, values.tobytes(), [(0x28, values.nbytes)], nodes=(sender, receiver))
    return np.frombuffer(got, np.uint32)


@contextlib.contextmanager
def forwarding(left: int, right: int, passes: Callable[[bytes], bool] = lambda _frame: True) -> Iterator[None]:
    """Forward frames between two device descriptors, both ways, if they may pass."""
    stopped = threading.Event()

    def forward() -> None:
        while not stopped.is_set():
            for ready in select.select([left, right], [], [], 0.1)[0]:
                with contextlib.suppress(BlockingIOError):
                    frame = os.read(ready, 70_000)
                    if passes(frame):
                        os.write(left if ready == right else right, frame)

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextlib.contextmanager
def dumb_nic(node: NodePlan) -> Iterator[None]:
    """In place of the node's NIC, a card that forwards frames and knows nothing."""
    host, is_new = open_tap(node.device, str(netns_path(node.netns)))
    assert not is_new
    try:
        with (
            open_packet(node.wire_device, str(netns_path(node.wire_netns)))[0] as wire,
            forwarding(host, wire.fileno()),
        ):
            yield
    finally:
        os.close(host)


@contextlib.contextmanager
def switch_without_blocks(bed: Testbed) -> Iterator[None]:
    """In place of the switch between n0 and n1, one that lets neither IPComp nor UDP pass."""
    switch = bed.plan.switch_netns
    ports = [bed.plan.nodes[index].port for index in (0, 1)]
    for port in ports:
        subprocess.run(["ip", "-n", switch, "link", "set", port, "nomaster"], check=True)
    with (
        open_packet(ports[0], str(netns_path(switch)))[0] as left,
        open_packet(ports[1], str(netns_path(switch)))[0] as right,
        forwarding(
            left.fileno(), right.fileno(), lambda frame: frame[22:24] != b"\x08\x00" or frame[33] not in (17, 108)
        ),
    ):
        yield


@pytest.mark.parametrize(("sender", "receiver"), [(0, 1), (1, 0)])
def test_a_peer_without_a_nic_gets_every_octet(bed: Testbed, sender: int, receiver: int) -> None:
    assert asked(bed, 1, "stop") == {}
    wait_for_end_of_nic(bed, 1)  # its TAP stays
    with dumb_nic(bed.plan.nodes[1]):
        assert np.array_equal(sent(bed, sender, receiver), VALUES.view(np.uint32))
    counted = counters(bed)
    assert counted["tx_blocks"] == 0
    if sender == 0:
        assert counted["bypass_peer"] > 0
        assert [flow["peer_decodes"] for flow in flows(bed)] == [False]


def test_a_network_that_drops_blocks_puts_the_flow_on_probation(bed: Testbed) -> None:
    rounded = get("inceptionn").round_trip(VALUES, 10)
    with switch_without_blocks(bed):
        assert np.array_equal(sent(bed, 0, 1), rounded.view(np.uint32))
    counted = counters(bed)
    assert (counted["tx_fallbacks"], counted["tx_blocks"] > 0) == (1, True)
    assert flows(bed)[0]["on_probation"]


def test_a_nic_killed_in_the_middle_goes_on_compressing() -> None:
    values = np.random.default_rng(4).normal(0, 2e-3, 6_000_000).astype(np.float32)
    with built(rate_bps=50_000_000) as bed:
        killer = threading.Thread(target=lambda: kill_after_8_mb(bed, 0))
        killer.start()
        got = sent(bed, 0, 1, values)
        killer.join()
        counted = counters(bed)
    assert np.array_equal(got, get("inceptionn").round_trip(values, 10).view(np.uint32))
    assert counted["tx_raw_octets"] > 0
    assert counted["bypass_unknown_flow"] == 0


def kill_after_8_mb(bed: Testbed, index: int) -> None:
    while counters(bed, index)["tx_raw_octets"] < 8_000_000:
        pass
    kill_nic(bed, bed.plan.nodes[index])  # at once: a restart would load its kernels first
    start_nic(bed, bed.plan.nodes[index])
