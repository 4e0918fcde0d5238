"""Connections shared by communicators of the same ranks.

A process keeps the watches of its groups of ranks in a table. A set-up looks its group up there. If all ranks have the
same watch, the new communicator becomes another context of it: nobody listens or connects anew. Else all ranks make a
new one. Rank 0 numbers the contexts.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from netoffload.config import ENV_ADDRESS, ENV_CONTROL
from netoffload.transport.agreement import Marking, Offer
from netoffload.transport.watch import FIRST_CONTEXT, Watch


@dataclass(eq=False)
class Shared:
    """A group's watch, and what its ranks agreed on when they made it.

    Attributes:
        watch: the connections.
        offers: of all ranks.
        marking: of this rank's NIC.
    """

    watch: Watch
    offers: list[Offer]
    marking: Marking | None
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_CONTEXT + 1))

    @property
    def name(self) -> str:
        """What all its ranks call it."""
        return self.offers[0].token.hex()


_lock = threading.Lock()
_table: dict[Hashable, Shared] = {}


def key_of(group: Hashable | None, rank: int, *asked: Hashable) -> Hashable | None:
    """Return the key of a group: whoever has the same one may share; None: nobody.

    Args:
        group: of ranks.
        rank: this one.
        asked: what belongs to the watch: the time limit, and how tagged lanes compress.

    A forked child has none of its parent's connections.
    """
    if group is None:
        return None
    return group, rank, *asked, os.getpid(), os.environ.get(ENV_ADDRESS), os.environ.get(ENV_CONTROL)


@contextmanager
def held(key: Hashable | None, marking: Marking | None) -> Iterator[Shared | None]:
    """Keep a group's watch while all ranks find out whether they have the same; None if there is none.

    Args:
        key: of the group.
        marking: of this rank's NIC, which may be another one meanwhile.
    """
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
    """Let later set-ups of the group find a new watch."""
    if key is None:
        return
    with _lock:
        for stale in [each for each, one in _table.items() if not one.watch.is_alive]:
            del _table[stale]
        _table[key] = shared
