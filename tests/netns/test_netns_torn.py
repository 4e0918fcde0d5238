"""No value of a tagged stream ever mixes two forms, whatever TCP does about lost frames.

The switch loses, doubles and reorders frames, outside of both NICs, and wires carry single frames.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from netoffload.control import request
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from tests.soak import (
    Damage,
    DamagedSwitch,
    Direction,
    FlowOptions,
    Found,
    Values,
    add_ipv6,
    carry,
    nft_path,
    set_segmentation,
    set_window_scaling,
)
from tests.soak.events import ethtool_path

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing can be lost at the switch"),
    pytest.mark.skipif(ethtool_path() is None, reason="ethtool is not installed: frames would be lost by the 44"),
]

WHOLE = Direction(octets=3_000_000)
CUT = replace(WHOLE, write_octets=(4095, 4095, 1), octets=3_000_002)
LOSS = Damage(loss=0.01)
MIX = Damage(loss=0.02, duplication=0.02, reordering=0.05)
TIMEOUT_S = 60


def streams(
    tmp_path: Path,
    run_id: str,
    direction: Direction,
    damage: Damage,
    codec: str = "inceptionn",
    scaling: bool = True,
    small: bool = False,
) -> list[Found]:
    """Carry three connections, one of them over IPv6, with data both ways, and say what arrived."""
    settings = TestbedSettings(2, nic=NicSettings(codec))
    with Testbed(make_plan(settings, run_id), check_rate=False) as bed, DamagedSwitch(bed.plan) as switch:
        assert add_ipv6(bed)
        for node in bed.plan.nodes:
            set_segmentation(node, False)
            set_window_scaling(node, scaling)
        switch.set_damage(damage)
        flows = [
            FlowOptions(
                listener=1,
                connector=0,
                directions=(replace(direction, rotation=number), replace(direction, rotation=1000 + number)),
                is_ipv6=number == 2,
                seed=number,
                maxseg=1001 if small else 0,
                rcvbuf_octets=6001 if small else 0,
            )
            for number in range(3)
        ]
        found = carry(bed, flows, Values(tmp_path, codec, 10, seed=3), TIMEOUT_S, port=7100)
        counters = [request(str(node.control_path), "counters")["counters"] for node in bed.plan.nodes]
        assert sum(counted["tx_raw_octets"] for counted in counters) > 0.5 * sum(each.sent_octets for each in found)
        if damage.reordering:
            assert switch.held_frames > 100
    assert len(found) == 6
    return found


def wrong(found: list[Found]) -> list[object]:
    """What is wrong in each stream that has something wrong."""
    return [(each.wrong, each.tail_wrong, each.examples) for each in found if each.wrong or each.tail_wrong]


@pytest.mark.parametrize(
    ("small", "scaling"), [(False, True), (True, True), (False, False)], ids=["defaults", "small buffers", "no scaling"]
)
def test_whole_floats_over_a_lossy_switch_are_the_round_trip(
    tmp_path: Path, run_id: str, small: bool, scaling: bool
) -> None:
    found = streams(tmp_path, run_id, WHOLE, LOSS, scaling=scaling, small=small)
    assert wrong(found) == []
    assert [each.exact_after_begun for each in found] == [0] * 6


def test_writes_that_cut_floats_leave_no_float_in_two_forms(tmp_path: Path, run_id: str) -> None:
    assert wrong(streams(tmp_path, run_id, CUT, LOSS)) == []


def test_floats_at_the_edge_of_two_codes_are_one_or_the_other(tmp_path: Path, run_id: str) -> None:
    edge = replace(CUT, distribution="edge")
    assert wrong(streams(tmp_path, run_id, edge, MIX, codec="bounded")) == []


def test_small_buffers_and_everything_that_happens_to_frames(tmp_path: Path, run_id: str) -> None:
    edge = replace(WHOLE, distribution="edge")
    found = streams(tmp_path, run_id, edge, MIX, codec="bounded", small=True)
    assert wrong(found) == []
    assert [each.exact_after_begun for each in found] == [0] * 6
