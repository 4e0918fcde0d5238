"""Paths whose links carry less than the nodes' own, with and without a word about it from the routers."""

from __future__ import annotations

from pathlib import Path

import pytest

from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from netoffload.testbed.soak import Values, measure_path, nft_path, routed

pytestmark = pytest.mark.netns

OCTETS = 8_000_000
TAGGED_S = 5.0
"""The untagged flow takes a tenth of a second where ICMP passes, so this is no measurement."""


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("encapsulation", ["udp", "ipcomp"])
@pytest.mark.parametrize("mtu", [1400, 1450])
@pytest.mark.parametrize("icmp", [True, False], ids=["icmp", "no icmp"])
def test_a_tagged_stream_finds_its_size_on_a_narrow_path(
    run_id: str, tmp_path: Path, icmp: bool, mtu: int, encapsulation: str, ipv6: bool
) -> None:
    if not icmp and nft_path() is None:
        pytest.skip("nft is not installed: the routers cannot be silenced")
    settings = TestbedSettings(2, nic=NicSettings(encapsulation=encapsulation))
    values = Values(tmp_path, "inceptionn", 10, seed=5)
    with Testbed(make_plan(settings, run_id), check_rate=False) as bed, routed(bed, mtu, icmp=icmp):
        found = measure_path(bed, values, OCTETS, ipv6=ipv6, black_hole=not icmp)
    print(f"goodput ratio {found.goodput_ratio:.2f}, tagged {found.tagged_s:.2f} s, untagged {found.untagged_s:.2f} s")
    assert found.wrong == 0
    assert found.compressed_octets > 0.9 * OCTETS
    assert found.tagged_s < TAGGED_S
