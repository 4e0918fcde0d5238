"""What the algorithms ask of a transport.

A transport is a set of ranks and, between every two of them, two reliable duplex octet streams: an untagged one, and
a tagged one whose octets a NIC may compress (so it carries float32 only). Sending and receiving never block;
:meth:`Exchange.wait` is the only place where a rank sleeps, and the only place where the time limit is kept. One
thread per rank drives all of its channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

FLOAT_OCTETS = 4


class Channel(Protocol):
    """A duplex octet stream to one peer."""

    @property
    def peer(self) -> int:
        """Rank at the other end."""
        ...

    def send_some(self, data: memoryview) -> int:
        """Send a prefix of ``data`` and return its length in octets; 0 if nothing fits now.

        Raises:
            PeerLostError: the peer is gone.
        """
        ...

    def receive_some(self, into: memoryview) -> int:
        """Fill a prefix of ``into`` (not empty) and return its length in octets; 0 if nothing is there now.

        Raises:
            PeerLostError: the peer is gone and everything it sent has been received.
        """
        ...


class Exchange(Protocol):
    """One rank's view of all ranks."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def channel(self, peer: int, *, tagged: bool) -> Channel:
        """Return the stream to ``peer``; the same object in every call.

        Raises:
            PeerLostError: the exchange is closed.
        """
        ...

    def wait(self, readable: Sequence[Channel], writable: Sequence[Channel]) -> None:
        """Sleep until one of ``readable`` has octets (or has ended) or one of ``writable`` takes some.

        Raises:
            PeerLostError: nothing happened for the exchange's time limit; names the silent ranks.
        """
        ...

    def scratch(self, count: int) -> Float32Array:
        """Return a float32 vector of ``count`` elements, kept between calls; its content lasts for one call."""
        ...

    def close(self) -> None:
        """End all channels; the algorithms do so after an error, when streams are at unknown positions."""
        ...
