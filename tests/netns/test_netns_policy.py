"""What counts as tagged is the NIC's policy: another ToS, ports, every connection of a port, or a user's sockets."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.testbed import NicSettings, Testbed
from netoffload.lab.testbed.stream import stream
from tests.netns.programs.both_ways import carried_to
from tests.shared.beds import asked, built, counters, output_of
from tests.shared.transfers import transfer

AF11, AF21 = 0x28, 0x48
VALUES = np.random.default_rng(5).standard_normal(200_000, np.float32) * np.float32(2e-3)
EXACT, ROUNDED = VALUES.tobytes(), get("inceptionn").round_trip(VALUES, 10).tobytes()
USER = 65_533

NFT = """
table inet netoffload {
    chain out {
        type filter hook output priority mangle
        meta skuid %d tcp flags syn ct mark set 0x28
        ct mark 0x28 ip dscp set af11
        ct mark 0x28 ip6 dscp set af11
    }
}
"""
"""As in docs/guide/nic.md: a user's SYN or SYN/ACK marks the connection, and the connection's segments get the ToS."""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with built(nic=NicSettings(tag="0x48", ports="7100-7110")) as bed:
        yield bed


@pytest.fixture(scope="module")
def untagged_bed() -> Iterator[Testbed]:
    with built(nic=NicSettings(tag="any", ports="7100-7110,7120")) as bed:
        yield bed


def is_rounded(got: bytes) -> bool:
    """Whether values were rounded from the second kilobyte on; the first one is what the NIC judges by."""
    assert len(got) == len(EXACT)
    assert got[4096:] in (EXACT[4096:], ROUNDED[4096:])
    return got[4096:] == ROUNDED[4096:]


def test_the_nic_says_its_policy(bed: Testbed) -> None:
    info = asked(bed, 0, "info")
    assert (info["tag"], info["ports"]) == ("0x48", "7100-7110")


@pytest.mark.parametrize(("port", "source_port"), [(7100, 0), (7110, 0), (7300, 7105)])
def test_a_connection_with_the_tag_and_a_port_is_compressed(bed: Testbed, port: int, source_port: int) -> None:
    got, octets = carried_to(bed, port, EXACT, AF21, source_port)
    assert is_rounded(got)
    assert octets > 0.9 * len(EXACT)


@pytest.mark.parametrize(
    ("tos", "port"), [(AF11, 7101), (AF21, 7111), (AF21, 7099), (AF11, 7301), (0, 7102), (0, 7302)]
)
def test_another_tos_or_port_is_left_alone(bed: Testbed, tos: int, port: int) -> None:
    got, octets = carried_to(bed, port, EXACT, tos)
    assert got == EXACT
    assert octets == 0


def test_the_testbeds_own_stream_is_tagged(bed: Testbed) -> None:
    found = stream(bed, 4_000_000)
    assert found.wrong == 0
    assert found.raw < 0.05 * found.values


@pytest.mark.parametrize("tos", [0, AF11, AF21])
def test_any_takes_every_connection_of_its_ports_and_no_other(untagged_bed: Testbed, tos: int) -> None:
    got, octets = carried_to(untagged_bed, 7103, EXACT, tos)
    assert is_rounded(got)
    assert octets > 0.9 * len(EXACT)
    assert carried_to(untagged_bed, 7111, EXACT, tos) == (EXACT, 0)


@pytest.mark.mpi
def test_ranks_take_the_tag_and_the_ports_from_their_nics(bed: Testbed) -> None:
    words = ["python", str(Path(__file__).with_name("programs") / "sum_compressed.py")]
    result = output_of(bed, [0, 1], words, env={"NETOFFLOAD_REQUIRE": "1"}, timeout_s=60)
    assert result.startswith("True inceptionn True ")


def test_the_kernel_carries_what_has_another_tag() -> None:
    with built(nic=NicSettings(tag="0x48", bypass="kernel")) as bed:
        got, octets = carried_to(bed, 7100, EXACT, AF21)
        assert is_rounded(got)
        assert octets > 0.9 * len(EXACT)
        before = counters(bed)["kernel_tx_octets"]
        assert carried_to(bed, 7101, EXACT, AF11) == (EXACT, 0)
        assert counters(bed)["kernel_tx_octets"] - before > 0.9 * len(EXACT)


@pytest.mark.parametrize("trust", ["tag", "socket"])
def test_a_users_sockets_are_marked_by_nft(trust: str) -> None:
    """Neither end asks for a ToS; nft marks what the user sends, beginning with the SYN and the SYN/ACK.

    That is a promise only if the operator says so.
    """
    with built(nic=NicSettings(trust=trust)) as bed:
        nodes = bed.plan.nodes
        rules = NFT % USER
        for node in nodes:
            words = ["ip", "netns", "exec", node.netns, "nft", "-f", "-"]
            done = subprocess.run(words, input=rules, text=True, capture_output=True)
            if done.returncode:
                pytest.skip(f"nft cannot mark a user's connections here: {done.stderr.strip()}")
        try:
            got = as_user(bed, USER, 7150)
            assert is_rounded(got) if trust == "tag" else got == EXACT
            assert as_user(bed, USER + 1, 7151) == EXACT
        finally:
            for node in nodes:
                words = ["ip", "netns", "exec", node.netns, "nft", "flush", "ruleset"]
                subprocess.run(words, check=True)


def as_user(bed: Testbed, uid: int, port: int) -> bytes:
    """Send the values by programs of a user; return what arrived."""
    python = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", sys.executable, "-I", "-S"]
    return transfer(bed, EXACT, [(0, len(EXACT))], port=port, python=python)
