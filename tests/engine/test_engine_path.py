"""Path limits: large blocks vanish while small ones arrive."""

import numpy as np
import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine.path import EXPIRES_NS, FAILS_MAX, SMALL, STEPS
from tests.engine.frames import make_segment
from tests.engine.nic_pair import FIRST, Nic, connect

LARGE = 60_000
"""Octets of a write; coded, they take more than one datagram of 9000 octets."""
LITTLE = 400
VALUES = np.random.default_rng(24).normal(0, 2e-3, LARGE // 4).astype(np.float32)
SENT = VALUES.tobytes()

compiled = pytest.mark.skipif(JIT_DISABLED, reason="codes megabytes")


class Host:
    """A host behind a wire of jumbo frames."""

    def __init__(self, in_udp: bool = False, mtu: int = 9000) -> None:
        self.nic = Nic(mtu=mtu, in_udp=in_udp)
        connect(self.nic, Nic())
        self.next = 0
        self.mss = mtu - 52

    def send(self, octets: int = LARGE, again_at: int | None = None) -> int:
        """Send new octets, or some again; return the length of the longest datagram."""
        at = self.next if again_at is None else again_at
        frame = make_segment(SENT[:octets], seq=FIRST + at, gso_size=self.mss if octets > self.mss else 0)
        longest = max(len(one) - 24 for one in self.nic.from_host(frame))
        self.next = max(self.next, at + octets)
        return longest

    def acknowledge(self, octets: int) -> None:
        self.nic.from_wire([make_segment(seq=6, ack=FIRST + octets, to_client=True)])

    def fail(self) -> None:
        """A large block vanishes: a little of it is sent again, which arrives, and so does the rest."""
        start = self.next
        self.send()
        self.send(LITTLE, again_at=start)
        self.acknowledge(self.next)

    @property
    def limit(self) -> int | None:
        limit: int | None = self.nic.flows()[0]["datagram_max_octets"]
        return limit


@compiled
@pytest.mark.parametrize("in_udp", [False, True])
def test_the_limit_goes_down_step_by_step(in_udp: bool) -> None:
    host = Host(in_udp)
    assert 8900 < host.send() <= 9000
    host.acknowledge(host.next)
    for number, step in enumerate(STEPS, 1):
        for _ in range(FAILS_MAX - 1):
            host.fail()
        assert host.nic.counts().get("tx_path_limits", 0) == number - 1
        host.fail()
        assert host.limit == step
        assert host.nic.counts()["tx_path_limits"] == number
        assert step - 50 < host.send() <= step
        host.acknowledge(host.next)
    for _ in range(3 * FAILS_MAX):
        host.fail()
    assert host.limit == SMALL
    assert host.nic.counts()["tx_path_limits"] == len(STEPS)


def test_the_first_step_is_below_what_failed() -> None:
    host = Host(mtu=1500)
    for _ in range(FAILS_MAX):
        host.fail()
    assert host.limit == 1280


@compiled
def test_a_large_block_that_arrives_clears_all() -> None:
    host = Host()
    for _ in range(3):
        for _ in range(FAILS_MAX - 1):
            host.fail()
        host.send()
        host.acknowledge(host.next)
    assert host.limit is None


def test_a_smaller_one_that_arrives_does_not() -> None:
    host = Host()
    for _ in range(FAILS_MAX - 1):
        host.fail()
    assert SMALL < host.send(4000) < 1500
    host.acknowledge(host.next)
    host.fail()
    assert host.limit == 1500


def test_small_blocks_say_nothing() -> None:
    host = Host()
    for _ in range(3 * FAILS_MAX):
        start = host.next
        assert host.send(LITTLE) < SMALL
        host.send(LITTLE, again_at=start)
        host.acknowledge(host.next)
    assert host.limit is None


@compiled
def test_while_nothing_arrives_nothing_follows_from_it() -> None:
    host = Host()
    host.send()
    host.send()
    host.send(LITTLE, again_at=0)
    for _ in range(3 * FAILS_MAX):
        assert host.send(again_at=LARGE) > 8000  # what is not first in line goes in large blocks
    assert host.limit is None


@compiled
def test_what_was_sent_again_elsewhere_says_nothing() -> None:
    host = Host()
    for _ in range(3 * FAILS_MAX):
        start = host.next
        host.send(LITTLE)  # in front of the large one
        host.send()
        host.send(LITTLE, again_at=start)
        host.acknowledge(host.next)
    assert host.limit is None


@compiled
def test_a_limit_is_forgotten_after_ten_minutes() -> None:
    host = Host()
    for _ in range(FAILS_MAX):
        host.fail()
    host.nic.now_ns += EXPIRES_NS
    assert host.send() <= 1500
    host.nic.now_ns += 1
    assert host.send() > 8900
    assert host.limit is None
