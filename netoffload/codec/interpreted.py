"""What instruction sets do with a burst or a group, in plain Python (``NUMBA_DISABLE_JIT=1``).

The bodies of ``tagged``, ``packed`` and ``exact`` run over these primitives in place of emitted vector code: loops,
capacities, plans and checks are the same lines as with a compiler. Rounding is the oracle's, a burst or a group at a
time, so the *limits* of a bound are the bound itself.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from netoffload.codec.bursts import LANES, TAGS_LEN
from netoffload.codec.reference import (
    BF16,
    FLOAT32,
    NARROW,
    TAG_OCTETS,
    Oracle,
    compress_bounded,
    exact_group,
    pack,
)
from netoffload.codec.scalar import UNIT16, decode_short
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.compiled.octets import load_u32, popcount_u64, store_u16, store_u32, store_u64, u8


def limits(bound_k: int) -> Any:
    """Return the bound where the bodies pass on what depends on it."""
    return (bound_k,)


def _floats(source: Uint8Array, at: int, floats: int) -> Float32Array:
    return source[at : at + 4 * floats].copy().view(np.float32)


def _mask(truths: Iterable[object]) -> int:
    return sum(bool(truth) << lane for lane, truth in enumerate(truths))


def _octets(word: int) -> list[int]:
    return [word >> 8 * lane & 0xFF for lane in range(LANES)]


def _word(octets: Sequence[int]) -> int:
    return sum(octet << 8 * lane for lane, octet in enumerate(octets))


def burst_encoder(oracle: Oracle) -> Callable[..., tuple[int, int, int]]:
    """Return ``netoffload.codec.tagged.BurstsEncoder`` of one burst."""
    assert oracle.compress is not None
    compress = oracle.compress

    def encode_burst(
        source: Uint8Array, source_at: int, floats: int, limits: Any, target: Uint8Array, target_at: int
    ) -> tuple[int, int, int]:
        tags, codes = compress(_floats(source, source_at, floats), limits[0])
        octets = pack(tags, codes)
        target[target_at : target_at + octets.size] = octets
        return octets.size, int((tags >= 2).sum()), int((tags == 3).sum())

    return encode_burst


def decode_burst(
    payload: Uint8Array, at: int, tags: int, unit8: np.float32, target: Uint8Array, target_at: int
) -> None:
    """``netoffload.codec.tagged.BurstDecoder``."""
    at += TAGS_LEN
    for lane in range(LANES):
        tag = tags >> 2 * lane & 3
        code = _word(payload[at : at + TAG_OCTETS[tag]].tolist())
        if tag == 1:  # read as a 16-bit form without its low octet
            code = decode_short(code << 8, unit8)
        elif tag == 2:
            code = decode_short(code, UNIT16)
        store_u32(target, target_at + 4 * lane, code)
        at += TAG_OCTETS[tag]


def burst_rounder(oracle: Oracle) -> Callable[..., None]:
    """Return ``netoffload.codec.tagged.BurstRounder``."""

    def round_burst(
        source: Uint32Array, at: int, floats: int, limits: Any, _unit8: np.float32, target: Uint32Array
    ) -> None:
        lanes = slice(at // 4, at // 4 + floats)
        target[lanes] = oracle.round_trip(source[lanes].view(np.float32), limits[0]).view(np.uint32)

    return round_burst


def octets_there(word: int) -> int:
    """Return which octets of a word are not 0, a bit each."""
    return _mask(_octets(word))


def sums_of_bits(word: int) -> int:
    """Return a word of octets: how many bits are set in that octet of ``word`` and in those below it."""
    return _word([(word & (1 << 8 * lane + 8) - 1).bit_count() for lane in range(LANES)])


def fields_of(codes: int) -> int:
    """Return the fields of eight codes, an octet each."""
    return _word([2 * ((code & 127) - 1 & 127) + (code >> 7) for code in _octets(codes)])


def codes_of(fields: int) -> int:
    """Return the codes of eight fields, an octet each."""
    return _word([(field // 2 + 1) % 128 + (field & 1) * 128 for field in _octets(fields)])


def squeeze(word: int, mask: int) -> int:
    """Move the octets in a mask together."""
    return _word([octet for lane, octet in enumerate(_octets(word)) if mask >> lane & 1])


def spread(word: int, mask: int) -> int:
    """Undo :func:`squeeze`, with 0 between the octets."""
    octets = iter(_octets(word))
    return _word([next(octets) if mask >> lane & 1 else 0 for lane in range(LANES)])


def mask_burst(source: Uint8Array, at: int, floats: int, bound_k: int) -> int:
    """Return which of up to eight floats are not 0 in ``bounded``."""
    return _mask(compress_bounded(_floats(source, at, floats), bound_k)[0])


def code_burst(
    source: Uint8Array, at: int, floats: int, limits: Any, mask: int, target: Uint8Array, target_at: int
) -> int:
    """Store the codes of a packed burst; return which floats take 16 bits or more, and above them which take 32."""
    tags, codes = compress_bounded(_floats(source, at, floats), limits[0])
    octets = [(0, code, 0x80, 0x00)[tag] for tag, code in zip(tags.tolist(), codes.tolist(), strict=True)]
    store_u64(target, target_at, squeeze(_word(octets), mask))
    return _mask(tags >= 2) | _mask(tags == 3) << LANES


def decode_codes(codes: int, mask: int, unit8: np.float32, target: Uint8Array, target_at: int) -> int:
    """Store the floats of a packed burst; return which are escapes to 16 bits, and above them to 32."""
    octets = _octets(spread(codes, mask))
    for lane, octet in enumerate(octets):
        store_u32(target, target_at + 4 * lane, decode_short(octet << 8, unit8))
    return _mask([octet == 0x80 for octet in octets]) | (_mask([octet == 0 for octet in octets]) & mask) << LANES


def spread_bits(word: int, mask: int) -> int:
    """Spread the low bits of a word over the bits of a mask."""
    return sum((word >> at & 1) << bit for at, bit in enumerate(bit for bit in range(64) if mask >> bit & 1))


def _exact_values(form: int, source: Uint8Array, first: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return 64 values, and the bits of each."""
    bits = 16 if form == BF16 else 32
    return source[first : first + 8 * bits].copy().view(f"u{bits // 8}").astype(np.int64), bits


