"""ICMP errors about blocks: those that a third host forges change nothing, those of the path's routers do."""

import itertools
import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.control import request
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from tests.shared.quick_cases import NIGHT, by_day
from tests.soak import Values, measure_path, nft_path, routed

pytestmark = [pytest.mark.netns, pytest.mark.slow]

PROGRAM = str(Path(__file__).with_name("programs") / "forge_icmp.py")
COUNT = 1000 if NIGHT else 100
ENCAPSULATIONS = ("udp", "ipcomp")
ERRORS = ("too big", "port unreachable", "protocol unreachable")
BY_DAY = [("udp", "port unreachable", 4), ("ipcomp", "protocol unreachable", 6), ("udp", "too big", 6)]
SHARE_CHANGE_MAX = 0.1
OCTETS = 8_000_000
TAGGED_S = 5.0
MTU = 1400


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("encapsulation", "error", "version"),
    by_day(itertools.product(ENCAPSULATIONS, ERRORS, (4, 6)), BY_DAY),
)
def test_errors_of_a_third_host_change_nothing(encapsulation: str, error: str, version: int) -> None:
    options = ["--version", str(version), "--errors", error, "--encapsulation", encapsulation, "--count", str(COUNT)]
    done = subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=280)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows, done.stderr
    assert [(row["quotes"], row["changed"], row["counters"]) for row in rows if row["changed"]] == []
    assert [row["quotes"] for row in rows if row["share_change"] > SHARE_CHANGE_MAX] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encapsulation", ["udp", "ipcomp"])
@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("icmp", [True, False], ids=["icmp", "black hole"])
def test_a_narrow_path_is_found(tmp_path: Path, encapsulation: str, ipv6: bool, icmp: bool) -> None:
    if not icmp and nft_path() is None:
        pytest.skip("nft is not installed: the routers cannot be silenced")
    settings = TestbedSettings(2, nic=NicSettings(encapsulation=encapsulation))
    with Testbed(make_plan(settings, f"t{secrets.token_hex(3)}"), check_rate=False) as bed, routed(bed, MTU, icmp=icmp):
        found = measure_path(bed, Values(tmp_path, "inceptionn", 10, seed=5), OCTETS, ipv6=ipv6, black_hole=not icmp)
        counted = request(str(bed.plan.nodes[0].control_path), "counters")["counters"]
    assert found.wrong == 0
    assert found.compressed_octets > 0.9 * OCTETS
    assert found.tagged_s < TAGGED_S
    # An error about a block says the size at once; without errors lost blocks show it.
    assert (counted["tx_path_limits"] == 0) == icmp, counted
