"""Paths with smaller MTUs than the nodes' links, with and without ICMP errors of the routers."""

from collections.abc import Iterator
from itertools import product

import pytest

from netoffload.lab.testbed import NicSettings, Testbed
from tests.shared.beds import built, counters
from tests.shared.quick_cases import by_day
from tests.soak.damage import nft_path
from tests.soak.events import ip
from tests.soak.options import Values
from tests.soak.routed import measure_path, routed

OCTETS = 8_000_000
TAGGED_S = 5.0
"""The untagged flow takes a tenth of a second where ICMP passes, so this is no measurement."""
MTUS = (1450, 1400)
"""Going down, so that what a NIC may remember of one path is too large for the next."""
SILENT_MTUS = (1400,)
"""Without ICMP a NIC goes down from 1500 to 1280 in one step, whatever lies between."""
PATHS = list(product(("icmp udp", "icmp ipcomp", "silent udp", "silent ipcomp"), (4, 6)))
BY_DAY = [("icmp udp", 4), ("icmp ipcomp", 6), ("silent udp", 6)]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Values:
    return Values(tmp_path_factory.mktemp("values"), "inceptionn", 10, seed=5)


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Iterator[tuple[Testbed, bool]]:
    """Two nodes with routers between them; whether the routers say that a datagram does not fit."""
    routers, encapsulation = request.param.split()
    icmp = routers == "icmp"
    if not icmp and nft_path() is None:
        pytest.skip("nft is not installed: the routers cannot be silenced")
    with built(nic=NicSettings(encapsulation=encapsulation)) as bed, routed(bed, MTUS[0], icmp=icmp):
        yield bed, icmp


@pytest.mark.parametrize(("path", "version"), by_day(PATHS, BY_DAY), indirect=["path"])
def test_a_tagged_stream_finds_its_size_on_a_narrow_path(
    path: tuple[Testbed, bool], values: Values, version: int
) -> None:
    bed, icmp = path
    for mtu in MTUS if icmp else SILENT_MTUS:
        for netns, device in ((bed.plan.switch_netns, "mid0"), (f"no-{bed.plan.run_id}-r1", "mid1")):
            ip("-n", netns, "link", "set", device, "mtu", str(mtu))
        before = counters(bed)["tx_path_limits"]
        found = measure_path(bed, values, OCTETS, ipv6=version == 6, black_hole=not icmp)
        print(f"MTU {mtu}: tagged {found.tagged_s:.2f} s, untagged {found.untagged_s:.2f} s")
        assert found.wrong == 0
        assert found.compressed_octets > 0.9 * OCTETS
        assert found.tagged_s < TAGGED_S
        # An error about a block says the size at once; without errors lost blocks show it.
        assert (counters(bed)["tx_path_limits"] == before) == icmp
