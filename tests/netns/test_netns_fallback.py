"""Tagged flows without the peer's NIC, and without a way for blocks."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.devices.netns import in_netns
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.journal import Journal
from netoffload.netlink import Namespace, netns_path
from netoffload.wire.encapsulation import UDP_PORT
from tests.netns.programs.both_ways import TAGGED, carried, carried_to, mark, socket_on
from tests.shared.beds import built, counters, flows
from tests.soak.damage import nft_path, run_nft
from tests.soak.events import ip

HOST_ADDRESS, DEVICE = "10.98.1.77", "third0"
VALUES = np.random.default_rng(3).normal(0, 2e-3, 500_000).astype(np.float32)
NO_BLOCKS = f"""
add table bridge strict
add chain bridge strict f {{ type filter hook forward priority 0; }}
add rule bridge strict f ip protocol 108 counter drop
add rule bridge strict f udp dport {UDP_PORT} counter drop
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with built() as made:
        yield made


@pytest.fixture(scope="module")
def host_netns(bed: Testbed) -> str:
    """The namespace of a host at the switch that is no node and has no NIC; it goes with the testbed."""
    name = f"no-{bed.plan.run_id}-third"
    Journal(bed.plan.state_dir).append("netns", name=name)
    with Namespace.create(name), Namespace.open(bed.plan.switch_netns) as switch:
        switch.add_veth("third1", DEVICE, name, bed.plan.settings.mtu)
        switch.set_up("third1", bed.plan.bridge)
    ip("-n", name, "link", "set", DEVICE, "up")
    ip("-n", name, "addr", "add", f"{HOST_ADDRESS}/24", "dev", DEVICE)
    return name


@pytest.mark.parametrize("is_back", [False, True])
def test_a_peer_without_a_nic_gets_every_octet(bed: Testbed, host_netns: str, is_back: bool) -> None:
    before = counters(bed)
    with in_netns(str(netns_path(host_netns))):
        listening = socket.create_server((HOST_ADDRESS, 5001))
    with listening, socket_on(bed.plan.nodes[0], TAGGED) as near:
        mark(listening, TAGGED)
        near.connect((HOST_ADDRESS, 5001))
        with listening.accept()[0] as far:
            sender, receiver = (far, near) if is_back else (near, far)
            assert carried(sender, receiver, VALUES.tobytes()) == VALUES.tobytes()
    counted = counters(bed)
    assert counted["tx_blocks"] == before["tx_blocks"]
    if not is_back:
        assert counted["bypass_peer"] > before["bypass_peer"]
        assert [flow["peer_decodes"] for flow in flows(bed) if flow["dst"] == HOST_ADDRESS] == [False]


@pytest.mark.skipif(nft_path() is None, reason="nft is not installed: the switch cannot drop blocks")
def test_a_network_that_drops_blocks_puts_the_flow_on_probation(bed: Testbed) -> None:
    run_nft(bed.plan.switch_netns, NO_BLOCKS)
    got, _ = carried_to(bed, 5002, VALUES.tobytes())
    assert got == get("inceptionn").round_trip(VALUES, 10).tobytes()
    counted = counters(bed)
    assert (counted["tx_fallbacks"], counted["tx_blocks"] > 0) == (1, True)
    assert [flow["on_probation"] for flow in flows(bed) if flow["dport"] == 5002] == [True]
