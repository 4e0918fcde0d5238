"""Counter-based randomness: a 32-bit word for every (seed, rank, step, index), the same on every machine.

Stochastic rounding needs one random number per value, in any order and on any worker's machine, repeatable from a saved
state. So no generator advances; each word is a hash of its coordinates. (seed, rank, step) is hashed once per call to
a key of two 32-bit words. The word of an index is then ``mix(mix(index ^ key0) ^ key1)``, where ``mix`` is one of the
least biased two-multiplication integer permutations that C. Wellons's search found:
xor-shift 16, times 0x21f0aaad, xor-shift 15, times 0xd35a2d97, xor-shift 15 (github.com/skeeto/hash-prospector, README
and issue 19, public domain). Four 32-bit multiplications per value, no carry between values: LLVM turns it into vector
code.

For one key the words of all 2^32 indices are a permutation: no word comes twice in one call, which has no effect on
rounding. The words are not cryptographically random, and need not be.
"""

from typing import Final

import numpy as np

from netoffload.compiled.jit import inline_kernel
from netoffload.config import whole_number
from netoffload.errors import UsageError

MASK32: Final = 0xFFFFFFFF
MULTIPLIER_A: Final = 0x21F0AAAD
MULTIPLIER_B: Final = 0xD35A2D97
GOLDEN: Final = 0x9E3779B9
"""2^32 over the golden ratio; it keeps all-zero coordinates from being a fixed point of the key's hash."""


def stream_key(seed: int, rank: int, step: int) -> tuple[int, int]:
    """Return the key of one call, two 32-bit words. ``step`` is the number of the call, 0..2^64-1, like the seed."""
    seed, rank, step = whole_number("seed", seed), whole_number("rank", rank), whole_number("step", step)
    if not (0 <= seed < 2**64 and 0 <= rank < 2**32 and 0 <= step < 2**64):
        raise UsageError(f"seed, rank and step must be 0 to 2^64-1, 2^32-1 and 2^64-1, not {seed}, {rank}, {step}")
    words = (seed & MASK32, seed >> 32, rank, step & MASK32, step >> 32)
    keys = []
    for lane in (1, 2):
        key = lane * GOLDEN & MASK32
        for word in words:
            key = mix_exact((mix_exact(key ^ word) + GOLDEN) & MASK32)
        keys.append(key)
    return keys[0], keys[1]


def mix_exact(word: int) -> int:
    """Return the permutation of a 32-bit word, in Python integers: the specification."""
    word ^= word >> 16
    word = word * MULTIPLIER_A & MASK32
    word ^= word >> 15
    word = word * MULTIPLIER_B & MASK32
    return word ^ word >> 15


@inline_kernel
def _times(word: np.uint32, factor: int) -> np.uint32:
    """Return the low 32 bits of a product; LLVM makes one 32-bit multiplication of it."""
    return np.uint32((np.uint64(word) * np.uint64(factor)) & np.uint64(MASK32))


@inline_kernel
def mix(word: np.uint32) -> np.uint32:
    """Return :func:`mix_exact` of a uint32, compiled."""
    word = word ^ (word >> np.uint32(16))
    word = _times(word, MULTIPLIER_A)
    word = word ^ (word >> np.uint32(15))
    word = _times(word, MULTIPLIER_B)
    return word ^ (word >> np.uint32(15))


@inline_kernel
def random_word(index: np.uint32, key0: np.uint32, key1: np.uint32) -> np.uint32:
    """Return the word of an index, all uint32: for use inside a kernel's loop."""
    return mix(mix(index ^ key0) ^ key1)
