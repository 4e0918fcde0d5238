"""Elias codes of levels: few bits for the small numbers that stochastic rounding mostly makes (QSGD, section 3.2).

Universal codes of whole numbers k >= 1 (P. Elias, IEEE Trans. Inf. Theory 21(2), 1975), the first bit of a code being
the least significant free bit of the stream:

``gamma``  N = floor(log2 k) zeros, a one, the N bits of k below its leading one:  2 N + 1 bits
``omega``  ("recursive") groups, ended by a zero; each group is a one and the low bits of a number whose leading one is
           implied. A group's length is the number before it, starting from 1:  1 = 0, 2..3 = 1 b 0, 4..7 = 1 0 1 bb 0,
           ...

Three forms of a vector of codes level << 1 | sign (``rounding``):

``gamma``, ``omega``  for every value, the code of level + 1, then a sign bit if the level is not 0
``gaps``              for every value that is not 0: omega of its distance from the last such value (at first from index
                      -1), a sign bit, omega of its level; then omega of the distance to the end. QSGD's own form, for
                      few levels.

The unused bits of the last octet are 0.
"""

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint8Array, Uint16Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import load_u64, whole
from netoffload.compressors.packing import Codes, padded, put_bits
from netoffload.compressors.rounding import MAX_LEVEL
from netoffload.errors import CodecError

FORMS: Final = ("gamma", "omega", "gaps")
GAMMA: Final = 0
GAPS: Final = 2

_MAX_LOG: Final = 15
"""The largest logarithm of level + 1."""

_WINDOW: Final = 56
"""Bits that one load gives, wherever in an octet it starts."""


def stream_bits(codes: Codes, form: str) -> int:
    """Return the number of bits of the codes in a form."""
    return int(_count_bits(codes, FORMS.index(form)))


def write_stream(codes: Codes, form: str, target: Uint8Array, at: int) -> None:
    """Write the codes' stream at octet ``at`` of ``target``, which is 0 from there on, with SLACK octets behind it."""
    _write(codes, FORMS.index(form), target, 8 * at)


def read_stream(stream: Uint8Array, count: int, form: str) -> Codes:
    """Return the codes of a stream, uint16[count]; CodecError if no encoder makes it of so many codes."""
    codes = np.zeros(count, np.uint16)
    octets, limit = padded(stream), 8 * stream.size
    end = _read_gaps(octets, limit, codes) if form == "gaps" else _read_dense(octets, limit, FORMS.index(form), codes)
    if end < 0 or limit - end >= 8 or int(octets[end >> 3]) >> (end & 7):
        raise CodecError(f"Elias stream of {stream.size} octets does not hold {count} levels")
    return codes


@inline_kernel
def _log2(number: int) -> int:
    log = 0
    while number > 1:
        number >>= 1
        log += 1
    return log


@inline_kernel
def _gamma(number: int) -> tuple[int, int]:
    """(code, bits)."""
    log = _log2(number)
    return ((number - (1 << log)) << (log + 1)) | (1 << log), 2 * log + 1


@inline_kernel
def _omega(number: int) -> tuple[int, int]:
    """Return (code, bits); at most 45 bits for numbers up to 2^32."""
    code, bits = 0, 1
    while number > 1:
        log = _log2(number)
        code = (code << (log + 1)) | ((number - (1 << log)) << 1) | 1
        bits += log + 1
        number = log
    return code, bits


@inline_kernel
def _coded(code: np.uint16, form: int) -> tuple[int, int]:
    """Return (code, bits) of a value in ``gamma`` or ``omega``."""
    level = whole(code) >> 1
    word, bits = _gamma(level + 1) if form == GAMMA else _omega(level + 1)
    if level:
        word |= (whole(code) & 1) << bits
        bits += 1
    return word, bits


@inline_kernel
def _coded_level(code: np.uint16) -> tuple[int, int]:
    """Return (code, bits) of sign and level behind a gap."""
    word, bits = _omega(whole(code) >> 1)
    return word << 1 | (whole(code) & 1), bits + 1


@kernel
def _count_bits(codes: Uint16Array, form: int) -> int:
    total, last = 0, -1
    for i in range(codes.size):
        if form != GAPS:
            total += _coded(codes[i], form)[1]
        elif codes[i]:
            total += _omega(i - last)[1] + _coded_level(codes[i])[1]
            last = i
    return total if form != GAPS else total + _omega(codes.size - last)[1]


@kernel
def _write(codes: Uint16Array, form: int, target: Uint8Array, at: int) -> int:
    last = -1
    for i in range(codes.size):
        if form != GAPS:
            word, bits = _coded(codes[i], form)
            at = put_bits(target, at, word, bits)
        elif codes[i]:
            word, bits = _omega(i - last)
            at = put_bits(target, at, word, bits)
            word, bits = _coded_level(codes[i])
            at = put_bits(target, at, word, bits)
            last = i
    if form == GAPS:
        word, bits = _omega(codes.size - last)
        at = put_bits(target, at, word, bits)
    return at


@inline_kernel
def _window(stream: Uint8Array, at: int) -> int:
    return (load_u64(stream, at >> 3) >> (at & 7)) & ((1 << _WINDOW) - 1)


@inline_kernel
def _take_gamma(stream: Uint8Array, at: int) -> tuple[int, int]:
    """Return (number, bits); the number is 0 if no encoder writes these bits."""
    window, log = _window(stream, at), 0
    while log <= _MAX_LOG and not (window >> log) & 1:
        log += 1
    if log > _MAX_LOG:
        return 0, 0
    return (1 << log) | ((window >> (log + 1)) & ((1 << log) - 1)), 2 * log + 1


@inline_kernel
def _take_omega(stream: Uint8Array, at: int) -> tuple[int, int]:
    """Return (number, bits); the number is 0 if no encoder writes these bits."""
    window, number, bits = _window(stream, at), 1, 1
    while window & 1:
        # No distance or level has as many bits. A longer group would leave the window.
        if number > 32 or bits + number + 1 > _WINDOW:
            return 0, 0
        below = (window >> 1) & ((1 << number) - 1)
        window >>= number + 1
        bits += number + 1
        number = (1 << number) | below
    return number, bits


@kernel
def _read_dense(stream: Uint8Array, limit: int, form: int, codes: Uint16Array) -> int:
    """Write the codes; return the bit where they end, or -1 where the stream is malformed."""
    at = 0
    for i in range(codes.size):
        if at >= limit:
            return -1
        number, bits = _take_gamma(stream, at) if form == GAMMA else _take_omega(stream, at)
        at += bits
        sign = _window(stream, at) & 1 if number > 1 else 0
        at += number > 1
        if number == 0 or number > MAX_LEVEL + 1 or at > limit:
            return -1
        codes[i] = (number - 1) << 1 | sign
    return at


@kernel
def _read_gaps(stream: Uint8Array, limit: int, codes: Uint16Array) -> int:
    """Write the codes that are not 0; return the bit where they end, or -1 where the stream is malformed."""
    at, i = 0, -1
    while True:
        gap, bits = _take_omega(stream, at)
        at += bits
        i += gap
        if gap == 0 or i > codes.size or at > limit:
            return -1
        if i == codes.size:
            return at
        sign = _window(stream, at) & 1
        level, bits = _take_omega(stream, at + 1)
        at += 1 + bits
        if level == 0 or level > MAX_LEVEL or at > limit:
            return -1
        codes[i] = level << 1 | sign
