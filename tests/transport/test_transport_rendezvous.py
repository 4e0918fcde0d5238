"""How ranks find each other over a store, whatever earlier processes left there. Ranks are threads."""

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from netoffload.errors import CollectiveError, MalformedError, PeerLostError
from netoffload.transport import StoreRendezvous
from netoffload.transport.rendezvous import store
from netoffload.transport.rendezvous.agreement import VERSION, Marking, Offer, Precision
from netoffload.transport.rendezvous.launchers import Attempt
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
