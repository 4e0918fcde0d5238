"""What a peer or a store may hand to ranks: nonsense of all kinds is an error on all of them, and never a hang."""

import json
import random
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from netoffload.collectives import barrier
from netoffload.collectives.transfer import octets_of
from netoffload.config import Offload
from netoffload.errors import CollectiveError, MalformedError, NetOffloadError
from netoffload.transport import DataPlane, Settings, StoreRendezvous, set_up
from netoffload.transport.messages.frames import MAX_TEXT_OCTETS, MESSAGE_FLOATS_MAX, Frame, Kind, take_frames
from netoffload.transport.messages.mailbox import Mailbox, Message, Receive
from netoffload.transport.messages.requests import Request
from netoffload.transport.messages.watch import AHEAD_MAX
from netoffload.transport.rendezvous import store
from netoffload.transport.rendezvous.agreement import Offer
from netoffload.transport.rounds.exchange import TcpExchange
from tests.transport.frame_fuzz import a_frame, fuzz
from tests.transport.stores import MemoryStore
from tests.transport.tcp_ranks import run_tcp

SIZE = 3


def assert_no_watch_lives() -> None:
    assert not [one for one in threading.enumerate() if one.name.startswith("watch")]


MALFORMED = {
    "no lane": Frame(Kind.CONNECT, tag=99, context=1).to_octets(),
    "the control lane": Frame(Kind.CONNECT, tag=2).to_octets(),
    "a lane of no context": Frame(Kind.CONNECT, tag=1).to_octets(),
    "a long message": Frame(Kind.MESSAGE, tag=1, count=2**62, context=1).to_octets(),
    "a message a float too long": Frame(Kind.MESSAGE, count=MESSAGE_FLOATS_MAX + 1, context=1).to_octets(),
    "a message to all contexts": Frame(Kind.MESSAGE, count=1).to_octets(),
    "a heartbeat with a tag": Frame(Kind.BEAT, tag=1).to_octets(),
    "a farewell with a count": Frame(Kind.CLOSED, count=1, context=1).to_octets(),
    "a heartbeat with a text": Frame(Kind.BEAT, "text").to_octets(),
    "an error without a reason": Frame(Kind.ERROR, context=1).to_octets(),
    "an unknown kind": b"NOFC\x07" + bytes(19),
    "another version": b"NOFD\x01" + bytes(19),
    "a long text": b"NOFC\x04\x00" + (MAX_TEXT_OCTETS + 1).to_bytes(2, "big") + bytes(16),
    "long words": b"NOFC\x05\x00" + (101).to_bytes(2, "big") + bytes(7) + b"\1" + bytes(8) + b"w" * 101,
    "many contexts": b"".join(Frame(Kind.MESSAGE, context=9 + one).to_octets() for one in range(AHEAD_MAX + 1)),
}


def after_frames(octets: bytes) -> list[Any]:
    """What three ranks that wait for messages raise if rank 1 sends these octets to rank 0."""

    def body(exchange: TcpExchange) -> None:
        barrier(exchange)
        if exchange.rank == 1:
            with exchange.watch._lock:
                exchange.watch._links.peers[0].outgoing += octets
                exchange.watch.shared.wake()
        exchange.watch.receive(None, 77, octets_of(np.zeros(4, np.float32))).wait(10)

    return run_tcp(SIZE, body)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_is_an_error_on_all_ranks_that_names_its_sender(name: str) -> None:
    if name != "many contexts":
        with pytest.raises(MalformedError):
            take_frames(bytearray(MALFORMED[name]))
    for error in after_frames(MALFORMED[name]):
        assert isinstance(error, CollectiveError)
        assert str(error).startswith("rank 1 ")
        assert "\n" not in str(error)
    assert_no_watch_lives()


def test_a_message_brings_its_words_cut_to_their_limit() -> None:
    sent = Frame(Kind.MESSAGE, "float32[3], int8[1]\n" + "w" * 200, tag=-1, count=3, context=1)
    (frame,) = take_frames(bytearray(sent.to_octets()))
    assert frame == replace(sent, text="float32[3], int8[1]?" + "w" * 80)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 60), marks=pytest.mark.slow)], ids=["few", "many"])
