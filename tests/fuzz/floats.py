"""All float32 values through the kernels in use and through the oracle.

A range of bit patterns is checked in pieces, so small that the oracle's temporaries stay in the cache. For each piece
these must agree:

=============  ========================================================================================
decoded        the floats of ``decode``, with those of the oracle
round trip     the floats of ``round_trip``, with those of the oracle
payload        of the first floats of a block, the octets of ``encode``, with those of the oracle, which is slow
error          with the bound, if the codec keeps it: abs(x - x') <= 2^-k for finite abs(x) < 1, in exact float64
=============  ========================================================================================

``exact`` puts 64 floats together. So exponents are mixed within a group, some far away (:data:`_MIXED`), and each block
begins at another lane. Each pattern travels as float32, as two bf16, and with a low half of 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from netoffload.codec import Codec, get
from netoffload.codec.bursts import LANES
from netoffload.codec_specs import Exact
from netoffload.compiled.arrays import Float32Array, Uint32Array
from netoffload.config import check_bound_k
from netoffload.errors import CodecError, UsageError
from tests.shared.pool import in_order

ALL: Final = 1 << 32
CHUNK: Final = 1 << 22
"""Bit patterns per task of a process."""

BLOCK: Final = 1 << 15

FIRST: Final = 128
"""Floats of a block whose octets the oracle makes."""

_MIXED: Final = np.array([(0, 1, 0, 2, 3, 1, 0, 5, 0, 1, 2, 4, 0, 1, 9, 0)[lane % 16] for lane in range(64)], np.uint32)
_MIXED[[17, 40]] = 77, 200
"""What changes the exponents of 64 neighbours, by exclusive or."""


@dataclass(frozen=True)
class Mismatch:
    """The first difference: what differs, for which float32 bits, the oracle's result and the kernel's result.

    ``expected`` and ``got`` are float bits, octets of the payload that begins with ``bits``, or numbers.
    """

    what: str
    bits: int
    expected: str
    got: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.what} of 0x{self.bits:08x}: expected {self.expected}, got {self.got}"


def verify(
    name: str,
    bound_k: int,
    first: int = 0,
    count: int = ALL,
    jobs: int | None = None,
    on_progress: Callable[[int], None] = lambda _checked: None,
) -> Mismatch | None:
    """Check the bit patterns ``first`` to ``first + count`` over several processes; return the first difference.

    ``first`` is a multiple of 8, so that tasks begin with whole bursts.
    """
    get(name)
    check_bound_k(bound_k)
    if first % LANES or not 0 <= first < first + count <= ALL:
        raise UsageError(f"{count} bit patterns from {first} on: start at a multiple of {LANES} within 0..2^32")
    starts = range(first, first + count, CHUNK)
    tasks = [(name, bound_k, start, min(CHUNK, first + count - start)) for start in starts]
    checked = 0
    for task, mismatch in zip(tasks, in_order(_check_named, tasks, jobs), strict=True):
        if mismatch is not None:
            return mismatch
        checked += task[-1]
        on_progress(checked)
    return None


def _check_named(name: str, bound_k: int, first: int, count: int) -> Mismatch | None:
    return check_range(get(name), bound_k, first, count)


def check_range(codec: Codec, bound_k: int, first: int, count: int) -> Mismatch | None:
    """Check a range of bit patterns in this process; return the first difference, or None."""
    for start in range(first, first + count, BLOCK):
        words = np.arange(start, min(start + BLOCK, first + count), dtype=np.uint64).astype(np.uint32)
        for bits in _forms(words) if isinstance(codec.spec.form, Exact) else (words,):
            mismatch = _check_block(codec, bound_k, bits)
            if mismatch is not None:
                return mismatch
    return None


def _forms(words: Uint32Array) -> tuple[Uint32Array, ...]:
    """Return bit patterns, mixed, as float32, with a low half of 0, and as pairs of bf16."""
    words = words ^ _MIXED[words & 63] << 23  # of each 64 neighbours, the low six bits stay
    words = np.roll(words, int(words[0] >> 15) % 67)
    halves = (words >> 16).astype(np.uint16)
    return words, words & np.uint32(0xFFFF0000), np.append(halves, halves[: halves.size % 2]).view(np.uint32)


def _check_block(codec: Codec, bound_k: int, words: Uint32Array) -> Mismatch | None:
    values = words.view(np.float32)
    octets = codec.oracle.encode(values[:FIRST], bound_k), codec.encode(values[:FIRST], bound_k)
    if octets[0].tobytes() != octets[1].tobytes():
        return Mismatch("payload", int(words[0]), *(one.tobytes().hex(" ") for one in octets))
    try:
        decoded = codec.decode(codec.encode(values, bound_k), words.size, bound_k)
    except CodecError as error:
        return Mismatch("decoded", int(words[0]), f"{words.size} floats", str(error))
    wanted = codec.oracle.round_trip(values, bound_k)
    mismatch = _first_float("decoded", words, wanted, decoded)
    mismatch = mismatch or _first_float("round trip", words, wanted, codec.round_trip(values, bound_k))
    if mismatch is None and codec.spec.keeps_bound:
        return _first_error(words, decoded, bound_k)
    return mismatch


def _first_float(what: str, words: Uint32Array, wanted: Float32Array, got: Float32Array) -> Mismatch | None:
    different = np.flatnonzero(wanted.view(np.uint32) != got.view(np.uint32))
    if not different.size:
        return None
    at = different[0]
    expected, found = (f"0x{int(floats.view(np.uint32)[at]):08x}" for floats in (wanted, got))
    return Mismatch(what, int(words[at]), expected, found)


def _first_error(words: Uint32Array, decoded: Float32Array, bound_k: int) -> Mismatch | None:
    values = words.view(np.float32)
    with np.errstate(invalid="ignore"):  # NaN and infinities, which are not below 1
        error = np.abs(values.astype(np.float64) - decoded)
        wrong = np.flatnonzero((np.abs(values) < 1) & ~(error <= 2.0**-bound_k))
    if not wrong.size:
        return None
    return Mismatch("error", int(words[wrong[0]]), f"at most 2^-{bound_k}", f"{error[wrong[0]]:.9g}")
