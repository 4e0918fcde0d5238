"""The operations of reductions, and the two steps of arithmetic that every algorithm makes: combine and round."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # exchange imports this module
    from netoffload.collectives.exchange import Exchange, Quantise
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
    """Replace ``target`` by target ∘ incoming. A NaN in either stays one, for MAX and MIN as well."""
    with np.errstate(all="ignore"):  # infinities and overflow are the caller's data: no warning
        _UFUNCS[operation](target, incoming, out=target)


def combine(exchange: Exchange, operation: Operation, target: Float32Array, incoming: Float32Array) -> None:
    """Do :func:`apply`, and count its time."""
    watch = exchange.stopwatch
    start_s = watch.now_s()
    apply(operation, target, incoming)
    watch.reduce_s += watch.now_s() - start_s


def quantise_own(exchange: Exchange, quantise: Quantise | None, values: Float32Array) -> None:
    """Round a block that this rank owns as NICs round it on its way to the others, and count the time."""
    if quantise is None or not values.size:
        return
    watch = exchange.stopwatch
    start_s = watch.now_s()
    quantise(values)
    watch.codec_s += watch.now_s() - start_s
