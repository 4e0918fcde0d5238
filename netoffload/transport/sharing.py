"""Connections shared by communicators of the same ranks.

A process keeps the watches of its groups of ranks in a table, where a set-up looks its group up. If all ranks have the
same watch, the new communicator becomes another context of it: no rank listens or connects anew. Else all ranks make a
new watch. Rank 0 numbers the contexts.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from netoffload.config import ENV_ADDRESS, ENV_CONTROL
from netoffload.transport.messages.watch import FIRST_CONTEXT, Watch
from netoffload.transport.rendezvous.agreement import Marking, Offer
from netoffload.transport.wiring import nearby


@dataclass(eq=False)
class Shared:
    """A group's watch, and what its ranks agreed on when they made it."""

    watch: Watch
    offers: list[Offer]  # the offers of all ranks
    marking: Marking | None  # what this rank's NIC takes for tagged
    # The numbers of later contexts.
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_CONTEXT + 1))

    @property
    def name(self) -> str:
        """A name that is the same on all ranks."""
        return nearby.name_of(self.offers[0].token)


_lock = threading.Lock()
_table: dict[Hashable, Shared] = {}


def key_of(group: Hashable | None, rank: int, *asked: Hashable) -> Hashable | None:
    """Return the key of a group: set-ups with the same key may share a watch; None: this one shares none."""
    if group is None:
        return None
    # The process id, so that a forked child shares none of its parent's connections.
    return group, rank, *asked, os.getpid(), os.environ.get(ENV_ADDRESS), os.environ.get(ENV_CONTROL)


@contextmanager
def held(key: Hashable | None, marking: Marking | None) -> Iterator[Shared | None]:
    """Keep a group's watch alive while all ranks find out whether they have the same one; None if there is none."""
    with _lock:
        found = _table.get(key)
        if found is not None and (found.marking != marking or not found.watch.hold()):
            found = None
    try:
        yield found
    finally:
        if found is not None:
            found.watch.release()


def keep(key: Hashable | None, shared: Shared) -> None:
    """Keep a new watch for later set-ups of the group."""
    if key is None:
        return
    with _lock:
        for stale in [each for each, one in _table.items() if not one.watch.is_alive]:
            del _table[stale]
        _table[key] = shared
