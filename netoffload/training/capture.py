"""What a worker sends, kept for later: its gradient before the method has it, in some iterations.

Copying one of HDC's gradients takes about a millisecond of an iteration that is timed; a run that captures is one to
look at, not one to quote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.methods import Method, Update

CAPTURE_FILE: Final = "gradients.npy"
"""In the result folder."""

MAX_VECTORS: Final = 32
"""Later gradients are not kept: 32 of HDC's are 147 MB."""


class CapturingMethod(Method):
    """A method that keeps copies of what goes into another one."""

    def __init__(self, method: Method, every: int) -> None:
        """Keep the gradient of iteration ``every``, 2 * ``every``, ...; nothing is kept yet."""
        self.sent = method.sent
        self._method, self._every = method, every
        self._iteration = 0
        self._kept: list[Float32Array] = []

    def step(self, gradient: Float32Array, parameters: Float32Array, update: Update) -> None:
        """See :meth:`Method.step`."""
        self._iteration += 1
        if self._iteration % self._every == 0 and len(self._kept) < MAX_VECTORS:
            self._kept.append(gradient.copy())
        self._method.step(gradient, parameters, update)

    @property
    def sum_s(self) -> float:
        """See :attr:`Method.sum_s`."""
        return self._method.sum_s

    def finish(self, parameters: Float32Array) -> None:
        """See :meth:`Method.finish`."""
        self._method.finish(parameters)

    def write(self, folder: Path) -> None:
        """Write float32[vectors, n] into the result folder."""
        np.save(folder / CAPTURE_FILE, np.stack(self._kept))
