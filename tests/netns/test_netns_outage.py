"""A path fails for seconds, at either NIC or between them: the flow compresses again when it is back."""

import select
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload.lab.testbed import NicSettings, Testbed
from tests.shared.beds import built, counters
from tests.shared.quick_cases import by_day
from tests.soak.events import kill_nic, link_down, nic_stopped
from tests.soak.flows import Flow, await_progress
from tests.soak.options import Direction, FlowOptions, Values

pytestmark = pytest.mark.timeout(130)  # these wait, so they begin early

RATE_OCTETS_PER_S = 3_000_000
BEFORE_OCTETS = 2_000_000
AFTER_OCTETS = 15_000_000
"""Five seconds of traffic: a flow may go plain for half of one."""
COMPRESSED_MIN = 0.9
AWAY_S = 1.0
"""Before a killed NIC starts again, which takes a second more."""
OPTIONS = FlowOptions(
    listener=1,
    connector=0,
    directions=(Direction(octets=1 << 40, rate_octets_per_s=RATE_OCTETS_PER_S), Direction(octets=0)),
    sndbuf_octets=200_000,  # what waits in the socket during the event is little
)


def attend(flow: Flow, seconds: float) -> None:
    """Let an outage last so long, and hear what the flow's ends say meanwhile."""
    deadline = time.monotonic() + seconds
    while (remaining_s := deadline - time.monotonic()) > 0:
        select.select(flow.descriptors(), [], [], remaining_s)
        flow.read()


def restart_receiving_nic(bed: Testbed, flow: Flow) -> None:
    kill_nic(bed, bed.plan.nodes[1])
    attend(flow, AWAY_S)
    bed.restart_nic(1)


def restart_both_nics(bed: Testbed, flow: Flow) -> None:
    for node in bed.plan.nodes:
        kill_nic(bed, node)
    attend(flow, AWAY_S)
    for node in bed.plan.nodes:
        bed.restart_nic(node.index)


def take_the_link_down(bed: Testbed, flow: Flow) -> None:
    with link_down(bed, bed.plan.nodes[1]):
        attend(flow, 3)


def stop_the_receiving_nic(bed: Testbed, flow: Flow) -> None:
    with nic_stopped(bed, bed.plan.nodes[1]):
        attend(flow, 5)


OUTAGES: list[tuple[Callable[[Testbed, Flow], None], str]] = [
    (restart_receiving_nic, "bounded"),
    (restart_both_nics, "packed"),
    (take_the_link_down, "inceptionn"),
    (stop_the_receiving_nic, "packed"),
]


@pytest.mark.parametrize(("outage", "codec"), by_day(OUTAGES, [OUTAGES[1], OUTAGES[2]]))
def test_nine_tenths_of_what_follows_an_outage_are_compressed(
    tmp_path: Path, outage: Callable[[Testbed, Flow], None], codec: str
) -> None:
    with built(nic=NicSettings(codec=codec)) as bed:
        values = Values(tmp_path, codec, 10, seed=1)
        with Flow(bed, OPTIONS, values, port=7200) as flow:
            await_progress(flow, BEFORE_OCTETS, timeout_s=20)
            assert counters(bed)["tx_raw_octets"] > BEFORE_OCTETS / 2
            outage(bed, flow)
            flow.read()
            received, compressed = flow.received_octets, counters(bed)["tx_raw_octets"]
            await_progress(flow, received + AFTER_OCTETS, timeout_s=60)
            share = (counters(bed)["tx_raw_octets"] - compressed) / (flow.received_octets - received)
            flow.stop()
            found = flow.finish(timeout_s=20)
    assert share > COMPRESSED_MIN
    assert [(each.wrong, each.tail_wrong, each.exact_after_begun) for each in found] == [(0, 0, 0)] * 2
    assert found[0].received_octets == found[0].sent_octets
