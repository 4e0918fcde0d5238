"""Probation: a connection whose blocks do not arrive goes on plain with the same values, and is probed later."""

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.engine import flows as table
from netoffload.engine.path import SMALL
from netoffload.engine.probation import PLAIN_NS, PLAIN_NS_MAX, RETRIES_MAX, SPACING_NS, put_on_probation
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FIRST, Nic, connect

LEN = 1000
VALUES = np.random.default_rng(23).normal(0, 2e-3, 40_000).astype(np.float32)
SENT = VALUES.tobytes()
ROUNDED = get("inceptionn").round_trip(VALUES, 10).tobytes()
SECOND_NS = 1_000_000_000


class Host:
    """A host that sends a thousand octets at a time."""

    def __init__(self) -> None:
        self.nic = Nic()
        connect(self.nic, Nic())

    def is_plain(self, number: int, sent: bytes = SENT) -> bool:
        """Send the piece with this number; whether it left plain, which must have the codec's values then."""
        payload = sent[number * LEN : (number + 1) * LEN]
        (frame,) = self.nic.from_host(make_segment(payload, seq=FIRST + number * LEN))
        is_plain = frame[10 + 14 + 9] == 6
        if is_plain and sent is SENT:
            assert tcp_of(frame)[1] == ROUNDED[number * LEN : (number + 1) * LEN]
        return is_plain

    def is_plain_again(self, number: int, sent: bytes = SENT) -> bool:
        """Let a time-out pass, then send a piece again."""
        self.wait(SPACING_NS)
        return self.is_plain(number, sent)

    def acknowledge(self, number: int) -> None:
        """Let all pieces before this one arrive."""
        self.nic.from_wire([make_segment(seq=6, ack=FIRST + number * LEN, to_client=True)])

    def wait(self, duration_ns: int) -> None:
        self.nic.now_ns += duration_ns

    @property
    def on_probation(self) -> bool:
        return bool(self.nic.flows()[0]["on_probation"])

    def count(self, name: str) -> int:
        return self.nic.counts().get(name, 0)


@pytest.fixture
def host() -> Host:
    """A host whose connection is on probation and whose first probe has just failed; piece 0 is not acknowledged."""
    made = Host()
    made.is_plain(0)
    assert [made.is_plain_again(0) for _ in range(RETRIES_MAX + 1)] == [False] * RETRIES_MAX + [True]
    (slot,) = np.flatnonzero(made.nic.table[: table.SLOTS, table.IP_VERSION])
    put_on_probation(made.nic.table[slot], made.nic.now_ns)
    return made


def test_the_first_probe_waits_for_a_plain_segment_to_arrive_and_no_longer() -> None:
    host = Host()
    host.is_plain(0)
    assert [host.is_plain_again(0) for _ in range(RETRIES_MAX + 1)] == [False] * RETRIES_MAX + [True]
    host.wait(1)
    assert host.is_plain(1)
    host.acknowledge(1)
    assert [host.is_plain(number) for number in (2, 3)] == [False, True]
    host.acknowledge(3)
    assert not host.on_probation


def test_retransmissions_without_progress_put_a_connection_on_probation(host: Host) -> None:
    assert host.on_probation
    assert (host.count("tx_fallbacks"), host.count("bypass_probation")) == (1, 1)
    assert [host.is_plain(number) for number in (1, 2, 0, 1)] == [True] * 4
    assert (host.count("tx_fallbacks"), host.count("bypass_probation")) == (1, 5)


def test_retransmissions_with_progress_do_not() -> None:
    host = Host()
    for number in range(10):
        assert not host.is_plain(number)
        assert not any(host.is_plain_again(number) for _ in range(RETRIES_MAX))
        host.acknowledge(number + 1)
    assert not host.on_probation


def test_several_copies_within_a_round_trip_are_one() -> None:
    host = Host()
    assert not any(host.is_plain(0) for _ in range(20))
    host.wait(SPACING_NS - 1)
    assert not any(host.is_plain(0) for _ in range(20))
    assert [host.is_plain_again(0) for _ in range(RETRIES_MAX)] == [False] * (RETRIES_MAX - 1) + [True]


def test_retransmissions_of_what_is_not_first_in_line_do_not() -> None:
    host = Host()
    for number in range(4):
        host.is_plain(number)
    host.acknowledge(2)
    assert not any(host.is_plain_again(3) for _ in range(10))
    assert host.count("tx_fallbacks") == 0


def test_what_is_sent_again_first_in_line_goes_in_small_blocks() -> None:
    nic = Nic()
    connect(nic, Nic())
    segment = make_segment(SENT[:10_000], seq=FIRST)
    assert max(len(frame) for frame in nic.from_host(segment)) > 24 + SMALL
    assert max(len(frame) for frame in nic.from_host(segment)) <= 24 + SMALL


def test_the_next_probe_waits_for_a_while(host: Host) -> None:
    host.is_plain(0)
    host.acknowledge(1)
    host.wait(PLAIN_NS - 1)
    assert host.is_plain(1)
    assert host.count("tx_probes") == 0
    host.wait(1)
    assert not host.is_plain(2)
    assert host.count("tx_probes") == 1


