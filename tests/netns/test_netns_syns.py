"""SYNs on real paths: through networks that drop unknown options, and with TCP signatures."""

import itertools
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed
from tests.shared.beds import built
from tests.shared.quick_cases import by_day
from tests.soak.damage import nft_path, run_nft
from tests.soak.events import add_ipv6
from tests.soak.flows import carry
from tests.soak.options import Direction, FlowOptions, Values

CONNECT_S = 10.0
"""The third transmission of a SYN is 3 s behind the first, or 2 s where the kernel waits a second each time."""
TCP_MD5SIG = 14  # linux/tcp.h
WHICH = {"syn": "tcp flags & (syn|ack) == syn", "syn and ack": "tcp flags & (syn|ack) == (syn|ack)", "both": ""}


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with built() as made:
        add_ipv6(made)
        yield made


@pytest.mark.skipif(nft_path() is None, reason="nft is not installed: no SYN can be dropped for its option")
@pytest.mark.parametrize(
    ("which", "ipv6"),
    by_day(itertools.product(WHICH, (False, True)), [("syn", True), ("syn and ack", False), ("both", True)]),
)
def test_a_path_that_drops_the_word_still_connects(bed: Testbed, tmp_path: Path, which: str, ipv6: bool) -> None:
    switch = bed.plan.switch_netns
    run_nft(
        switch,
        "add table bridge strict\n"
        "add chain bridge strict f { type filter hook forward priority 0; }\n"
        f"add rule bridge strict f {WHICH[which]} tcp option 253 exists counter drop",
    )
    try:
        options = FlowOptions(1, 0, (Direction(octets=400_000), Direction(octets=400_000)), is_ipv6=ipv6)
        port = 7700 + 10 * list(WHICH).index(which) + ipv6
        started_s = time.monotonic()
        found = carry(bed, [options], Values(tmp_path, "inceptionn", 10, seed=4), 2 * CONNECT_S, port)
        assert time.monotonic() - started_s < CONNECT_S
    finally:
        run_nft(switch, "delete table bridge strict")
    assert [(each.wrong, each.received_octets) for each in found] == [(0, 400_000)] * 2


def test_signed_connections_are_exact(bed: Testbed, tmp_path: Path) -> None:
    """With TCP-MD5 (RFC 2385); ``tests/engine`` tests that their SYNs cross octet by octet."""
    direction = Direction(octets=400_000)
    options = FlowOptions(1, 0, (direction, replace(direction, rotation=100)), md5_key="a secret of both")
    with socket.socket() as sock:
        try:
            sock.setsockopt(
                socket.IPPROTO_TCP, TCP_MD5SIG, struct.pack("=HH4s120xBBHi80s", 2, 0, bytes(4), 0, 0, 4, 0, b"some")
            )
        except OSError:
            pytest.skip("this kernel does not sign TCP segments (CONFIG_TCP_MD5SIG)")
    found = carry(bed, [options], Values(tmp_path, "inceptionn", 10, seed=4), 20, 7790)
    assert [(each.wrong, each.rounded, each.received_octets) for each in found] == [(0, 0, 400_000)] * 2
