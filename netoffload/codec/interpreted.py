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
    pack_groups,
)
from netoffload.codec.scalar import UNIT16, decode_short
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.compiled.octets import load_u32, popcount_u64, store_u16, store_u32, u8


def limits(bound_k: int) -> Any:
    """Return the bound where the bodies pass on what depends on it."""
    return (bound_k,)


def _floats(source: Uint8Array, at: int, floats: int) -> Float32Array:
    return source[at : at + 4 * floats].copy().view(np.float32)


def _mask(truths: Iterable[object]) -> int:
    return sum(bool(truth) << lane for lane, truth in enumerate(truths))


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


def put_group(
    source: Uint8Array, at: int, floats: int, limits: Any, target: Uint8Array, target_at: int
) -> tuple[int, int, int, int]:
    """``netoffload.codec.packed.GroupPutter``."""
    tags, codes = compress_bounded(_floats(source, at, floats), limits[0])
    octets = pack_groups(tags, codes)
    length = octets.size - 2 * int((tags == 2).sum()) - 4 * int((tags == 3).sum())
    target[target_at : target_at + length] = octets[:length]
    return length, _mask(tags), _mask(tags >= 2), _mask(tags == 3)


def read_masks(payload: Uint8Array, at: int) -> tuple[int, int, int]:
    """``netoffload.codec.packed.MaskReader``."""
    present, masks = u8(payload, at), iter(payload[at + 1 :])
    lanes = [int(next(masks)) if present >> burst & 1 else 0 for burst in range(8)]
    return present, _word(lanes), int(_mask(lanes) == present)


def get_group(
    payload: Uint8Array, at: int, group: tuple[int, int, int], unit8: np.float32, target: Uint8Array, target_at: int
) -> tuple[int, int, int]:
    """``netoffload.codec.packed.GroupGetter``."""
    width, there, floats = group
    bits = int.from_bytes(payload[at : at + 65].tobytes(), "little") >> (8 if width == 8 else 3)
    fields = [0] * 64
    for lane in range(64):
        if there >> lane & 1:
            fields[lane], bits = bits & (1 << width) - 1, bits >> width
    for lane in range(floats):
        code = (fields[lane] // 2 + 1) % 128 << 8 | (fields[lane] & 1) << 15 if there >> lane & 1 else 0
        store_u32(target, target_at + 4 * lane, decode_short(code, unit8))
    return _mask(field == 255 for field in fields), _mask(field == 254 for field in fields), max(fields) >> width - 1


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
