"""TernGrad's parameter server: shared scalers, ternary gradients up, their sum down (Wen et al., Algorithm 1, 3.1).

::

    worker                                   server
    scalers of its gradient     ───────►     the largest of each
    shared scalers              ◄───────
    ternary gradient            ───────►     sum of N ternary vectors: 2 N + 1 levels
    mean gradient               ◄───────

With one scaler for all workers the sum has few levels, like its terms, so the way down is compressed too. Workers keep
their own weights and update them with the same mean (parameter localisation).
"""

from __future__ import annotations

import numpy as np

from netoffload.collectives import Payload, serve_payloads
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.methods.base import Bucket, GradientServer, Member, MethodSpec
from netoffload.methods.buckets import layout_of
from netoffload.methods.payloads import ServedReducer


class TernaryWorker(ServedReducer):
    """A worker; the last rank is the server."""

    def __init__(self, spec: MethodSpec, member: Member) -> None:
        super().__init__(spec, member)
        self._sum = _sum_of(spec, member)

    def reduce(self, gradient: Float32Array, bucket: Bucket | None = None) -> Float32Array:
        """See :meth:`~netoffload.methods.base.GradientReducer.reduce`."""
        state = self._residuals.of(bucket)
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
        shared = serve_payloads(self._exchange, _largest)
        answer = serve_payloads(self._exchange, lambda pushed: total.encode(pushed, layout))
        self.sent.octets += (shared.size + answer.size) * (self._exchange.size - 1)


def _sum_of(spec: MethodSpec, member: Member) -> TernarySum:
    assert isinstance(spec.compressor, TernGrad), f"{spec.name} has no ternary gradients"
    return TernarySum(spec.compressor, member.exchange.size - 1)


def _largest(pushed: list[Payload]) -> Payload:
    """Return the largest of every scaler, as octets."""
    largest: Float32Array = np.max([scalers.view(np.float32) for scalers in pushed], axis=0)
    return largest.view(np.uint8)