def test_only_one_segment_is_the_probe(host: Host) -> None:
    host.acknowledge(1)
    host.wait(PLAIN_NS)
    assert [host.is_plain(number) for number in (1, 2, 3)] == [False, True, True]
    assert host.on_probation


def test_a_probe_that_arrives_ends_probation(host: Host) -> None:
    host.acknowledge(1)
    host.wait(PLAIN_NS)
    host.is_plain(1)
    host.is_plain(2)
    host.nic.from_wire([make_segment(seq=6, ack=FIRST + 2 * LEN - 4, to_client=True)])
    assert host.on_probation
    host.acknowledge(2)
    assert not host.on_probation
    assert not host.is_plain(3)
    # It takes as many retransmissions to get there again, and lasts as long as the first time.
    host.acknowledge(3)
    assert [host.is_plain_again(3) for _ in range(RETRIES_MAX + 1)] == [False] * RETRIES_MAX + [True]
    host.acknowledge(4)
    host.wait(PLAIN_NS)
    assert not host.is_plain(4)


def test_probation_doubles_up_to_a_minute_while_probes_fail(host: Host) -> None:
    number, expected_ns = 1, PLAIN_NS
    for expected_ns in [2**power * PLAIN_NS for power in range(8)] + [PLAIN_NS_MAX] * 2:
        host.acknowledge(number)
        host.wait(expected_ns - 1)
        assert host.is_plain(number)
        host.wait(1)
        assert not host.is_plain(number + 1)  # the probe
        host.acknowledge(number + 1)
        assert host.is_plain(number + 1)  # sent again: it did not arrive
        number += 2
    assert PLAIN_NS_MAX == 60 * SECOND_NS
    assert host.count("tx_probes") == 10
    assert host.count("tx_fallbacks") == 1


def test_what_is_sent_again_is_no_probe(host: Host) -> None:
    host.is_plain(1)
    host.acknowledge(1)
    host.wait(PLAIN_NS)
    assert host.is_plain(1)
    assert host.count("tx_probes") == 0


def test_what_was_sent_before_the_probe_does_not_judge_it(host: Host) -> None:
    host.is_plain(1)
    host.acknowledge(1)
    host.wait(PLAIN_NS)
    host.is_plain(2)
    assert host.is_plain(1)  # sent again
    host.acknowledge(3)
    assert not host.on_probation


def test_while_nothing_arrives_plain_segments_and_blocks_take_turns(host: Host) -> None:
    """It may be large segments that do not arrive, of which plain ones are more."""
    host.wait(300 * SECOND_NS)
    assert [host.is_plain_again(0) for _ in range(6)] == [True, False] * 3
    assert host.is_plain(1)
    assert host.on_probation
    assert host.count("tx_fallbacks") == 1
    host.acknowledge(1)
    assert not host.on_probation
    assert not host.is_plain(2)


def test_an_answer_to_a_plain_turn_does_not_end_probation(host: Host) -> None:
    assert [host.is_plain_again(0) for _ in range(3)] == [True, False, True]
    host.acknowledge(1)
    assert host.on_probation
    host.wait(PLAIN_NS)
    assert not host.is_plain(2)


def test_the_time_does_not_double_while_nothing_arrives(host: Host) -> None:
    for _ in range(11):
        host.is_plain_again(0)
    host.acknowledge(1)
    assert not host.is_plain(1)  # a probe that fails
    assert host.is_plain(1)
    host.acknowledge(2)
    host.wait(2 * PLAIN_NS - 1)
    assert host.is_plain(2)
    host.wait(1)
    assert not host.is_plain(3)


def test_a_segment_without_gain_says_nothing_about_blocks(host: Host) -> None:
    large = (np.sign(VALUES) * 3).astype(np.float32).tobytes()
    host.acknowledge(1)
    host.wait(PLAIN_NS)
    assert host.is_plain(1, large)
    host.acknowledge(2)
    assert host.on_probation
    assert host.count("tx_probes") == 0
    assert not host.is_plain(2)
    host.acknowledge(3)
    assert not host.on_probation
    for _ in range(3 * RETRIES_MAX):
        assert host.is_plain_again(3, large)
    assert not host.on_probation


def test_what_only_large_blocks_make_smaller_goes_on_probation_too() -> None:
    """Of five floats one is compressed, which is less than the headers of small blocks."""
    weak = np.where(np.arange(VALUES.size) % 5 == 0, VALUES, np.float32(3)).astype(np.float32).tobytes()
    nic = Nic()
    connect(nic, Nic())
    segment = make_segment(weak[: 14 * 1448], seq=FIRST)
    protocols = []
    for _ in range(RETRIES_MAX + 2):
        protocols.append(nic.from_host(segment)[0][10 + 14 + 9])
        nic.now_ns += SPACING_NS
    assert protocols == [108] * (RETRIES_MAX + 1) + [6]


def test_a_turn_without_gain_is_no_probe(host: Host) -> None:
    large = (np.sign(VALUES) * 3).astype(np.float32).tobytes()
    assert [host.is_plain_again(0, large) for _ in range(4)] == [True] * 4
    assert host.count("tx_probes") == 0
    host.acknowledge(1)
    assert host.on_probation
