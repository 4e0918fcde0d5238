"""A socket that takes and gives float32, and sends and receives chunks. Its users treat it as a socket, as with ssl's.

The rest of the transport does not know who compresses: a channel and the watch send float32 either way.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Self

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.compiled.arrays import readable
from netoffload.errors import CollectiveError
from netoffload.transport.wiring import chunks
from netoffload.transport.wiring.chunks import CODED_FLOATS, Fault

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from netoffload.transport.rendezvous.agreement import Quantiser


class CodedSocket(socket.socket):
    """One rank's end of a connection on which both ends code. Non-blocking; float32 only, by one thread at a time."""

    coding: chunks.Coding  # the connection's buffers and state
    peer: int  # rank at the other end
    _rest: memoryview

    @classmethod
    def over(cls, conn: socket.socket, quantiser: Quantiser, peer: int) -> Self:
        """Return a coded socket on the descriptor of ``conn``, which is detached from it."""
        coded = cls(fileno=conn.detach())
        coded.setblocking(False)
        coded.coding = chunks.make_coding(int(quantiser.codec_id), quantiser.bound_k)
        coded.peer = peer
        coded._rest = memoryview(bytearray())
        return coded

    @property
    def saved_octets(self) -> int:
        """How many octets coding has saved on this connection so far; chunk headers count as sent."""
        return int(self.coding.state[chunks.SAVED_OCTETS])

    @property
    def codec_s(self) -> float:
        """Seconds spent on coding so far."""
        return float(self.coding.state[chunks.CODED_NS]) * 1e-9

    @property
    def has_rest(self) -> bool:
        """Whether floats of a chunk wait for the next :meth:`recv_into`."""
        return bool(self._rest)

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        """Send a prefix of ``data``, one whole chunk; return its length in octets.

        After a BlockingIOError the next ``data`` must begin with the same floats: a part of their chunk may have left.
        """
        coding = self.coding
        if not coding.state[chunks.OUT_FLOATS]:
            source = readable(np.frombuffer(memoryview(data), np.uint8))
            start_ns = time.perf_counter_ns()
            chunks.pack(coding, source, 0, min(source.size // FLOAT_OCTETS, CODED_FLOATS))
            coding.state[chunks.CODED_NS] += time.perf_counter_ns() - start_ns
        while True:
            at, end = coding.state[chunks.OUT_AT], coding.state[chunks.OUT_END]
            if floats := chunks.count_sent(coding, super().send(coding.outgoing.data[at:end], flags)):
                return int(floats) * FLOAT_OCTETS

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Fill a prefix of ``buffer`` with floats; return its length in octets, 0 at the end of the stream."""
        into = memoryview(buffer)
        if not self._rest:
            coding = self.coding
            floats = 0
            while not floats:
                at, end = coding.state[chunks.IN_AT], coding.state[chunks.IN_END]
                if not (count := super().recv_into(coding.incoming.data[at:end], 0, flags)):
                    return 0
                if (floats := int(chunks.count_received(coding, count, CODED_FLOATS))) < 0:
                    raise self.damage()
            start_ns = time.perf_counter_ns()
            if not chunks.unpack(coding, coding.decoded.view(np.uint8), 0):
                raise self.damage()
            coding.state[chunks.CODED_NS] += time.perf_counter_ns() - start_ns
            self._rest = coding.decoded[:floats].data.cast("B")
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def damage(self) -> CollectiveError:
        """Return the error for a damaged chunk, with the reason in ``FAULT``."""
        words = Fault(int(self.coding.state[chunks.FAULT])).words
        return CollectiveError(f"a chunk from rank {self.peer} is damaged: {words}")
