"""INCEPTIONN's four methods: untagged or tagged floats, over a ring (inc, inc+c) or to an aggregator (wa, wa+c).

In a ring every worker updates its weights, else the aggregator does. Weights never travel tagged: an error in a
gradient is one step of noise, an error in a weight stays.

With error feedback a worker of inc+c rounds its own gradient first, and adds the rounding error to its next one. The
rounding errors of the hops are lost. With ``bounded`` they are small, because most sums of rounded values are exact.
"""

from collections.abc import Sequence

import numpy as np

from netoffload import collectives
from netoffload.collectives import Half, schedule
from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.methods.base import Bucket, Member, MethodSpec, Update, WeightExchange
from netoffload.methods.buckets import RememberingReducer, Unsent, layers_of, layout_of


class RingReducer(RememberingReducer):
    """INC and INC+C: every worker gets the sum and updates for itself. Groups make rings of rings (Fig. 1 b, c)."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        if spec.tagged and member.quantise is None:
            raise UsageError(f"{spec.name} needs a codec to round by, but no rank has a NIC: start NICs, or use inc")
        self._quantise = member.quantise if spec.tagged else None
        self._groups = spec.groups_of(member.exchange.size)
        self.residuals: Unsent = Unsent(member.layout)

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`~netoffload.methods.base.GradientReducer.reduce`."""
        return self._summed(gradient, bucket, False)

    def reduce_met(self, gradient: Float32Array, bucket: Bucket) -> Float32Array:
        """See :meth:`~netoffload.methods.base.GradientReducer.reduce_met`; groups meet all the same."""
        return self._summed(gradient, bucket, True)

    def average(
        self, gradient: Float32Array, bucket: Bucket, half: Half | None, divisor: int, *, have_met: bool = False
    ) -> Float32Array:
        """Sum, also float64, and divide the sum; values of the type ``half`` as :meth:`average_halves` does."""
        if half is not None:
            return self.average_halves(gradient, bucket, half, divisor)
        total = self._summed(gradient, bucket, have_met)
        return total if divisor == 1 else np.divide(total, total.dtype.type(divisor), out=total)

    def average_halves(self, gradient: Float32Array, bucket: Bucket, half: Half, divisor: int) -> Float32Array:
        """Sum values of a 16-bit type, which travel in 16 bits; divide the sum, and round it once to that type.

        What is tagged keeps every bit.
        """
        halves = half.narrowed(gradient)
        collectives.allreduce_halves(self._exchange, halves, half, tagged=self._spec.tagged, divisor=divisor)
        gradient[:] = half.widened(halves)
        self._count(ring_octets(halves.nbytes, self._exchange.size), halves.nbytes)
        return gradient

    def _count(self, octets: int, vector_octets: int) -> None:
        self.sent.count(octets, tagged=self._spec.tagged)
        self.sent.vector_octets += vector_octets

    def _summed(self, gradient: Float32Array, bucket: Bucket | None, have_met: bool) -> Float32Array:
        tagged, rank = self._spec.tagged, self._exchange.rank
        if tagged and self._member.error_feedback:
            self._feed_back(gradient, bucket)
        if len(self._groups) == 1:
            collectives.ring_allreduce(
                self._exchange, gradient, tagged=tagged, quantise=self._quantise, have_met=have_met
            )
            self.sent.count(ring_octets(gradient.nbytes, self._exchange.size), tagged=tagged)
        else:
            top = self._spec.top
            collectives.hierarchical_allreduce(
                self._exchange, gradient, self._groups, tagged=tagged, top=top, quantise=self._quantise
            )
            octets, untagged = grouped_octets(gradient.nbytes, self._groups, rank, top)
            self.sent.count(octets, tagged=tagged)
            self.sent.count(untagged, tagged=False)
        self.sent.vector_octets += gradient.nbytes
        return gradient

    def _feed_back(self, gradient: Float32Array, bucket: Bucket | None) -> None:
        """Add the residual, round the sum in place, and keep the rounding error as the next residual."""
        assert self._quantise is not None
        layers, layout = layers_of(self._member.layout, bucket), layout_of(self._member.layout, bucket)
        for layer, part in zip(layers, layout.split(gradient), strict=True):
            if layer in self.residuals:
                np.add(part, self.residuals[layer], out=part)
        left = gradient.copy()
        self._quantise(gradient)
        np.subtract(left, gradient, out=left, where=np.isfinite(gradient))
        left[~np.isfinite(gradient)] = 0  # an infinity would stay in the residual for ever
        self.residuals.keep(left, layers)


class Aggregation(WeightExchange):
    """WA and WA+C: a worker sends its gradient and receives the weights.

    The last rank has the optimizer's state and no data. With groups, each group has an aggregator below that rank. It
    adds its workers' gradients and passes the weights down (Fig. 1 a).
    """

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        workers = self._exchange.size - spec.servers
        self._tree = schedule.aggregator_tree(workers, len(spec.groups_of(workers)))

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`~netoffload.methods.base.Method.step`.

        ``update`` is called only on the last rank, with the sum in ``gradient``'s memory.
        """
        node, octets = self._tree[self._exchange.rank], parameters.nbytes
        collectives.tree_exchange(self._exchange, self._tree, gradient, parameters, update, tagged=self._spec.tagged)
        if node.parent is not None:
            self.sent.count(octets, tagged=self._spec.tagged)
        if not node.children:  # a worker: what an aggregator passes on are not its own vectors
            self.sent.vector_octets += octets
        self.sent.count(octets * len(node.children), tagged=False)


def ring_octets(vector_octets: int, size: int) -> int:
    """Return the fewest octets that a rank sends when ``size`` ranks sum a vector in a ring."""
    return int(schedule.ring_octets(vector_octets // size * size, size))


def grouped_octets(vector_octets: int, groups: Sequence[Sequence[int]], rank: int, top: str) -> tuple[int, int]:
    """Return the fewest octets that a rank sends with groups of equal size, and those that an aggregator sends down.

    ``top`` says how the groups' sums are added: ``ring`` or ``wa``.
    """
    size, number = len(groups[0]), len(groups)
    inside, block = ring_octets(vector_octets, size), vector_octets // FLOAT_OCTETS // size * FLOAT_OCTETS
    if top == "ring":
        return inside + ring_octets(block, number), 0
    return (inside, (number - 1) * block) if rank in groups[0] else (inside + block, 0)
