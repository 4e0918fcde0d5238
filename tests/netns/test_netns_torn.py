"""No value of a tagged stream ever mixes two forms, whatever TCP does about lost frames.

The switch loses, doubles and reorders frames, outside of both NICs, and wires carry single frames.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netoffload.lab.testbed import NicSettings
from tests.shared.beds import built, counters
from tests.shared.quick_cases import by_day
from tests.soak.damage import Damage, damaged_switch, nft_path
from tests.soak.events import add_ipv6, ethtool_path, set_segmentation, set_window_scaling
from tests.soak.flows import Found, carry
from tests.soak.options import Direction, FlowOptions, Values

pytestmark = [
    pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing can be lost at the switch"),
    pytest.mark.skipif(ethtool_path() is None, reason="ethtool is not installed: frames would be lost by the 44"),
]

WHOLE = Direction(octets=3_000_000)
CUT = replace(WHOLE, write_octets=(1, 9000, 1), octets=3_000_002)
LOSS = Damage(loss=0.01)
MIX = Damage(loss=0.02, duplication=0.02, reordering=0.05)
TIMEOUT_S = 60


def streams(
    tmp_path: Path,
    direction: Direction,
    damage: Damage,
    codec: str = "inceptionn",
    scaling: bool = True,
    small: bool = False,
) -> list[Found]:
    """Carry three connections, one of them over IPv6, with data both ways, and say what arrived."""
    with built(nic=NicSettings(codec)) as bed, damaged_switch(bed.plan) as switch:
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
        compressed_octets = sum(counters(bed, node)["tx_raw_octets"] for node in (0, 1))
        assert compressed_octets > 0.5 * sum(each.sent_octets for each in found)
        if damage.reordering:
            assert switch.held_frames > 100
    assert len(found) == 6
    return found


CASES: dict[str, tuple[Direction, Damage, dict[str, Any]]] = {
    "defaults": (WHOLE, LOSS, {}),
    "small buffers": (WHOLE, LOSS, {"small": True}),
    "no scaling": (WHOLE, LOSS, {"scaling": False}),
    "writes that cut floats": (CUT, LOSS, {}),
    "cut floats at the edge of two codes": (replace(CUT, distribution="edge"), MIX, {"codec": "bounded"}),
    "any octets, everything": (CUT, MIX, {"codec": "exact", "small": True}),
    "small buffers, edge, everything": (replace(WHOLE, distribution="edge"), MIX, {"codec": "bounded", "small": True}),
}


@pytest.mark.parametrize("name", by_day(CASES, [*CASES][1:4] + [*CASES][5:]))
def test_no_float_arrives_in_two_forms(tmp_path: Path, name: str) -> None:
    direction, damage, more = CASES[name]
    found = streams(tmp_path, direction, damage, **more)
    assert [(each.wrong, each.tail_wrong, each.examples) for each in found if each.wrong or each.tail_wrong] == []
    if direction.write_octets == WHOLE.write_octets:  # no write cuts a float, so all of them are rounded
        assert [each.exact_after_begun for each in found] == [0] * 6
