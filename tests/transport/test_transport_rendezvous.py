"""How ranks find each other: over addresses, over a store whatever earlier processes left there. Ranks are threads."""

import contextlib
import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from netoffload.errors import CollectiveError, MalformedError, PeerLostError, UsageError
from netoffload.transport import StoreRendezvous
from netoffload.transport.rendezvous import store
from netoffload.transport.rendezvous.addresses import Address, AddressRendezvous, parse_addresses, read_addresses
from netoffload.transport.rendezvous.agreement import VERSION, Marking, Offer, Precision
from netoffload.transport.rendezvous.launchers import Attempt
from tests.shared.ports import free_port
from tests.transport.stores import MemoryStore


def on_threads(ranks: range, body: Callable[[int], Any]) -> list[Any]:
    """What ``body`` returned or raised on each rank."""

    def run(rank: int) -> Any:
        try:
            return body(rank)
        except CollectiveError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(run, ranks))


def free_address() -> Address:
    return Address("127.0.0.1", free_port())


class BrokenStore(MemoryStore):
    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection reset by peer")

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        raise RuntimeError("Connection reset by peer")


def test_a_store_that_breaks_is_no_rank_that_is_missing() -> None:
    with pytest.raises(CollectiveError, match="the store of the rendezvous does not work: Connection reset"):
        StoreRendezvous(BrokenStore(), 0, 2, limit_s=10.0)("here")


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_the_store_is_named() -> None:
    store = MemoryStore()
    told = on_threads(range(2), lambda rank: StoreRendezvous(store, rank, 4, limit_s=2.0)("here"))
    for error in told:
        assert isinstance(error, PeerLostError)
        assert str(error).startswith("rank 2, 3 did not come to the set-up within 2 s")


def test_addresses_gather_again_and_again_whoever_comes_first() -> None:
    addresses = [free_address(), Address("127.0.0.2", 1), Address("127.0.0.3", 1)]

    def body(rank: int) -> Any:
        with AddressRendezvous(addresses, rank, limit_s=10.0) as gather:
            return [gather({"rank": rank}), gather([rank])]

    expected = [[{"rank": 0}, {"rank": 1}, {"rank": 2}], [[0], [1], [2]]]
    assert on_threads(range(3), body) == [expected] * 3
    assert AddressRendezvous(addresses[:1], 0, 1.0)("alone") == ["alone"]


@pytest.mark.slow
def test_a_rank_that_does_not_come_to_the_first_address_is_named_on_all() -> None:
    addresses = [free_address()] * 4
    for error in on_threads(range(3), lambda rank: _gather_once(addresses, rank, Attempt(), 2.0)):
        assert isinstance(error, PeerLostError)
        assert str(error).startswith("rank 3 did not come to the set-up within 2 s")


def test_a_gather_that_failed_leaves_nothing_to_the_next_one() -> None:
    addresses = [free_address()] * 2
    failed = threading.Barrier(2)

    def body(rank: int) -> Any:
        with AddressRendezvous(addresses, rank, limit_s=20.0) as gather:
            gather("first")
            with pytest.raises((CollectiveError, TypeError)):
                gather(object() if rank == 0 else "second")  # which rank 0 cannot send
            failed.wait(10)
            return gather("third")

    assert on_threads(range(2), body) == [["third"] * 2] * 2


def test_a_rank_that_ends_between_two_gathers_is_named_at_once_on_all() -> None:
    addresses = [free_address()] * 3

    def body(rank: int) -> Any:
        with AddressRendezvous(addresses, rank, limit_s=20.0) as gather:
            gather("here")
            return None if rank == 2 else gather("still here")

    told = on_threads(range(3), body)
    assert told[2] is None
    for error in told[:2]:
        assert "rank 2 ended during the set-up" in str(error)


def test_a_first_rank_that_never_listens_is_named() -> None:
    with pytest.raises(PeerLostError, match=r"rank 0 at 127.0.0.1:.* did not answer in the set-up"):
        AddressRendezvous([free_address()] * 2, 1, limit_s=0.1)("here")


