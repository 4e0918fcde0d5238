"""Meetings over a store that outlives ranks: whatever earlier processes left there, ranks that live find each other."""

import itertools
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from netoffload.errors import CollectiveError, MalformedError, PeerLostError
from netoffload.transport import StoreRendezvous
from netoffload.transport.rendezvous import store
from netoffload.transport.rendezvous.launchers import Attempt
from tests.transport.stores import MemoryStore

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


def start(threads: ThreadPoolExecutor, store: Any, ranks: range, *args: Any) -> list[Future[Any]]:
    return [threads.submit(gathered, store, rank, *args) for rank in ranks]


@pytest.mark.parametrize("victim", range(SIZE))
def test_what_a_rank_left_that_ended_between_any_two_steps_is_never_taken(victim: int) -> None:
    expected = [[f"new{rank}" for rank in range(SIZE)], [f"new{rank}!" for rank in range(SIZE)]]
    for calls in itertools.count():
        store = MemoryStore()
        with ThreadPoolExecutor(SIZE) as threads:
            mortal: Any = MortalStore(store, calls)
            first = [
                threads.submit(gathered, mortal if rank == victim else store, rank, FIRST, 0.05, "old")
                for rank in range(SIZE)
            ]
            ended = [one.result() for one in first]
        with ThreadPoolExecutor(SIZE) as threads:
            second = start(threads, store, range(SIZE), SECOND, 10.0, "new")
            assert [one.result() for one in second] == [expected] * SIZE, calls
        if not isinstance(ended[victim], CrashError) or calls > 40:
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
    with ThreadPoolExecutor(SIZE) as threads:
        came = [threads.submit(gathered, store, rank, attempts[rank], 10.0, "") for rank in range(SIZE)]
        assert [one.result()[0] for one in came] == [["0", "1", "2"]] * SIZE


def test_of_two_processes_of_a_rank_the_later_one_counts() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(4) as threads:
        [first] = start(threads, store, range(1), FIRST, 10.0, "")
        [older] = start(threads, store, range(1, 2), FIRST, 10.0, "older")
        with store._changed:
            assert store._changed.wait_for(lambda: any("/join/1" in key for key in store._values), 10)
            asked = store._values["netoffload/ask/1"]
        [newer] = start(threads, store, range(1, 2), FIRST, 10.0, "newer")
        with store._changed:
            assert store._changed.wait_for(lambda: store._values["netoffload/ask/1"] != asked, 10)
        [last] = start(threads, store, range(2, 3), FIRST, 10.0, "")
        assert first.result()[0] == newer.result()[0] == last.result()[0] == ["0", "newer1", "2"]
        assert "another process has taken the place of rank 1 (attempt 0)" in str(older.result())


def test_a_process_that_asked_and_ended_is_not_taken_for_the_one_that_joined_before() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(SIZE) as threads:
        [first] = start(threads, store, range(1), FIRST, 0.5, "")
        start(threads, store, range(1, 2), FIRST, 0.5, "")
        with store._changed:
            assert store._changed.wait_for(lambda: any("/join/1" in key for key in store._values), 10)
        store.set("netoffload/ask/1", json.dumps({"nonce": "0" * 32, "attempt": FIRST}))
        start(threads, store, range(2, 3), FIRST, 0.5, "")
        assert str(first.result()).startswith("rank 1 did not come")
        assert b"error" in next(value for key, value in store._values.items() if key.endswith("/roster"))


def test_two_groups_meet_over_one_store_at_the_same_time() -> None:
    store = MemoryStore()

    def body(group: int, rank: int) -> Any:
        return StoreRendezvous(store, rank, SIZE, 10.0, f"group{group}")([group, rank])

    with ThreadPoolExecutor(2 * SIZE) as threads:
        pairs = list(itertools.product(range(2), range(SIZE)))
        for (group, _), found in zip(pairs, threads.map(lambda pair: body(*pair), pairs), strict=True):
            assert found == [[group, rank] for rank in range(SIZE)]


def test_set_ups_of_the_same_ranks_follow_each_other_over_the_same_keys() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(SIZE) as threads:
        for values in "abc":
            came = start(threads, store, range(SIZE), FIRST, 10.0, values)
            assert [one.result()[0] for one in came] == [[f"{values}{rank}" for rank in range(SIZE)]] * SIZE


def test_nonsense_in_the_store_is_named() -> None:
    store = MemoryStore()
    store.set("netoffload/ask/1", "[" * 200_000)
    missing = gathered(store, 0, FIRST, 0.1, "")
    assert "rank 1's ask in the store is no JSON value: RecursionError" in str(missing)
    with ThreadPoolExecutor(SIZE) as threads:  # what stays there harms nobody
        assert [one.result()[0] for one in start(threads, store, range(SIZE), FIRST, 10.0, "")] == [["0", "1", "2"]] * 3
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
