"""Allgathers over a key-value store, which may outlive the ranks that use it.

``torchrun`` starts ranks anew over the store of the attempt before, so the store may hold anything that an earlier
process wrote. All values of a meeting are below a name that no earlier process knows, a nonce that rank 0 draws. Each
rank learns it by a nonce of its own::

    rank r                                       rank 0
    ask/r = {own nonce, attempt}                 reads ask/r until all have joined: it may be a dead process's
    waits for answer/{own nonce}       ◄──────   answer/{nonce} = the meeting's nonce, for each new ask
    {meeting}/join/r = own nonce       ──────►   waits for all; only the latest ask of a rank counts
    waits for {meeting}/roster         ◄──────   {meeting}/roster = the nonces of all ranks: the meeting has begun
    {meeting}/GATHER/r = value                   likewise

So a rank that finds itself in the roster shares the meeting with processes that live, one per rank. A rank that is not
in it hears that another process speaks for it. docs/design/collectives.md says why the attempt's number is in no key.
"""

from __future__ import annotations

import json
import re
import reprlib
import secrets
import time
from collections.abc import Hashable
from datetime import timedelta
from typing import Any, Final, Protocol

from netoffload.errors import CollectiveError, MalformedError, PeerLostError
from netoffload.transport.rendezvous import GRACE_S, missing, parse
from netoffload.transport.rendezvous.launchers import Attempt

PAUSE_S_MIN: Final = 0.0002
PAUSE_S_MAX: Final = 0.05
"""Shortest and longest pause between two looks of rank 0; each is twice the one before while nothing changes."""

SLACK_S: Final = 0.05  # a store's wait may end so much before its time limit

_NONCE_OCTETS: Final = 16


class Store(Protocol):
    """What a rendezvous needs of a key-value store; ``torch.distributed.Store`` has it."""

    def set(self, key: str, value: str, /) -> object:
        """Set a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys are there."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Return when all keys are there; raise RuntimeError, TimeoutError or OSError if they do not come in time."""