@contextlib.contextmanager
def waiting_for_rank_1() -> Iterator[Address]:
    """The address at which rank 0 waits; in the end rank 1 comes, and both have what they gathered."""
    addresses = [free_address(), Address("127.0.0.2", 1)]
    with AddressRendezvous(addresses, 0, limit_s=20.0) as first, ThreadPoolExecutor(1) as threads:
        gathered = threads.submit(first, "here")
        yield addresses[0]
        with AddressRendezvous(addresses, 1, limit_s=20.0) as second:
            assert second("too") == ["here", "too"]
        assert gathered.result(10) == ["here", "too"]


def framed(words: bytes) -> bytes:
    return struct.pack("!I", len(words)) + words


def said_by(rank: int, size: int = 2) -> bytes:
    return framed(json.dumps([rank, size, Attempt(), "value"]).encode())


NONSENSE = (b"[" * 200_000, b'{"half', b"[1]", b'[1, 2, "a lie"]', b"1" * 5000, b'[1, 2, ["", "", 1e400], 0]', b"\xff")


def test_strangers_are_closed_at_once_and_nonsense_from_a_ranks_address_ends_nothing() -> None:
    with waiting_for_rank_1() as address:
        strangers = [(source, b"") for source in ("127.0.0.1", "127.0.0.3")]  # no rank's address
        nonsense = [b"GET / HTTP/1.1\r\n", struct.pack("!I", 2**31), *map(framed, NONSENSE)]
        for source, octets in strangers + [("127.0.0.2", octets) for octets in nonsense]:
            with socket.create_connection(address, 10, (source, 0)) as stranger, contextlib.suppress(ConnectionError):
                stranger.sendall(octets)
                stranger.settimeout(10)
                assert stranger.recv(1) == b""


def test_an_octet_now_and_then_does_not_hold_the_first_rank() -> None:
    addresses = [free_address(), Address("127.0.0.2", 1)]
    ended = threading.Event()
    with AddressRendezvous(addresses, 0, limit_s=0.4) as first, ThreadPoolExecutor(1) as threads:
        gathered = threads.submit(first, "here")
        gathered.add_done_callback(lambda _: ended.set())
        with socket.create_connection(addresses[0], 10, ("127.0.0.2", 0)) as dripping, contextlib.suppress(OSError):
            for octet in itertools.chain(said_by(1)[:4], itertools.repeat(ord(" "))):
                dripping.send(bytes([octet]))
                if ended.wait(0.05):
                    break
        with pytest.raises(PeerLostError, match=r"rank 1 did not come to the set-up within 0\.4 s"):
            gathered.result(10)


def test_a_gather_succeeds_only_if_all_ranks_have_the_values() -> None:
    addresses = [free_address(), Address("127.0.0.2", 1), Address("127.0.0.3", 1)]

    def body(rank: int) -> Any:
        if rank < 2:
            return _gather_once(addresses, rank, Attempt(), 10.0)
        for _ in range(200):
            try:
                conn = socket.create_connection(addresses[0], 10, ("127.0.0.3", 0))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        with conn:
            conn.sendall(said_by(2, 3))
            return len(conn.recv(65536)) > 0  # it has the values, and ends without a receipt

    told = on_threads(range(3), body)
    assert told[2] is True
    for error in told[:2]:
        assert isinstance(error, PeerLostError)
        assert "rank 2 ended during the set-up" in str(error)


def test_many_idle_connections_from_a_ranks_address_do_not_keep_it_out() -> None:
    with contextlib.ExitStack() as idle, waiting_for_rank_1() as address:
        for _ in range(200):
            idle.enter_context(socket.create_connection(address, 10, ("127.0.0.2", 0)))


@pytest.mark.slow
def test_a_rank_of_another_attempt_is_refused_by_name_and_a_later_one_waits_for_its_first_rank() -> None:
    addresses = [free_address(), Address("127.0.0.2", 1)]
    old, new = Attempt("job", "", 0), Attempt("job", "", 1)
    told = on_threads(range(2), lambda rank: _gather_once(addresses, rank, (new, old)[rank], 2.0))
    reason = "rank 1's offer is from attempt 0; this is attempt 1"
    assert str(told[1]) == reason
    assert str(told[0]).endswith(f"; {reason}")
    with ThreadPoolExecutor(2) as threads:
        stale = threads.submit(_gather_once, addresses, 0, old, 2.0)
        later = threads.submit(_gather_once, addresses, 1, new, 20.0)
        assert "rank 1's offer is from attempt 1; this is attempt 0" in str(stale.result())
        assert _gather_once(addresses, 0, new, 20.0) == later.result() == [0, 1]


