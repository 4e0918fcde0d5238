"""What a rank remembers of the layers of a model: a compressor's state for every bucket, and residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout, State
from netoffload.methods.base import Bucket, Member, Memory


def layout_of(layout: Layout, bucket: Bucket | None) -> Layout:
    """Return the layout of a bucket of a model's ``layout``; None: all layers."""
    return layout if bucket is None else Layout(tuple(layout.sizes[layer] for layer in bucket))


def cut(sizes: Sequence[int], bucket_octets: float) -> tuple[Bucket, ...]:
    """Return buckets of consecutive layers, last layers first, because backward reaches the first layers last.

    Args:
        sizes: floats of each layer.
        bucket_octets: most octets of a bucket as float32; a longer layer has its own bucket. 0: no buckets.
    """
    buckets: list[list[int]] = []
    room = 0.0
    for layer in reversed(range(len(sizes) if bucket_octets else 0)):
        if not buckets or FLOAT_OCTETS * sizes[layer] > room:
            buckets.append([])
            room = bucket_octets
        buckets[-1].insert(0, layer)
        room -= FLOAT_OCTETS * sizes[layer]
    return tuple(tuple(bucket) for bucket in buckets)


def first_layer(bucket: Bucket | None) -> int:
    """Return a bucket's first layer, which numbers its random stream: buckets of one iteration never share one."""
    return bucket[0] if bucket else 0


class Unsent(dict[int, Float32Array]):
    """A rank's residuals by layer."""

    def keep(self, left: Float32Array, layers: Bucket, layout: Layout) -> None:
        """Keep the residual of a bucket, whose layout is ``layout``."""
        self.update(zip(layers, np.split(left, layout.offsets[1:-1]), strict=True))

    def memory(self) -> list[tuple[int, bytes]]:
        """Return all residuals, for :meth:`remember`."""
        return [(layer, values.tobytes()) for layer, values in self.items()]

    def remember(self, memory: list[tuple[int, bytes]]) -> None:
        """Hold what :meth:`memory` returned, and nothing else."""
        self.clear()
        self.update({layer: np.frombuffer(octets, np.float32).copy() for layer, octets in memory})

    def take(self, layers: Bucket, layout: Layout) -> dict[int, Float32Array]:
        """Return the residuals of some layers of a model, zeros where there is none, and forget them; or nothing."""
        if self.keys().isdisjoint(layers):
            return {}
        return {layer: self.pop(layer, np.zeros(layout.sizes[layer], np.float32)) for layer in layers}

    def rescale(self, factors: Mapping[int, float]) -> None:
        """Multiply the residuals of these layers."""
        for layer in self.keys() & factors.keys():
            self[layer] *= np.float32(factors[layer])


class BucketStates:
    """A compressor's states on this rank, one per bucket, each made when its bucket first comes.

    Buckets may be cut anew. A new bucket takes over the residuals of its layers from older buckets. It goes on counting
    steps where they stopped, so that no random stream is used twice.
    """

    def __init__(self, compressor: Compressor, member: Member) -> None:
        """Nothing is encoded yet."""
        self._compressor, self._member = compressor, member
        self._states: dict[Bucket, State] = {}
        self._unsent = Unsent()
        self._step = 0

    def of(self, bucket: Bucket | None) -> State:
        """Return the state of a bucket; None: all layers."""
        layers = tuple(range(len(self._member.layout.sizes))) if bucket is None else bucket
        if layers not in self._states:
            self._states[layers] = self._made(layers)
        return self._states[layers]

    def memory(self) -> Memory:
        """See :meth:`~netoffload.methods.base.GradientReducer.memory`."""
        return {
            "step": self._step,
            "states": [(bucket, state.to_bytes()) for bucket, state in self._states.items()],
            "unsent": self._unsent.memory(),
        }

    def remember(self, memory: Memory) -> None:
        """See :meth:`~netoffload.methods.base.GradientReducer.remember`."""
        layout = self._member.layout
        self._step = memory["step"]
        self._states = {
            tuple(bucket): State.from_bytes(octets, layout_of(layout, bucket)) for bucket, octets in memory["states"]
        }
        self._unsent.remember(memory["unsent"])

    def rescale(self, factors: Mapping[int, float]) -> None:
        """See :meth:`~netoffload.methods.base.GradientReducer.rescale`."""
        for bucket, state in self._states.items():
            if state.residual is not None and not factors.keys().isdisjoint(bucket):
                for layer, part in zip(bucket, np.split(state.residual, state.layout.offsets[1:-1]), strict=True):
                    np.multiply(part, np.float32(factors.get(layer, 1.0)), out=part)
        self._unsent.rescale(factors)

    def take_unsent(self, layers: Bucket) -> dict[int, Float32Array]:
        """See :meth:`~netoffload.methods.base.GradientReducer.take_unsent`."""
        for bucket in [known for known in self._states if not set(known).isdisjoint(layers)]:
            self._dissolve(bucket)
        return self._unsent.take(layers, self._member.layout)

    def _made(self, layers: Bucket) -> State:
        member = self._member
        state = self._compressor.make_state(
            layout_of(member.layout, layers),
            seed=member.seed,
            rank=member.exchange.rank + member.exchange.size * first_layer(layers),
            error_feedback=member.error_feedback,
        )
        for older in [known for known in self._states if not set(known).isdisjoint(layers)]:
            self._dissolve(older)
        state.step = self._step
        if state.residual is not None and not self._unsent.keys().isdisjoint(layers):
            sizes = state.layout.sizes
            parts = [self._unsent.pop(at, np.zeros(size, np.float32)) for at, size in zip(layers, sizes, strict=True)]
            state.residual = np.concatenate(parts)
        return state

    def _dissolve(self, layers: Bucket) -> None:
        """Keep the residual of each layer of a bucket, and remove the bucket."""
        state = self._states.pop(layers)
        self._step = max(self._step, state.step)
        if state.residual is not None:
            self._unsent.keep(state.residual, layers, state.layout)
