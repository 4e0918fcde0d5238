"""What a method is: its name and parameters, what a rank passes to it, and what the rank then calls."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final

from netoffload.collectives import Exchange, Quantise
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout
from netoffload.errors import UsageError

Update = Callable[[Float32Array], None]
"""Takes the sum of all workers' gradients, or this worker's own where weights are averaged, and updates parameters."""

NO_LAYERS: Final = Layout(())

Bucket = tuple[int, ...]
"""Indices of layers in the model's layout, in the order in which their values lie in the bucket's vector."""

Memory = dict[str, Any]
"""What a method keeps from one iteration to the next, as numbers, texts, octets, tuples, lists and dictionaries."""


class Topology(enum.Enum):
    """How a method connects its ranks."""

    AGGREGATOR = "aggregator"  # a rank beside the workers updates the weights
    RING = "ring"  # partial sums of floats go round a ring
    GATHER = "gather"  # every rank sends its payload to all others
    SERVER = "server"  # a rank beside the workers adds their payloads
    PAYLOAD_RING = "payload-ring"  # payloads go round a ring; every hop decodes, adds and encodes


@dataclasses.dataclass(frozen=True)
class Family:
    """What all parameters of a method have in common."""

    topology: Topology
    worker: type[Method]
    server: type[Method] | None = None  # of the rank beside the workers: an aggregator or a server
    tagged: bool = False  # gradients travel through the NICs' codec
    periodic: bool = False  # it takes ``p``, the iterations from one averaging to the next
    compressor: str = ""  # the name of the only compressor that it uses
    grouped: bool = False  # workers may form groups


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """What a method's name stands for (:func:`netoffload.methods.registry.parse`)."""

    name: str  # as the user wrote it
    short: str  # without its parameters
    family: Family
    period: int = 1  # iterations from one averaging to the next; 1 for all but the periodic methods
    compressor: Compressor | None = None  # makes the payloads; None: floats travel
    groups: int = 1  # number of groups of workers
    top: str = "ring"  # how the sums of groups that are rings are added (``collectives.hierarchy.TOPS``)

    def __post_init__(self) -> None:
        """Refuse a compressor whose residual no way of its payloads could keep."""
        if self.compressor is not None and self.compressor.always_feeds_back and not self.keeps_residual:
            raise UsageError(
                f"{self.short} keeps what it does not send, and via=ring encodes others' sums: write via=gather"
            )

    @property
    def topology(self) -> Topology:
        """How the ranks are connected."""
        return self.family.topology

    @property
    def tagged(self) -> bool:
        """Whether gradients travel through the NICs' codec."""
        return self.family.tagged

    @property
    def has_server(self) -> bool:
        """Whether more ranks than the workers take part."""
        return self.family.server is not None

    @property
    def sums_gradients(self) -> bool:
        """Whether buckets of a gradient can be summed separately."""
        return issubclass(self.family.worker, GradientReducer)

    @property
    def servers(self) -> int:
        """Number of ranks after the workers: aggregators of groups, and the one that updates or adds."""
        return int(self.has_server) * (1 + (self.groups if self.groups > 1 else 0))

    def groups_of(self, workers: int) -> list[range]:
        """Return the workers of each group; UsageError if the groups would differ in size."""
        size, rest = divmod(workers, self.groups)
        if rest:
            raise UsageError(f"{self.name}: {workers} workers do not make {self.groups} groups of equal size")
        return [range(start, start + size) for start in range(0, workers, size)]

    @property
    def takes_buckets(self) -> bool:
        """Whether a part of a model can be summed by itself."""
        return self.sums_gradients and not (self.compressor is not None and self.compressor.is_by_layer)

    @property
    def keeps_residual(self) -> bool:
        """Whether error feedback is possible: each payload must be made from a worker's own vector."""
        return self.compressor is not None and self.topology is not Topology.PAYLOAD_RING


