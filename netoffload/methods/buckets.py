"""A compressor's state for every bucket of a model's layers."""

from __future__ import annotations

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout, State
from netoffload.methods.base import Bucket, Member


def layout_of(layout: Layout, bucket: Bucket | None) -> Layout:
    """Return the layout of a bucket of a model's ``layout``; None: all layers."""
    return layout if bucket is None else Layout(tuple(layout.sizes[layer] for layer in bucket))


def first_layer(bucket: Bucket | None) -> int:
    """Return the layer that numbers a bucket's random stream: no two buckets of one iteration begin alike."""
    return bucket[0] if bucket else 0


class BucketStates:
    """This rank's states, one per bucket, each made when its bucket first comes.

    A bucket with other layers than before takes over what older ones left unsent of its layers, and goes on counting
    steps where they stopped, so no random stream is used twice.
    """

    def __init__(self, compressor: Compressor, member: Member) -> None:
        """Nothing is encoded yet."""
        self._compressor, self._member = compressor, member
        self._states: dict[Bucket, State] = {}
        self._unsent: dict[int, Float32Array] = {}
        self._step = 0

    def of(self, bucket: Bucket | None) -> State:
        """Return the state of a bucket; None: all layers."""
        layers = tuple(range(len(self._member.layout.sizes))) if bucket is None else bucket
        if layers not in self._states:
            self._states[layers] = self._made(layers)
        return self._states[layers]

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
        """Keep what a bucket left unsent of each of its layers, and forget the bucket."""
        state = self._states.pop(layers)
        self._step = max(self._step, state.step)
        if state.residual is not None:
            self._unsent.update(zip(layers, np.split(state.residual, state.layout.offsets[1:-1]), strict=True))
