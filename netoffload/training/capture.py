"""What a worker sends, kept for later: its gradient before the exchange, every so many iterations.

Copying one of HDC's gradients takes about a millisecond of an iteration that is timed; a run that captures is one to
look at, not one to quote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.methods.floats import GradientExchange, Update

CAPTURE_FILE: Final = "gradients.npy"
"""In the result folder."""

MAX_VECTORS: Final = 32
"""Later gradients are not kept: 32 of HDC's are 147 MB."""


class CapturingExchange(GradientExchange):
    """A gradient exchange that keeps copies of what goes into it."""

    def __init__(self, exchange: GradientExchange, every: int) -> None:
        """Keep the gradient of iteration ``every``, 2 * ``every``, ...; nothing is kept yet."""
        super().__init__()
        self.sent = exchange.sent
        self._exchange, self._every = exchange, every
        self._iteration = 0
        self._kept: list[Float32Array] = []

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`GradientExchange.step`."""
        self._iteration += 1
        if self._iteration % self._every == 0 and len(self._kept) < MAX_VECTORS:
            self._kept.append(gradient.copy())
        self._exchange.step(gradient, parameters, update)

    def finish(self, parameters: Float32Array) -> None:
        """See :meth:`GradientExchange.finish`."""
        self._exchange.finish(parameters)

    def write(self, folder: Path) -> None:
        """Write float32[vectors, n] into the result folder."""
        np.save(folder / CAPTURE_FILE, np.stack(self._kept))