def test_fuzzed_frames_after_a_right_hello_are_an_error_on_all_ranks(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        frames = [a_frame(rng) for _ in range(20)]
        for error in after_frames(b"".join(frames) + MALFORMED["another version"] * 60):
            assert isinstance(error, CollectiveError), seed
    assert_no_watch_lives()


def test_any_exception_in_the_watchs_thread_is_an_error_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = Mailbox.arrive

    def broken(self: Mailbox, message: Message) -> None:
        if message.tag == 13:
            raise MemoryError("no memory\nleft")
        arrive(self, message)

    monkeypatch.setattr(Mailbox, "arrive", broken)
    for error in after_frames(Frame(Kind.MESSAGE, tag=13, count=1, context=1).to_octets()):
        assert isinstance(error, CollectiveError)
        assert str(error) == ("rank 0 gave up: the watch of its connections failed: MemoryError: no memory left")
    assert_no_watch_lives()


def test_what_a_header_announces_takes_no_memory() -> None:
    box, request, small = Mailbox(), Request(), Request()
    box.arrive(Message(source=1, tag=1, octets=2**42))
    box.arrive(Message(source=1, tag=2, octets=8))
    box.post(Receive(source=1, tag=2, into=memoryview(bytearray(8)), request=request))
    into = box.wanted(1)
    assert into is not None
    assert len(into) < 2**20
    del into
    box.post(Receive(source=1, tag=1, into=memoryview(bytearray(8)), request=small))
    assert "message truncated: rank 1 sent" in str(small.error)  # at once, though no octet has come
    for _ in range(1000):
        dropped = box.wanted(1)
        assert dropped is not None
        box.filled(1, len(dropped))
    assert box.streams[1][0].own is None


def test_fuzzed_frames_raise_nothing_but_what_ranks_hear() -> None:
    errors: list[CollectiveError] = []
    fuzz(4000, 1, errors.append)
    assert len(errors) > 1000
    assert len({str(error)[:90] for error in errors}) > 5


@pytest.mark.slow
def test_many_fuzzed_frames_take_no_memory() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz(100_000, 100, lambda error: None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 * 1024


NONSENSE = (
    b"",
    b"{",
    b"[" * 200_000,
    b"\xff\xfe",
    b"3",
    b'"text"',
    b"null",
    b"[]",
    b"{}",
    b"[[1]]",
    b"1" * 5000,
    b"NaN",
)


def mutated(octets: bytes, rng: random.Random) -> bytes:
    """A value as somebody else may leave it in a store."""
    if rng.random() < 0.4:
        return rng.choice(NONSENSE)
    try:
        words = json.loads(octets)
    except ValueError:
        return b""
    if isinstance(words, dict) and words and rng.random() < 0.8:
        key = rng.choice(sorted(words))
        words[key] = rng.choice((None, -1, 2**70, "", "x" * 5000, [], [[]], {"a": 1}, True, 1.5, ["packed", 99]))
        return json.dumps(words).encode()
    damaged = bytearray(octets)
    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


class MeddledStore(MemoryStore):
    """A store in which somebody changes one value in ``nth``, for all readers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._nth = self._rng.randrange(3, 25)
        self._sets = 0

    def set(self, key: str, value: str) -> None:
        super().set(key, value)
        with self._changed:
            self._sets += 1
            if self._sets % self._nth == 0:
                self._values[key] = mutated(self._values[key], self._rng)


def meet(seed: int) -> list[Any]:
    """Set up three ranks over a store with which somebody meddles; what each rank raised, None if nothing."""
    store = MeddledStore(seed)

    def body(rank: int) -> Any:
        gather = StoreRendezvous(store, rank, SIZE, limit_s=0.4)
        try:
            set_up(
                gather, "127.0.0.1", Settings(timeout_s=0.8, late_s=2.0, offload=Offload.OFF), DataPlane
            ).exchange.close()
        except NetOffloadError as error:
            return error
        return None

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(body, range(SIZE)))


@pytest.mark.parametrize(
    "seeds",
    [
        range(6),
        pytest.param(range(6, 60), marks=pytest.mark.slow),
        pytest.param(range(60, 120), marks=pytest.mark.night),
    ],
)
def test_a_store_with_which_somebody_meddles_is_an_error_on_all_ranks_or_on_none(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "GRACE_S", 0.2)
    for seed in seeds:
        errors = meet(seed)
        assert all(isinstance(error, NetOffloadError) for error in errors) or errors == [None] * SIZE, (seed, errors)
    assert_no_watch_lives()


def test_fuzzed_offers_are_failures_and_never_another_exception() -> None:
    rng = random.Random(5)
    good = json.dumps(Offer(address="127.0.0.1", ports={True: 7, False: 8}).to_json()).encode()
    failures = 0
    for _ in range(20_000):
        octets = mutated(good, rng)
        try:
            words = json.loads(octets)
        except (ValueError, RecursionError):
            continue
        offer = Offer.from_json(words)
        failures += offer.failure is not None
        assert isinstance(offer.address, str)
        assert len(offer.token) == 16
        assert 1 <= offer.context < 2**32
    assert failures > 1000
