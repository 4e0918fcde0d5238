"""The operations of reductions."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array


class Operation(enum.IntEnum):
    """An operation on float32, element by element. The numbers travel in announcements."""

    SUM = 1
    MAX = 2
    MIN = 3
    PROD = 4


_UFUNCS = {
    Operation.SUM: np.add,
    Operation.MAX: np.maximum,
    Operation.MIN: np.minimum,
    Operation.PROD: np.multiply,
}


def apply(operation: Operation, target: Float32Array, incoming: Float32Array) -> None:
    """Replace ``target`` by target ∘ incoming. A NaN in either stays one, for MAX and MIN as well.

    Of two zeros of different sign, MAX and MIN may keep either: NumPy's choice depends on the CPU.
    """
    with np.errstate(all="ignore"):  # infinities and overflow are the caller's data: no warning
        _UFUNCS[operation](target, incoming, out=target)
