"""Sums of which each rank gets a part: the first half of an allreduce, for models whose layers are spread over ranks.

``Member.owners`` says which rank gets the sum of each layer. A bucket has the layers of rank 0 first, then those of
rank 1, and so on: its *rows*. A reducer leaves the sum of its own row in the bucket's vector, and anything in the
others.

======================  =============================================  ==============================
what travels            how                                            octets out of a rank's link
======================  =============================================  ==============================
floats, tagged or not   partial sums of rows go round half a ring      (p-1)/p of the vector
16-bit floats           each row goes straight to its owner            (p-1)/p of the vector
payloads                each row's payload goes straight to its owner  (p-1)/p of the vector's payload
======================  =============================================  ==============================

A rank's own row does not travel from it, so no compressor rounds it there.
"""

import functools
from typing import NamedTuple

import numpy as np

from netoffload.collectives import Half, Operation, alltoall_payloads, reduce_scatter_halves, ring_reduce_scatter
from netoffload.collectives.exchange import combine
from netoffload.collectives.schedule import Span, consecutive
from netoffload.compiled.arrays import Float32Array
from netoffload.methods.base import Bucket, Member
from netoffload.methods.buckets import layers_of, layout_of
from netoffload.methods.floats import RingReducer, ring_octets
from netoffload.methods.payloads import PayloadReducer


class Rows(NamedTuple):
    """The rows of a bucket, by rank."""

    layers: tuple[Bucket, ...]
    spans: tuple[Span, ...]  # in the bucket's vector


@functools.lru_cache(maxsize=1024)
def rows_of(sizes: tuple[int, ...], owners: tuple[int, ...], ranks: int, bucket: Bucket) -> Rows:
    """Return the rows of a bucket of a model with layers of these sizes."""
    layers = tuple(tuple(layer for layer in bucket if owners[layer] == rank) for rank in range(ranks))
    return Rows(layers, consecutive([sum(sizes[layer] for layer in row) for row in layers]))


def _rows(member: Member, bucket: Bucket | None) -> Rows:
    layers = layers_of(member.layout, bucket)
    return rows_of(member.layout.sizes, member.owners, member.exchange.size, layers)


class RingScatter(RingReducer):
    """The first half of the ring of INC and INC+C."""

    def average_halves(self, gradient: Float32Array, bucket: Bucket, half: Half, divisor: int) -> Float32Array:
        """See :meth:`~netoffload.methods.floats.RingReducer.average_halves`; this rank's row stays float32."""
        spans, halves = _rows(self._member, bucket).spans, half.narrowed(gradient)
        own = spans[self._exchange.rank]
        gradient[own.start : own.stop] = reduce_scatter_halves(
            self._exchange, halves, spans, half, tagged=self._spec.tagged, divisor=divisor
        )
        self._count(ring_octets(halves.nbytes, self._exchange.size) // 2, halves.nbytes)
        return gradient

    def _summed(self, gradient: Float32Array, bucket: Bucket | None, have_met: bool) -> Float32Array:
        rows, tagged = _rows(self._member, bucket), self._spec.tagged
        if tagged and self._member.error_feedback:
            for owner, (layers, span) in enumerate(zip(*rows, strict=True)):
                if owner != self._exchange.rank:
                    self._feed_back(gradient[span.start : span.stop], layers)
        self._count(ring_octets(gradient.nbytes, self._exchange.size) // 2, gradient.nbytes)
        ring_reduce_scatter(self._exchange, gradient, rows.spans, tagged=tagged, have_met=have_met)
        return gradient


class PayloadScatter(PayloadReducer):
    """Every rank sends each other one the payload of its row; each rank decodes and adds those of its own row."""

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`~netoffload.methods.base.GradientReducer.reduce`."""
        rows, rank = _rows(self._member, bucket), self._exchange.rank
        payloads = [
            np.empty(0, np.uint8)
            if owner == rank
            else self._compressor.encode(gradient[span.start : span.stop], self.residuals.of(layers))
            for owner, (layers, span) in enumerate(zip(*rows, strict=True))
        ]
        octets = sum(payload.size for payload in payloads)
        self.sent.vector_octets += octets
        self.sent.octets += octets
        own = gradient[rows.spans[rank].start : rows.spans[rank].stop]
        layout = layout_of(self._member.layout, rows.layers[rank])
        for peer, payload in enumerate(alltoall_payloads(self._exchange, payloads)):
            if peer != rank:
                combine(self._exchange, Operation.SUM, own, self._compressor.decode(payload, layout))
        return gradient
