"""Rendezvous: how ranks find each other before there is a connection between them, and what they agree on.

A rendezvous gathers one JSON value from each rank, with a time limit; its errors name the ranks that do not come::

    launchers ── which rank of which attempt am I?
        │
    store (torch's)      MPI's (netoffload_mpi)      each a Rendezvous
        └────────────┬────────────┘
                     │  an Offer per rank: address, ports, token, codec, who compresses
                 agreement ── the same list on every rank, so the same decision or the same error

Called by ``transport.plane`` only, twice or three times per communicator. Whoever reaches the store can speak as a
rank here. From here on ranks know each other by the secrets that they exchange here (``wiring.hello``), and the watch
knows which ranks live.
"""

import json
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from netoffload.errors import MalformedError, PeerLostError

MAX_OCTETS: Final = 1024 * 1024  # longest value; a longer one comes from a stranger

GRACE_S: Final = 2.0  # how much longer the other ranks wait than rank 0, whose error names the missing ranks


class Rendezvous(Protocol):
    """A way to gather values from all ranks."""

    rank: int  # this rank, 0 .. size - 1
    size: int  # number of ranks

    @property
    def group(self) -> Hashable | None:
        """Name of this set of ranks: set-ups of the same group share connections; None: this one shares none."""

    def __call__(self, value: Any) -> Sequence[Any]:
        """Return every rank's value, in rank order; collective. The error names the ranks that did not come in time."""


def parse(octets: bytes, source: str) -> Any:
    """Return the JSON value in ``octets``, which came from ``source``; raise MalformedError if there is none."""
    if len(octets) > MAX_OCTETS:
        raise MalformedError(f"{source} is {len(octets)} octets long: no rank of this version sends that")
    try:
        return json.loads(octets)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{source} is no JSON value: {type(error).__name__}: {error}") from error


def missing(ranks: Sequence[int], limit_s: float, remark: str = "") -> PeerLostError:
    """Return the error for ranks that did not come."""
    names = ", ".join(map(str, ranks))
    return PeerLostError(
        f"rank {names} did not come to the set-up within {limit_s:g} s: its process is stopped, or its host or link is "
        f"down{remark}"
    )
