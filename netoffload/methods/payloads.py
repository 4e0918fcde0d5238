"""The exchanges of host-side compressors: payloads of gradients, gathered, served or passed round a ring.

::

    gradient ── encode ──► payload ── gather | server | ring ──► payloads ── decode, add ──► update

Every rank decodes the same octets in the same order, its own among them, so the replicas stay bit-identical. What a
compressor leaves unsent stays in its state on the worker that left it (error feedback).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from netoffload.collectives import (
    Exchange,
    Payload,
    allgather_payloads,
    push_pull,
    ring_payloads,
    serve_payloads,
)
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout, State
from netoffload.methods.floats import GradientExchange, Sent, Update


@dataclasses.dataclass
class Coder:
    """A compressor with this rank's state, which counts what it encodes.

    Attributes:
        compressor: the method.
        state: of this rank.
        sent: where the payloads' octets are counted.
    """

    compressor: Compressor
    state: State
    sent: Sent

    def encode(self, values: Float32Array) -> Payload:
        """Return the payload of ``values``."""
        payload = self.compressor.encode(values, self.state)
        self.sent.vector_octets += payload.size
        return payload

    def decode(self, payload: Payload) -> Float32Array:
        """Return the values of a payload of any rank."""
        return self.compressor.decode(payload, self.state.layout)

    def total(self, payloads: Iterable[Payload]) -> Float32Array:
        """Return the sum of payloads, added in their order."""
        total = np.zeros(self.state.layout.count, np.float32)
        for payload in payloads:
            np.add(total, self.decode(payload), out=total)
        return total


class GatherExchange(GradientExchange):
    """Everybody's payload to everybody."""

    def __init__(self, exchange: Exchange, compressor: Compressor, state: State) -> None:
        """Encode with this rank's ``state``."""
        super().__init__()
        self._exchange = exchange
        self._coder = Coder(compressor, state, self.sent)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        update(self.sum(gradient))

    def sum(self, values: Float32Array) -> Float32Array:
        """Return the sum of what all ranks' payloads of ``values`` decode to; all ranks call it together."""
        payload = self._coder.encode(values)
        self.sent.octets += payload.size * (self._exchange.size - 1)
        return self._coder.total(allgather_payloads(self._exchange, payload))


class ServedExchange(GradientExchange):
    """A worker of a parameter server, the last rank: its payload goes, the float32 sum comes."""

    def __init__(self, exchange: Exchange, compressor: Compressor, state: State) -> None:
        """Encode with this rank's ``state``."""
        super().__init__()
        self._exchange = exchange
        self._coder = Coder(compressor, state, self.sent)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        payload = self._coder.encode(gradient)
        self.sent.octets += payload.size
        update(push_pull(self._exchange, payload, server=self._exchange.size - 1).view(np.float32))


class ServerExchange(GradientExchange):
    """The parameter server: it adds what comes, and has no weights."""

    def __init__(self, exchange: Exchange, compressor: Compressor, layout: Layout) -> None:
        """Decode with ``compressor``."""
        super().__init__()
        self._exchange = exchange
        self._coder = Coder(compressor, compressor.make_state(layout), self.sent)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``update`` is not called."""
        answer = serve_payloads(self._exchange, lambda pushed: self._coder.total(pushed).view(np.uint8))
        self.sent.octets += answer.size * (self._exchange.size - 1)


class RingPayloadExchange(GradientExchange):
    """A ring in which every hop decodes, adds and encodes; a state per block, since each is encoded by itself."""

    def __init__(self, exchange: Exchange, compressor: Compressor, layout: Layout, seed: int) -> None:
        """Make one state per block; there is no error feedback, because what a hop encodes is not its own gradient."""
        super().__init__()
        self._exchange = exchange
        layouts = [_within(layout, span.start, span.stop) for span in partition(layout.count, exchange.size)]
        # A stream of random words belongs to a state's rank: each block of each rank has one of its own.
        first = exchange.rank * exchange.size
        states = [compressor.make_state(block, seed=seed, rank=first + at) for at, block in enumerate(layouts)]
        self._coders = [Coder(compressor, state, self.sent) for state in states]

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        self.sent.octets += ring_payloads(
            self._exchange,
            gradient,
            lambda values, block: self._coders[block].encode(values),
            lambda payload, block: self._coders[block].decode(payload),
        )
        update(gradient)


def _within(layout: Layout, start: int, stop: int) -> Layout:
    """Return the part of a layout from float ``start`` to ``stop``: whole and cut layers, empty ones left out."""
    parts = [
        min(stop, end) - max(start, begin)
        for begin, end in zip(layout.offsets[:-1], layout.offsets[1:], strict=True)
        if min(stop, end) > max(start, begin)
    ]
    return Layout(tuple(parts) or (0,))