def as_it_is(_octets: int, move: Callable[[bool], None]) -> None:
    """Move weights untagged."""
    move(False)


@dataclasses.dataclass(frozen=True)
class Member:
    """What a rank passes to a method."""

    exchange: Exchange  # its last ranks are aggregators or the server, if there are any
    quantise: Quantise | None = None  # rounds as the NICs do; only a tagged ring uses it
    layout: Layout = NO_LAYERS  # the model's weights and biases; compressors need it
    seed: int = 0  # of the compressors' random numbers, equal on all ranks
    error_feedback: bool = False  # a compressor adds what it left unsent to the next vector
    buckets: tuple[Bucket, ...] = ()  # in which a server sums gradients, in the workers' order; empty: one for all
    move: Callable[[int, Callable[[bool], None]], None] = as_it_is  # moves weights (``DataPlane.move``)
    owners: tuple[int, ...] = ()  # by layer, the only rank that gets its sum (``scattered``); empty: all get all sums


@dataclasses.dataclass
class Sent:
    """What a rank has sent, counted at the host, to compare with the wire's counters.

    A worker's vectors are float32, or what a host-side compressor made of them.
    """

    octets: int = 0  # handed to sockets that no NIC compresses: the wire must have carried them
    tagged_octets: int = 0  # handed to tagged sockets
    vector_octets: int = 0  # of this worker's vectors, each counted once, even if it travels more than once
    activation_octets: int = 0  # of activations and errors, counted the same way; no NIC compresses them

    def count(self, octets: int, *, tagged: bool) -> None:
        """Add octets that went to a socket."""
        if tagged:
            self.tagged_octets += octets
        else:
            self.octets += octets


class Method(abc.ABC):
    """What a rank does between its gradient and its next weights."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        self._spec, self._member, self._exchange = spec, member, member.exchange
        self.sent = Sent()

    @abc.abstractmethod
    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """Do one iteration; all ranks call it together.

        This worker's ``gradient``, float32[n], is overwritten. ``parameters``, float32[n], are this rank's weights, and
        become the next ones. ``update`` is called with the sum of the gradients if this rank updates its own weights.
        """

    def finish(self, parameters: Float32Array) -> None:  # noqa: B027 - most methods leave nothing to do
        """Make all replicas equal after the last iteration; all ranks call it together."""

    def memory(self) -> Memory:
        """Return what this rank remembers. A run that passes it to :meth:`remember` goes on bit for bit."""
        return {}

    def remember(self, memory: Memory) -> None:  # noqa: B027 - some have no memory
        """Take over what :meth:`memory` returned on the same rank of an equal number of ranks."""


class GradientReducer(Method):
    """A method that sums gradients: a bucket goes in, its sum over all workers comes out.

    A bucket is a vector of some layers of the model, or of all of them. What a compressor remembers belongs to the
    layers, so buckets may be cut anew between two iterations.
    """

    @abc.abstractmethod
    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """Return the sum of all workers' gradients of a bucket (None: all layers); all ranks call it together.

        ``gradient``, float32[n], is overwritten. The sum has the same bits on every worker, and may share its memory.
        """

    def reduce_met(self, gradient: Float32Array, bucket: Bucket) -> Float32Array:
        """Do :meth:`reduce` for ranks that know by another meeting that all make this call, with equal lengths."""
        return self.reduce(gradient, bucket)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`."""
        update(self.reduce(gradient))


class GradientServer(Method):
    """The server of a reducer: it has no gradient and no weights."""

    @abc.abstractmethod
    def serve(self, bucket: Bucket | None = None) -> None:
        """Answer one :meth:`GradientReducer.reduce` that all workers call with this bucket."""

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`; ``update`` is not called."""
        for bucket in self._member.buckets or (None,):
            self.serve(bucket)


class WeightExchange(Method):
    """A method that moves weights (or their changes), in every iteration or some, all of it in ``step``."""