class StoreRendezvous:
    """Allgathers over a key-value store that all ranks share, each within ``limit_s``; the first includes the meeting.

    Sets of ranks that use the same store need different prefixes. ``group`` names this set of ranks, if later set-ups
    of the same ranks shall share connections.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        limit_s: float,
        prefix: str = "netoffload",
        group: Hashable | None = None,
        attempt: Attempt | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.group = group
        self.limit_s = limit_s
        self._store = store
        self._prefix = prefix
        self._attempt = attempt or Attempt.of_environment()
        self._meeting: str | None = None
        self._gathers = 0

    def __call__(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""
        deadline_s = time.monotonic() + self.limit_s
        try:
            if self._meeting is None:
                self._meeting = self._convene(deadline_s) if self.rank == 0 else self._join(deadline_s)
                deadline_s = max(deadline_s, time.monotonic() + GRACE_S)  # all ranks live
            keys = [f"{self._prefix}/{self._meeting}/{self._gathers}/{rank}" for rank in range(self.size)]
            self._gathers += 1
            self._store.set(keys[self.rank], json.dumps(value))
            if absent := [rank for rank, key in enumerate(keys) if not self._comes(key, deadline_s)]:
                raise missing(absent, self.limit_s)
            return [parse(self._store.get(key), f"what rank {rank} left in the store") for rank, key in enumerate(keys)]
        except CollectiveError:
            raise
        except (RuntimeError, OSError) as error:
            raise CollectiveError(f"the store of the rendezvous does not work: {error}") from error

    def _convene(self, deadline_s: float) -> str:
        """Draw a meeting's nonce, and begin the meeting when all ranks have joined; on rank 0."""
        meeting, pause_s, stood = secrets.token_hex(_NONCE_OCTETS), PAUSE_S_MIN, None
        asks = {rank: _Ask() for rank in range(1, self.size)}
        try:
            while waiting := [rank for rank, ask in asks.items() if not self._has_joined(rank, ask, meeting)]:
                if time.monotonic() > deadline_s:
                    remarks = [f"; {asks[rank].stale}" for rank in waiting if asks[rank].stale]
                    raise missing(waiting, self.limit_s, "".join(remarks))
                stands = waiting, [ask.nonce for ask in asks.values()]
                pause_s = min(2 * pause_s, PAUSE_S_MAX) if stands == stood else PAUSE_S_MIN
                stood = stands
                time.sleep(pause_s)
        except CollectiveError as error:
            refusal = json.dumps({"error": str(error)})
            for key in [self._roster(meeting), *(self._answer(ask.nonce) for ask in asks.values() if ask.nonce)]:
                self._store.set(key, refusal)
            raise
        self._store.set(self._roster(meeting), json.dumps({"nonces": {rank: asks[rank].nonce for rank in asks}}))
        return meeting

    def _has_joined(self, rank: int, ask: _Ask, meeting: str) -> bool:
        """Answer a rank's ask if it is new, and return whether the process that was answered last has joined."""
        key = f"{self._prefix}/ask/{rank}"
        if not self._store.check([key]):
            return False
        octets = self._store.get(key)
        if octets != ask.octets:
            ask.octets, ask.nonce, ask.stale = octets, "", ""
            try:
                nonce, attempt = _read_ask(rank, octets)
            except MalformedError as error:  # it may be older than this program
                ask.stale = str(error)
                return False
            if attempt.is_other_than(self._attempt):
                ask.stale = f"rank {rank}'s offer is from {attempt}; this is {self._attempt}"
                return False
            ask.nonce = nonce
            self._store.set(self._answer(nonce), json.dumps({"meeting": meeting}))
        joined = f"{self._prefix}/{meeting}/join/{rank}"
        if not ask.nonce or not self._store.check([joined]):
            return False
        return bool(parse(self._store.get(joined), f"rank {rank}'s join") == ask.nonce)

    def _join(self, deadline_s: float) -> str:
        """Ask for the meeting's nonce, join it, and return it when the meeting has begun; not on rank 0."""
        own, deadline_s = secrets.token_hex(_NONCE_OCTETS), deadline_s + GRACE_S
        self._store.set(f"{self._prefix}/ask/{self.rank}", json.dumps({"nonce": own, "attempt": self._attempt}))
        if not self._comes(self._answer(own), deadline_s):
            raise missing([0], self.limit_s)
        meeting = _checked_nonce(self._read_field(self._answer(own), "meeting"))
        self._store.set(f"{self._prefix}/{meeting}/join/{self.rank}", json.dumps(own))
        if not self._comes(self._roster(meeting), deadline_s):
            joins = {rank: f"{self._prefix}/{meeting}/join/{rank}" for rank in range(1, self.size)}
            raise missing([rank for rank, key in joins.items() if not self._store.check([key])] or [0], self.limit_s)
        nonces = self._read_field(self._roster(meeting), "nonces")
        if not isinstance(nonces, dict) or nonces.get(str(self.rank)) != own:
            raise CollectiveError(f"another process has taken the place of rank {self.rank} ({self._attempt})")
        return meeting

    def _read_field(self, key: str, name: str) -> Any:
        """Return what rank 0 wrote as ``name``; raise PeerLostError if it wrote an error instead."""
        words = parse(self._store.get(key), "what rank 0 left in the store")
        if isinstance(words, dict) and "error" in words:
            raise PeerLostError(_text(words["error"]))
        if not isinstance(words, dict) or name not in words:
            raise MalformedError(f"what rank 0 left in the store has no {name}: install the same version everywhere")
        return words[name]

    def _answer(self, nonce: str) -> str:
        return f"{self._prefix}/answer/{nonce}"

    def _roster(self, meeting: str) -> str:
        return f"{self._prefix}/{meeting}/roster"

    def _comes(self, key: str, deadline_s: float) -> bool:
        """Return whether ``key`` comes before the deadline; a key that is there already counts even after it."""
        left_s = max(deadline_s - time.monotonic(), 0.01)
        try:
            self._store.wait([key], timedelta(seconds=left_s))
        except (RuntimeError, OSError):  # TimeoutError is an OSError
            if time.monotonic() < deadline_s - SLACK_S:
                raise
            return False
        return True


class _Ask:
    """What rank 0 knows of another rank."""

    octets: bytes = b""
    nonce: str = ""
    stale: str = ""  # why its ask gets no answer


def _read_ask(rank: int, octets: bytes) -> tuple[str, Attempt]:
    words = parse(octets, f"rank {rank}'s ask in the store")
    try:
        run, counter, number = words["attempt"]
        return _checked_nonce(words["nonce"]), Attempt(_text(run), _text(counter), int(number))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MalformedError(f"rank {rank}'s ask in the store is not one of this version: {error!r}") from error


def _checked_nonce(words: Any) -> str:
    """Return a nonce, which becomes part of a key."""
    if re.fullmatch(r"[0-9a-f]{32}", text := _text(words)) is None:
        raise MalformedError(f"a store holds {text!r:.40} where a nonce belongs: install the same version everywhere")
    return text


def _text(words: Any) -> str:
    if not isinstance(words, str):
        raise MalformedError(
            f"a store holds {reprlib.repr(words)} where a text belongs: install the same version everywhere"
        )
    return words
