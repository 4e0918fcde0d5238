"""SYNs on real paths: through networks that drop unknown options, and with TCP signatures."""

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from netoffload.lab.testbed import NodePlan, Testbed
from netoffload.netlink import Namespace
from netoffload.wire.tcp import CHECKSUM, PROTO_TCP, SYN
from tests.shared.beds import built
from tests.shared.formats import parse_tcp
from tests.shared.quick_cases import by_day
from tests.soak.damage import nft_path, run_nft
from tests.soak.events import add_ipv6
from tests.soak.flows import carry
from tests.soak.options import Direction, FlowOptions, Values

CONNECT_S = 10.0
"""The third transmission of a SYN is 3 s behind the first, or 2 s where the kernel waits a second each time."""
TCP_MD5SIG = 14  # linux/tcp.h
ETH_P_ALL = 3  # linux/if_ether.h
ETH_AND_IPV4 = 34
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


def test_signed_syns_are_left_alone(bed: Testbed, tmp_path: Path) -> None:
    """TCP-MD5 (RFC 2385): SYN and SYN/ACK arrive octet by octet as they were sent, and so do the floats."""
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, _signature("10.98.1.2"))
        except OSError:
            pytest.skip("this kernel does not sign TCP segments (CONFIG_TCP_MD5SIG)")
    direction = Direction(octets=400_000)
    options = FlowOptions(1, 0, (direction, replace(direction, rotation=100)), md5_key="a secret of both")
    n0, n1 = bed.plan.nodes
    wire = replace(n0, netns=n0.wire_netns, device=n0.wire_device)
    with watched(n0) as near, watched(wire) as middle, watched(n1) as far:
        found = carry(bed, [options], Values(tmp_path, "inceptionn", 10, seed=4), 20, 7790)
        sent, crossed, arrived = (syns(sock, 7790) for sock in (near, middle, far))
    assert [(each.wrong, each.rounded, each.received_octets) for each in found] == [(0, 0, 400_000)] * 2
    assert len(sent) >= 2
    assert sent == crossed == arrived


def _signature(peer: str) -> bytes:
    """``struct tcp_md5sig`` (linux/tcp.h) with a key of four octets."""
    return struct.pack("=HH4s120xBBHi80s", socket.AF_INET, 0, socket.inet_aton(peer), 0, 0, 4, 0, b"some")


@contextlib.contextmanager
def watched(node: NodePlan) -> Iterator[socket.socket]:
    """A packet socket on a node's interface, which sees what its host sends and receives."""
    with (
        Namespace.open(node.netns) as namespace,
        namespace.call(partial(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)) as sock,
    ):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.bind((node.device, ETH_P_ALL))
        yield sock


def syns(sock: socket.socket, port: int) -> set[bytes]:
    """The TCP headers, without their checksums, of the SYNs to and from a port that a socket has seen."""
    found = set()
    while select.select([sock], [], [], 0)[0]:
        frame = sock.recv(70_000)
        if frame[12:14] != b"\x08\x00" or frame[23] != PROTO_TCP:
            continue
        segment = bytearray(frame[ETH_AND_IPV4:])
        header = parse_tcp(bytes(segment))[0]
        if port in (header.sport, header.dport) and header.flags & SYN:
            segment[CHECKSUM : CHECKSUM + 2] = b"\0\0"
            found.add(bytes(segment))
    return found