def _gather_once(addresses: list[Address], rank: int, attempt: Attempt, limit_s: float) -> Any:
    try:
        with AddressRendezvous(addresses, rank, limit_s, attempt) as gather:
            return gather(rank)
    except CollectiveError as error:
        return error


def test_addresses_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    path.write_text("# the cluster\nn0:7100\n\n10.0.0.2:7100  # the slow one\n")
    assert read_addresses(path) == [("n0", 7100), ("10.0.0.2", 7100)]
    with pytest.raises(UsageError, match="line 2: 'n1' is not an address: give host:port"):
        parse_addresses(["n0:1", "n1"])
    with pytest.raises(UsageError, match="No such file"):
        read_addresses(tmp_path / "none")
    with pytest.raises(UsageError, match="rank 2 is not in the list of 2 addresses"):
        AddressRendezvous(read_addresses(path), 2, 1.0)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no text in UTF-8"):
        read_addresses(path)


@pytest.mark.parametrize(
    "offer",
    [
        Offer(address="10.0.0.1", ports={True: 7, False: 8}, marking=Marking(0x48, ((1, 2),))),
        Offer(precision=Precision("bounded", 9), failure="no"),
    ],
)
def test_an_offer_survives_its_journey(offer: Offer) -> None:
    there = Offer.from_json(offer.to_json())
    assert (there, there.token) == (offer, offer.token)


def test_an_offer_of_another_version_is_known_by_it_and_nonsense_is_a_failure() -> None:
    assert Offer.from_json({"version": VERSION + 1}).version == VERSION + 1
    assert "cannot be read" in str(Offer.from_json({"version": VERSION, "marking": 3}).failure)
    assert "cannot be read" in str(Offer.from_json("what").failure)


SIZE = 3
FIRST, SECOND = Attempt("job", "0", 0), Attempt("job", "0", 1)


class CrashError(Exception):
    """Stands for the end of a process."""


class MortalStore:
    """One process's access to a store; the process ends at its call number ``calls``."""

    def __init__(self, store: MemoryStore, calls: int) -> None:
        self._store = store
        self._left = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if name != "check" or args[0][0].endswith("/roster"):  # how often rank 0 looks depends on the time
                self._left -= 1
            if self._left < 0:
                raise CrashError
            return getattr(self._store, name)(*args)

        return call


@pytest.fixture(autouse=True)
def _wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GRACE_S", 0.05)


def gathered(store: Any, rank: int, attempt: Attempt, limit_s: float, values: str) -> Any:
    """What two gathers of a rank brought, or its error."""
    try:
        gather = StoreRendezvous(store, rank, SIZE, limit_s, attempt=attempt)
        return [gather(f"{values}{rank}"), gather(f"{values}{rank}!")]
    except (CollectiveError, CrashError) as error:
        return error


def all_gathered(store: Any, attempt: Attempt, values: str) -> bool:
    """Let all ranks gather twice; return whether each has the values of all."""
    each = [f"{values}{rank}" for rank in range(SIZE)]
    found = on_threads(range(SIZE), lambda rank: gathered(store, rank, attempt, 10.0, values))
    return found == [[each, [f"{one}!" for one in each]]] * SIZE


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(SIZE))
def test_what_a_rank_left_that_ended_between_any_two_steps_is_never_taken(victim: int) -> None:
    for calls in itertools.count():
        store = MemoryStore()
        stores: list[Any] = [store] * SIZE
        stores[victim] = MortalStore(store, calls)
        with ThreadPoolExecutor(SIZE) as threads:
            first = [threads.submit(gathered, stores[rank], rank, FIRST, 0.05, "old") for rank in range(SIZE)]
            ended = [one.result() for one in first]
        assert all_gathered(store, SECOND, "new"), calls
        # On a busy machine the time limit may end the victim, before its calls are used up.
        if not isinstance(ended[victim], Exception) or calls > 40:
            break
    assert calls > 5


def test_a_stale_offer_is_refused_by_name() -> None:
    store = MemoryStore()
    assert "rank 0" in str(gathered(store, 1, FIRST, 0.01, "old"))
    missing = gathered(store, 0, SECOND, 0.1, "new")
    assert isinstance(missing, PeerLostError)
    assert str(missing).startswith("rank 1, 2 did not come to the set-up within 0.1 s")
    assert str(missing).endswith("; rank 1's offer is from attempt 0; this is attempt 1")


