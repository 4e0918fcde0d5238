"""What a rank remembers of the layers of a model: residuals, and a compressor's state for every bucket.

Buckets may be cut anew between two iterations. Residuals belong to layers, so they outlive the buckets.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout, State
from netoffload.methods.base import Bucket, GradientReducer, Member, Memory


def layers_of(layout: Layout, bucket: Bucket | None) -> Bucket:
    """Return the layers of a bucket; None: all of a model's ``layout``."""
    return tuple(range(len(layout.sizes))) if bucket is None else bucket


def layout_of(layout: Layout, bucket: Bucket | None) -> Layout:
    """Return the layout of a bucket of a model's ``layout``; None: all layers."""
    return layout if bucket is None else Layout(tuple(layout.sizes[layer] for layer in bucket))


def cut(sizes: Sequence[int], bucket_octets: float) -> tuple[Bucket, ...]:
    """Return buckets of consecutive layers with ``sizes`` floats, each of at most ``bucket_octets`` as float32.

    The last layers come first, because backward reaches them first. A longer layer has its own bucket. 0: no buckets.
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
    """A rank's residuals by layer of a model."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self._layout = layout

    def keep(self, left: Float32Array, layers: Bucket) -> None:
        """Keep the residual of a bucket."""
        self.update(zip(layers, layout_of(self._layout, layers).split(left), strict=True))

    def memory(self) -> Memory:
        """Return all residuals that have values, for :meth:`remember`."""
        return {"unsent": [(layer, values.tobytes()) for layer, values in self.items() if values.size]}

    def remember(self, memory: Memory) -> None:
        """Hold what :meth:`memory` returned, and nothing else."""
        self.clear()
        self.update({layer: np.frombuffer(octets, np.float32).copy() for layer, octets in memory["unsent"]})

    def take(self, layers: Bucket) -> dict[int, Float32Array]:
        """Return the residuals of some layers, zeros where there is none, and forget them; or nothing."""
        if self.keys().isdisjoint(layers):
            return {}
        return {layer: self.pop(layer, np.zeros(self._layout.sizes[layer], np.float32)) for layer in layers}

    def rescale(self, factors: Mapping[int, float]) -> None:
        """Multiply the residuals of these layers."""
        for layer in self.keys() & factors.keys():
            self[layer] *= np.float32(factors[layer])


class BucketStates:
    """A compressor's states on this rank, one per bucket, each made when its bucket first comes.

    A new bucket takes over the residuals of its layers from older buckets. It goes on counting steps where they
    stopped, so that no random stream is used twice.
    """

    def __init__(self, compressor: Compressor, member: Member) -> None:
        self._compressor, self._member = compressor, member
        self._states: dict[Bucket, State] = {}
        self._unsent = Unsent(member.layout)
        self._step = 0

    def of(self, bucket: Bucket | None) -> State:
        """Return the state of a bucket; None: all layers."""
        layers = layers_of(self._member.layout, bucket)
        if layers not in self._states:
            self._states[layers] = self._made(layers)
        return self._states[layers]

    def memory(self) -> Memory:
        """Return all states and residuals, for :meth:`remember`."""
        states = [(bucket, state.to_bytes()) for bucket, state in self._states.items()]
        return {"step": self._step, "states": states, **self._unsent.memory()}

    def remember(self, memory: Memory) -> None:
        """Hold what :meth:`memory` returned, and nothing else."""
        layout = self._member.layout
        self._step = memory["step"]
        self._states = {
            tuple(bucket): State.from_bytes(octets, layout_of(layout, bucket)) for bucket, octets in memory["states"]
        }
        self._unsent.remember(memory)

    def rescale(self, factors: Mapping[int, float]) -> None:
        """Multiply the residuals of these layers."""
        for bucket, state in self._states.items():
            if state.residual is not None:
                for layer, part in zip(bucket, state.layout.split(state.residual), strict=True):
                    np.multiply(part, np.float32(factors.get(layer, 1.0)), out=part)
        self._unsent.rescale(factors)

    def take(self, layers: Bucket) -> dict[int, Float32Array]:
        """Do :meth:`Unsent.take`, also with the residuals of buckets; the other layers keep theirs."""
        self._dissolve(layers)
        return self._unsent.take(layers)

    def _made(self, layers: Bucket) -> State:
        member = self._member
        state = self._compressor.make_state(
            layout_of(member.layout, layers),
            seed=member.seed,
            rank=member.exchange.rank + member.exchange.size * first_layer(layers),
            error_feedback=member.error_feedback,
        )
        self._dissolve(layers)
        state.step = self._step
        if state.residual is not None and (unsent := self._unsent.take(layers)):
            state.residual = np.concatenate(list(unsent.values()))
        return state

    def _dissolve(self, layers: Bucket) -> None:
        """Remove the buckets that hold one of these layers; the residuals of all their layers stay."""
        for bucket in [known for known in self._states if not set(known).isdisjoint(layers)]:
            state = self._states.pop(bucket)
            self._step = max(self._step, state.step)
            if state.residual is not None:
                self._unsent.keep(state.residual, bucket)


class RememberingReducer(GradientReducer):
    """A reducer whose memory is its residuals."""

    residuals: Unsent | BucketStates

    def memory(self) -> Memory:
        """See :meth:`GradientReducer.memory`."""
        return self.residuals.memory()

    def remember(self, memory: Memory) -> None:
        """See :meth:`GradientReducer.remember`."""
        self.residuals.remember(memory)