def exact_look(form: int, source: Uint8Array, first: int) -> tuple[int, ...]:
    """What ``netoffload.codec.exact`` sees of a group."""
    values, bits = _exact_values(form, source, first)
    exponents, there = values >> bits - 9 & 0xFF, _mask(values)
    distances = exponents.max() - exponents
    escapes = (_mask(distances >= 2**width - 1) & there for width in range(1, 7))
    return there, int(exponents.max()), int(bits == 16 or (values & 0xFFFF).any()), *escapes


def exact_put(form: int, source: Uint8Array, first: int, planned: Any, target: Uint8Array, at: int) -> None:
    """Store planes, exponents that escape, and rests."""
    _, width, plane_len, escapes, there = planned
    length = width * plane_len + popcount_u64(escapes) + popcount_u64(there) * (3 if form == FLOAT32 else 1)
    values, bits = _exact_values(form, source, first)
    target[at : at + length] = list(exact_group(values.tolist(), bits)[-length:])


def exact_get(form: int, octets: Uint8Array, at: int, got: Any, target: Uint8Array, target_at: int) -> None:
    """Store the values of a group from its planes, and from the place of its escapes."""
    *planes, escapes, there, top, length = got
    rest_len, rest_at = 3 if form == FLOAT32 else 1, at + popcount_u64(escapes)
    bits, value_len = 8 + 8 * rest_len, 2 if form == BF16 else 4
    for lane in range(length // value_len):
        value = 0
        if there >> lane & 1:
            exponent = top - sum((plane >> lane & 1) << bit for bit, plane in enumerate(planes)) & 0xFF
            if escapes >> lane & 1:
                exponent, at = u8(octets, at), at + 1
            value = exponent << 8 * rest_len | load_u32(octets, rest_at) & (1 << 8 * rest_len) - 1
            rest_at += rest_len
            value = value >> 1 | (value & 1) << bits - 1
        if form == BF16:
            store_u16(target, target_at + 2 * lane, value)
        else:
            store_u32(target, target_at + 4 * lane, value << (16 if form == NARROW else 0))