def test_agents_that_count_their_restarts_differently_meet() -> None:
    store, attempts = MemoryStore(), [Attempt("job", "0", 1), Attempt("job", "0", 1), Attempt("job", "1", 0)]
    came = on_threads(range(SIZE), lambda rank: gathered(store, rank, attempts[rank], 10.0, ""))
    assert [gathers[0] for gathers in came] == [["0", "1", "2"]] * SIZE


def test_of_two_processes_of_a_rank_the_later_one_counts() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(gathered, store, 0, FIRST, 10.0, "")
        older = threads.submit(gathered, store, 1, FIRST, 10.0, "older")
        with store._changed:
            assert store._changed.wait_for(lambda: any("/join/1" in key for key in store._values), 10)
            asked = store._values["netoffload/ask/1"]
        newer = threads.submit(gathered, store, 1, FIRST, 10.0, "newer")
        with store._changed:
            assert store._changed.wait_for(lambda: store._values["netoffload/ask/1"] != asked, 10)
        last = threads.submit(gathered, store, 2, FIRST, 10.0, "")
        assert first.result()[0] == newer.result()[0] == last.result()[0] == ["0", "newer1", "2"]
        assert "another process has taken the place of rank 1 (attempt 0)" in str(older.result())


@pytest.mark.slow
def test_a_process_that_asked_and_ended_is_not_taken_for_the_one_that_joined_before() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(SIZE) as threads:
        first = threads.submit(gathered, store, 0, FIRST, 2.0, "")
        threads.submit(gathered, store, 1, FIRST, 2.0, "")
        with store._changed:
            assert store._changed.wait_for(lambda: any("/join/1" in key for key in store._values), 10)
        store.set("netoffload/ask/1", json.dumps({"nonce": "0" * 32, "attempt": FIRST}))
        threads.submit(gathered, store, 2, FIRST, 2.0, "")
        assert str(first.result()).startswith("rank 1 did not come")
        assert b"error" in next(value for key, value in store._values.items() if key.endswith("/roster"))


def test_two_groups_meet_over_one_store_at_the_same_time() -> None:
    store = MemoryStore()

    def body(group: int, rank: int) -> Any:
        return StoreRendezvous(store, rank, SIZE, 10.0, f"group{group}")([group, rank])

    found = on_threads(range(2 * SIZE), lambda number: body(*divmod(number, SIZE)))
    assert found == [[[number // SIZE, rank] for rank in range(SIZE)] for number in range(2 * SIZE)]


def test_set_ups_of_the_same_ranks_follow_each_other_over_the_same_keys() -> None:
    store = MemoryStore()
    assert all(all_gathered(store, FIRST, values) for values in "abc")


def test_nonsense_in_the_store_is_named() -> None:
    store = MemoryStore()
    store.set("netoffload/ask/1", "[" * 200_000)
    missing = gathered(store, 0, FIRST, 0.1, "")
    assert "rank 1's ask in the store is no JSON value: RecursionError" in str(missing)
    assert all_gathered(store, FIRST, "")  # what stays there harms nobody
    gather = StoreRendezvous(MemoryStore(), 0, 1, 1.0)
    gather("here")
    assert isinstance(gather._store, MemoryStore)
    gather._store.set = lambda key, value: None  # type: ignore[method-assign]
    gather._store._values[f"netoffload/{gather._meeting}/1/0"] = b'{"half'
    with pytest.raises(MalformedError, match="what rank 0 left in the store is no JSON value"):
        gather("again")


@pytest.mark.parametrize(
    ("environment", "attempt"),
    [
        ({}, Attempt()),
        ({"TORCHELASTIC_RUN_ID": "a", "GROUP_RANK": "3", "TORCHELASTIC_RESTART_COUNT": "2"}, Attempt("a", "3", 2)),
        ({"SLURM_JOB_ID": "77"}, Attempt("77", "", 0)),
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}, Attempt("77", "", 1)),
        ({"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "x"}, Attempt("a", "", 0)),
    ],
)
def test_launchers_say_which_attempt_it_is(environment: dict[str, str], attempt: Attempt) -> None:
    assert Attempt.of_environment(environment) == attempt
    assert json.loads(json.dumps(attempt)) == list(attempt)
