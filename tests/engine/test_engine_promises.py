"""Who promises floats: questions about sockets, their answers, and what the NIC does with a connection until then."""

import numpy as np
import pytest

from netoffload.codec_specs import CodecId
from netoffload.engine import promises
from netoffload.engine.flow_report import as_dicts
from netoffload.engine.flows import PROMISE, SLOTS
from tests.engine.frames import make_segment
from tests.engine.nic_pair import ISN, Nic, connect

VALUES = np.random.default_rng(5).normal(0, 0.01, 8000).astype(np.float32)
OCTETS = VALUES.tobytes()


def asking_pair(count: int = 1) -> tuple[Nic, Nic]:
    """Return two NICs with tagged connections; the first one must ask for the promise of each."""
    client, server = Nic(), Nic()
    client.settings = client.settings._replace(trust=0)
    for number in range(count):
        connect(client, server, sport=40_000 + number, judged=False)
    return client, server


def send(nic: Nic, start: int, end: int, **how: int | str) -> list[bytes]:
    return nic.from_host(make_segment(OCTETS[start:end], seq=ISN + 1 + start, **how))  # type: ignore[arg-type]


def is_exact(frames: list[bytes], start: int, end: int) -> bool:
    return frames == [make_segment(OCTETS[start:end], seq=ISN + 1 + start)]


def test_the_handshakes_acknowledgement_raises_the_question() -> None:
    client, _ = asking_pair()
    assert promises.count_questions(client.state) == 0, "SYNs ask nothing"
    client.from_host(make_segment(seq=ISN + 1))
    promises.answer(client.state, 0x28)
    assert not is_exact(send(client, 0, 4096), 0, 4096)
    assert client.counts()["tx_segments"] == 1


def test_a_payload_that_comes_first_raises_it_and_crosses_exact() -> None:
    client, _ = asking_pair()
    assert is_exact(send(client, 0, 4096), 0, 4096)
    assert is_exact(send(client, 4096, 8192), 4096, 8192)
    assert promises.count_questions(client.state) == 1, "one question per connection"
    slot = promises.slot_in_question(client.state)
    assert client.table[slot, PROMISE] == promises.ASKED
    promises.answer(client.state, 0x28)
    assert client.flows()[0]["promised_by"] == "socket"
    assert not is_exact(send(client, 8192, 12_288), 8192, 12_288)
    assert client.counts()["tx_segments"] == 1
    assert promises.count_questions(client.state) == 0


@pytest.mark.parametrize(
    ("tos", "promised_by"), [(0, "nobody"), (0x20, "nobody"), (-1, "no socket"), (0x2A, "socket"), (0x2B, "socket")]
)
def test_the_socket_decides_but_for_its_ecn_bits(tos: int, promised_by: str) -> None:
    client, _ = asking_pair()
    send(client, 0, 4096)
    promises.answer(client.state, tos)
    sent = send(client, 4096, 8192)
    assert client.flows()[0]["promised_by"] == promised_by
    if promised_by == "socket":
        assert client.counts()["tx_segments"] == 1
    else:
        assert is_exact(sent, 4096, 8192)
        assert is_exact(send(client, 0, 4096), 0, 4096)
        assert client.counts()["bypass_unpromised"] == 2


def test_zeros_of_a_connection_that_nobody_promised_stay_raw() -> None:
    client, _ = asking_pair()
    zeros = make_segment(bytes(4000), seq=ISN + 1)
    client.from_host(zeros)
    promises.answer(client.state, 0)
    later = make_segment(bytes(4000), seq=ISN + 4001)
    assert client.from_host(later) == [later]


def test_a_question_that_could_not_be_asked_comes_again() -> None:
    client, _ = asking_pair()
    send(client, 0, 4096)
    promises.answer(client.state, promises.ANSWER_NONE)
    send(client, 4096, 8192)
    assert promises.count_questions(client.state) == 1


def test_untagged_segments_and_connections_to_hosts_without_a_nic_ask_nothing() -> None:
    client, _ = asking_pair()
    send(client, 0, 4096, tos=0)
    client.from_host(make_segment(seq=ISN + 4097, tos=0))
    client.from_host(make_segment(flags="S", seq=ISN, sport=41_000))
    client.from_wire([make_segment(flags="SA", seq=5, ack=ISN + 1, sport=41_000, to_client=True)])
    send(client, 0, 4096, sport=41_000)
    assert promises.count_questions(client.state) == 0


def test_a_batch_cannot_raise_more_questions_than_there_is_room_for() -> None:
    count = promises.QUESTIONS_MAX + 5
    client, _ = asking_pair(count)
    for number in range(count):
        send(client, 0, 4000, sport=40_000 + number)
    assert promises.count_questions(client.state) == promises.QUESTIONS_MAX
    for _ in range(promises.QUESTIONS_MAX):
        promises.answer(client.state, 0x28)
    for number in range(count):
        send(client, 4000, 8000, sport=40_000 + number)
    assert promises.count_questions(client.state) == 5


def test_questions_that_an_earlier_process_left_open_are_raised_again() -> None:
    client, _ = asking_pair()
    send(client, 0, 4096)
    promises.reopen(client.table)
    assert not (client.table[:SLOTS, PROMISE] == promises.ASKED).any()
    send(client, 4096, 8192)
    assert promises.count_questions(client.state) == 2


def test_the_operator_promises_for_every_tag() -> None:
    client, server = Nic(), Nic()
    connect(client, server, judged=False)
    send(client, 0, 4096)
    assert client.flows()[0]["promised_by"] == "operator"
    assert as_dicts(client.table, CodecId.EXACT)[0]["promised_by"] == "not needed"
    assert client.counts()["tx_segments"] == 1
