"""Who promised floats: a policy marks packets, a program marks its socket, and only the socket's mark is a promise."""

import contextlib
import itertools
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.testbed import NicSettings, Testbed
from tests.netns.programs.both_ways import (
    TAGGED,
    carry_both_ways,
    connected,
    gradient,
    mark,
    packets_marked,
    policy,
    read_exactly,
)
from tests.shared.beds import built
from tests.soak.damage import nft_path
from tests.soak.events import add_ipv6

pytestmark = pytest.mark.skipif(nft_path() is None, reason="nft is not installed: no policy can mark packets")

CODEC = get("inceptionn")
PORTS = itertools.count(6200)
SO_SNDBUFFORCE = 32
"""SO_SNDBUF beyond net.core.wmem_max, which is 208 KiB unless somebody raised it (socket(7))."""


@pytest.fixture(scope="module", params=["user", "kernel"])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Two nodes with NICs, with each kind of bypass."""
    with built(nic=NicSettings(bypass=request.param)) as made:
        assert add_ipv6(made)
        yield made


@pytest.fixture
def policed(bed: Testbed) -> Iterator[Testbed]:
    """Nodes whose policy marks every TCP packet."""
    with policy(bed):
        yield bed
        assert all(packets_marked(node) > 0 for node in bed.plan.nodes)


def rounded(stream: bytes) -> np.ndarray:
    return CODEC.round_trip(np.frombuffer(stream, np.float32), 10).view(np.uint32)


def is_compressed(got: bytes, stream: bytes) -> bool:
    """Whether values arrived as the codec makes them; those before the NIC's verdict and answer may be exact."""
    if len(got) != len(stream):
        return False
    words, exact, wanted = np.frombuffer(got, np.uint32), np.frombuffer(stream, np.uint32), rounded(stream)
    half = words.size // 2
    return bool(((words == exact) | (words == wanted)).all()) and np.array_equal(words[half:], wanted[half:])


@pytest.mark.parametrize("ipv6", [False, True])
def test_no_octet_changes_that_only_a_policy_marked(policed: Testbed, ipv6: bool) -> None:
    stream = gradient(40_000).tobytes()
    arrived = carry_both_ways(policed, stream, (0, 0), port=next(PORTS), ipv6=ipv6)
    assert arrived.forth == arrived.back == stream


@pytest.mark.parametrize(("ipv6", "beside"), [(False, False), (True, False), (False, True)])
def test_sockets_that_bear_the_tag_are_compressed(bed: Testbed, ipv6: bool, beside: bool) -> None:
    """With and without a policy that marks everything."""
    stream = gradient(500_000).tobytes()
    with policy(bed) if beside else contextlib.nullcontext():
        arrived = carry_both_ways(bed, stream, (TAGGED, TAGGED), port=next(PORTS), ipv6=ipv6)
    assert is_compressed(arrived.forth, stream)
    assert is_compressed(arrived.back, stream)
    assert arrived.wire_octets < 2 * len(stream) / 3


@pytest.mark.parametrize("tagged_node", [0, 1])
def test_each_direction_needs_its_own_senders_tag(policed: Testbed, tagged_node: int) -> None:
    stream = gradient(200_000).tobytes()
    tos = (TAGGED, 0) if tagged_node == 0 else (0, TAGGED)
    arrived = carry_both_ways(policed, stream, tos, port=next(PORTS))
    promised, policed_only = (arrived.forth, arrived.back)[:: 1 - 2 * tagged_node]
    assert is_compressed(promised, stream)
    assert policed_only == stream


def test_a_tagged_sender_that_closes_at_once_is_compressed(bed: Testbed) -> None:
    """The program is gone long before its octets are: the NIC may see a socket without an owner."""
    stream = gradient(1_000_000).tobytes()
    with connected(bed, next(PORTS), (TAGGED, TAGGED)) as (near, far):
        near.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 2 * len(stream))
        near.setblocking(False)
        sent = near.send(stream) & ~3
        near.close()
        got = read_exactly(far, sent)
    assert sent > 1_000_000
    assert is_compressed(got, stream[:sent])


@pytest.mark.parametrize("after_octets", [2048, 100_000])
def test_text_after_the_tag_was_taken_off_is_exact(bed: Testbed, after_octets: int) -> None:
    floats = gradient(after_octets // 4).tobytes()
    text = b"".join(b"%d: no float at all, and no tag\n" % line for line in range(3000))
    with connected(bed, next(PORTS), (TAGGED, TAGGED)) as (near, far):
        near.sendall(floats)
        got = read_exactly(far, len(floats))
        mark(near, 0)
        near.sendall(text)
        got_text = read_exactly(far, len(text))
    assert len(got) == len(floats)
    assert got_text == text
