"""TernGrad's parameter server: shared scalers, ternary gradients up, their sum down (Wen et al., Algorithm 1, 3.1).

::

    worker                                   server
    scalers of its gradient     ───────►     the largest of each
    shared scalers              ◄───────
    ternary gradient            ───────►     sum of N ternary vectors: 2 N + 1 levels
    mean gradient               ◄───────

With one scaler for all workers the sum is as discrete as its terms, so that the way down is compressed too. Workers
keep their own weights and update them with the same mean (parameter localisation).
"""

from __future__ import annotations

import numpy as np

from netoffload.collectives import Exchange, Payload, push_pull, serve_payloads
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, State
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.methods.floats import GradientExchange, Update


class TernaryWorker(GradientExchange):
    """A worker; the last rank is the server."""

    def __init__(self, exchange: Exchange, method: TernGrad, state: State) -> None:
        """Encode with this rank's ``state``."""
        super().__init__()
        self._exchange, self._method, self._state = exchange, method, state
        self._sum = TernarySum(method, exchange.size - 1)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        own = self._method.scalers(gradient, self._state)
        shared = self._ask(own.view(np.uint8)).view(np.float32)
        payload = self._method.encode_shared(gradient, shared, self._state)
        self.sent.vector_octets += payload.size + own.nbytes
        mean = self._sum.decode(self._ask(payload), self._state.layout)
        update(np.multiply(mean, np.float32(self._sum.workers), out=mean))

    def _ask(self, payload: Payload) -> Payload:
        self.sent.octets += payload.size
        return push_pull(self._exchange, payload, server=self._exchange.size - 1)


class TernaryServer(GradientExchange):
    """The server; it has no weights."""

    def __init__(self, exchange: Exchange, method: TernGrad, layout: Layout) -> None:
        """Serve all other ranks."""
        super().__init__()
        self._exchange, self._layout = exchange, layout
        self._sum = TernarySum(method, exchange.size - 1)

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`; ``update`` is not called."""
        shared = serve_payloads(self._exchange, _largest)
        answer = serve_payloads(self._exchange, lambda pushed: self._sum.encode(pushed, self._layout))
        self.sent.octets += (shared.size + answer.size) * (self._exchange.size - 1)


def _largest(pushed: list[Payload]) -> Payload:
    """Return the largest of every scaler, as octets."""
    largest: Float32Array = np.max([scalers.view(np.float32) for scalers in pushed], axis=0)
    return largest.view(np.uint8)
