"""Reducers with a host-side compressor: payloads of gradients, gathered, served or passed round a ring.

::

    gradient ── encode ──► payload ── gather | server | ring ──► payloads ── decode, add ──► sum

Every rank decodes the same octets in the same order, its own included, so the replicas stay bit-identical. A residual
stays on its worker (error feedback).
"""

from collections.abc import Iterable

import numpy as np

from netoffload import collectives
from netoffload.collectives import Exchange, Operation, Payload
from netoffload.collectives.exchange import combine
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout, State
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.methods.base import Bucket, GradientReducer, GradientServer, Member, Memory, MethodSpec
from netoffload.methods.buckets import BucketStates, RememberingReducer, first_layer, layout_of


class PayloadReducer(RememberingReducer):
    """What workers with a compressor share: a state per bucket."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        self._compressor = compressor_of(spec)
        self.residuals: BucketStates = BucketStates(self._compressor, member)


class GatherReducer(PayloadReducer):
    """Every worker sends its payload to all others, and adds all payloads."""

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`; ``gradient`` is not changed."""
        state = self.residuals.of(bucket)
        payload = self._compressor.encode(gradient, state)
        self.sent.vector_octets += payload.size
        self.sent.octets += payload.size * (self._exchange.size - 1)
        return _total(
            self._exchange, self._compressor, collectives.allgather_payloads(self._exchange, payload), state.layout
        )


class ServedReducer(PayloadReducer):
    """A worker of a parameter server, which is the last rank: it sends its payload and gets the float32 sum."""

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`."""
        payload = self._compressor.encode(gradient, self.residuals.of(bucket))
        self.sent.vector_octets += payload.size
        return self._answer(payload).view(np.float32)

    def _answer(self, payload: Payload) -> Payload:
        self.sent.octets += payload.size
        return collectives.push_pull(self._exchange, payload, server=self._exchange.size - 1)


class PayloadServer(GradientServer):
    """The parameter server: it adds the workers' payloads."""

    def serve(self, bucket: Bucket | None = None) -> None:
        """See :meth:`GradientServer.serve`."""
        exchange, compressor = self._exchange, compressor_of(self._spec)
        layout = layout_of(self._member.layout, bucket)
        answer = collectives.serve_payloads(
            exchange, lambda pushed: _total(exchange, compressor, pushed, layout).view(np.uint8)
        )
        self.sent.octets += answer.size * (exchange.size - 1)


class TernaryWorker(ServedReducer):
    """A worker of TernGrad's parameter server (Wen et al., Algorithm 1, 3.1).

    ::

        worker                                   server
        scalers of its gradient     ───────►     the largest of each
        shared scalers              ◄───────
        ternary gradient            ───────►     sum of N ternary vectors: 2 N + 1 levels
        mean gradient               ◄───────

    With one scaler for all workers the sum has few levels, like its terms, so the way down is compressed too. Workers
    keep their own weights and update them with the same mean (parameter localisation).
    """

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        self._sum = _sum_of(spec, member)

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`~netoffload.methods.base.GradientReducer.reduce`."""
        state = self.residuals.of(bucket)
        ternary = self._sum.uplink
        own = ternary.scalers(gradient, state)
        shared = self._answer(own.view(np.uint8)).view(np.float32)
        payload = ternary.encode_shared(gradient, shared, state)
        self.sent.vector_octets += payload.size + own.nbytes
        mean = self._sum.decode(self._answer(payload), state.layout)
        return np.multiply(mean, np.float32(self._sum.workers), out=mean)


class TernaryServer(GradientServer):
    """The server: answers with the largest scalers, and then with the sum of the ternary gradients."""

    def serve(self, bucket: Bucket | None = None) -> None:
        """See :meth:`GradientServer.serve`."""
        total, layout = _sum_of(self._spec, self._member), layout_of(self._member.layout, bucket)
        shared = collectives.serve_payloads(self._exchange, _largest)
        answer = collectives.serve_payloads(self._exchange, lambda pushed: total.encode(pushed, layout))
        self.sent.octets += (shared.size + answer.size) * (self._exchange.size - 1)


class PayloadRingReducer(GradientReducer):
    """A ring in which every hop decodes, adds and encodes; each block of a bucket has its own state.

    There is no error feedback, because a hop encodes a partial sum and not its own gradient.
    """

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        self._compressor = compressor_of(spec)
        self._states: dict[Bucket | None, list[State]] = {}

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`GradientReducer.reduce`."""
        states = self.states_of(bucket)

        def encode(values: Float32Array, block: int) -> Payload:
            payload = self._compressor.encode(values, states[block])
            self.sent.vector_octets += payload.size
            return payload

        self.sent.octets += collectives.ring_payloads(
            self._exchange,
            gradient,
            encode,
            lambda payload, block: self._compressor.decode(payload, states[block].layout),
        )
        return gradient

    def memory(self) -> Memory:
        """See :meth:`GradientReducer.memory`; without residuals the number of steps is all that a state has."""
        return {"steps": [(bucket, [state.step for state in states]) for bucket, states in self._states.items()]}

    def remember(self, memory: Memory) -> None:
        """See :meth:`GradientReducer.remember`."""
        self._states.clear()
        for bucket, steps in memory["steps"]:
            for state, step in zip(self.states_of(bucket and tuple(bucket)), steps, strict=True):
                state.step = step

    def states_of(self, bucket: Bucket | None) -> list[State]:
        """Return the states of a bucket's blocks; each block of each rank has its own random stream."""
        if bucket not in self._states:
            exchange = self._exchange
            layout = layout_of(self._member.layout, bucket)
            blocks = [_within(layout, span.start, span.stop) for span in partition(layout.count, exchange.size)]
            first = (first_layer(bucket) * exchange.size + exchange.rank) * exchange.size
            self._states[bucket] = [
                self._compressor.make_state(block, seed=self._member.seed, rank=first + at)
                for at, block in enumerate(blocks)
            ]
        return self._states[bucket]


def _total(exchange: Exchange, compressor: Compressor, payloads: Iterable[Payload], layout: Layout) -> Float32Array:
    """Return the sum of the decoded payloads, added in their order: the same bits on every rank."""
    total = np.zeros(layout.count, np.float32)
    for payload in payloads:
        combine(exchange, Operation.SUM, total, compressor.decode(payload, layout))
    return total


def _sum_of(spec: MethodSpec, member: Member) -> TernarySum:
    assert isinstance(spec.compressor, TernGrad), f"{spec.name} has no ternary gradients"
    return TernarySum(spec.compressor, member.exchange.size - 1)


def _largest(pushed: list[Payload]) -> Payload:
    """Return the largest of every scaler, as octets."""
    largest: Float32Array = np.max([scalers.view(np.float32) for scalers in pushed], axis=0)
    return largest.view(np.uint8)


def _within(layout: Layout, start: int, stop: int) -> Layout:
    """Return the part of a layout from float ``start`` to ``stop``, without empty layers."""
    lengths = [
        min(stop, end) - max(start, begin) for begin, end in zip(layout.offsets[:-1], layout.offsets[1:], strict=True)
    ]
    return Layout(tuple(length for length in lengths if length > 0) or (0,))


def compressor_of(spec: MethodSpec) -> Compressor:
    """Return the compressor of a method that has one."""
    assert spec.compressor is not None, f"{spec.name} moves floats"
    return spec.compressor
