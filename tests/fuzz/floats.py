"""All float32 values through the kernels in use and through the oracle.

A range of bit patterns is checked in pieces, so small that the oracle's temporaries stay in the cache. For each piece
these must agree:

=============  ========================================================================================
payload        the octets of ``encode``, with tags and codes of the oracle, packed with NumPy into bursts or groups
decoded        the floats of ``decode``, with those of the oracle
round trip     the floats of ``round_trip``, with those of the oracle
error          with the bound, if the codec keeps it: abs(x - x') <= 2^-k for finite abs(x) < 1, in exact float64
=============  ========================================================================================

For codecs without tags the oracle packs one burst at a time with Python's integers, which is slow. So only the lengths
of their payloads are compared.

``exact`` puts 64 floats together. So exponents are mixed within a group, some far away (:data:`_MIXED`), and each block
begins at another lane; the oracle encodes the first groups of a block. Each pattern travels as float32, as two bf16,
and with a low half of 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from netoffload.codec import Codec, get
from netoffload.codec.bursts import LANES, TAGS_LEN
from netoffload.codec.packed import FIELD16, FIELD32, GROUP, RUN_MAX, WIDTH_BITS, WIDTH_MAX
from netoffload.codec.reference import TAG_OCTETS
from netoffload.codec_specs import Exact, Packed, Tagged
from netoffload.compiled.arrays import Float32Array, Uint8Array, Uint32Array
from netoffload.config import check_bound_k
from netoffload.errors import CodecError, UsageError
from tests.shared.pool import in_order

ALL: Final = 1 << 32
CHUNK: Final = 1 << 22
"""Bit patterns per task of a process."""

BLOCK: Final = 1 << 15

T = TypeVar("T", bound=np.generic)

_KEPT_OCTETS: Final = np.array([[at < kept for at in range(4)] for kept in TAG_OCTETS]).view(np.uint32)[:, 0]
"""Per tag, four truth values in one word: which octets of a code are in the payload."""


_MIXED: Final = np.array([(0, 1, 0, 2, 3, 1, 0, 5, 0, 1, 2, 4, 0, 1, 9, 0)[lane % 16] for lane in range(64)], np.uint32)
_MIXED[[17, 40]] = 77, 200
"""What changes the exponents of 64 neighbours, by exclusive or."""


@dataclass(frozen=True)
class Mismatch:
    """The first difference: what differs, for which float32 bits, the oracle's result and the kernel's result.

    ``expected`` and ``got`` are float bits, octets of the burst that begins with ``bits``, or numbers.
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
        mismatch = _check_block(codec, bound_k, words)
        if mismatch is not None:
            return mismatch
    return None


def _check_block(codec: Codec, bound_k: int, words: Uint32Array) -> Mismatch | None:
    if isinstance(codec.spec.form, Exact):
        return _check_exact(codec, words)
    values = words.view(np.float32)
    payload = codec.encode(values, bound_k)
    if codec.oracle.compress is None or codec.oracle.decompress is None:
        wanted = codec.oracle.round_trip(values, bound_k)
        burst_len = codec.oracle.encode(np.zeros(LANES, np.float32), bound_k).size
        length = -(-words.size // LANES) * burst_len
        if payload.size != length:
            return Mismatch("payload length", int(words[0]), str(length), str(payload.size))
    else:
        tags, codes = codec.oracle.compress(values, bound_k)
        wanted = codec.oracle.decompress(tags, codes, bound_k)
        pack = _WHOLE_ARRAYS[type(codec.spec.form)]
        if not np.array_equal(payload, pack(tags, codes)):
            return _first_burst(codec, bound_k, words)
    try:
        decoded = codec.decode(payload, words.size, bound_k)
    except CodecError as error:
        return Mismatch("decoded", int(words[0]), f"{words.size} floats", str(error))
    mismatch = _first_float("decoded", words, wanted, decoded)
    mismatch = mismatch or _first_float("round trip", words, wanted, codec.round_trip(values, bound_k))
    if mismatch is None and codec.spec.keeps_bound:
        return _first_error(words, decoded, bound_k)
    return mismatch


def _check_exact(codec: Codec, words: Uint32Array) -> Mismatch | None:
    words = words ^ _MIXED[words & 63] << 23  # of each 64 neighbours, the low six bits stay
    words = np.roll(words, int(words[0] >> 15) % 67)
    halves = (words >> 16).astype(np.uint16)
    pairs = np.append(halves, halves[: halves.size % 2]).view(np.uint32)
    for what, bits in (("float32", words), ("narrow", words & np.uint32(0xFFFF0000)), ("bf16", pairs)):
        values = bits.view(np.float32)
        payload = codec.encode(values, 10)
        try:
            decoded = codec.decode(payload, bits.size, 10)
        except CodecError as error:
            return Mismatch(what, int(bits[0]), f"{bits.size} floats", str(error))
        mismatch = _first_float(what, bits, values, decoded)
        mismatch = mismatch or _first_float("round trip", bits, values, codec.round_trip(values, 10))
        first = values[:128]
        wanted, got = codec.oracle.encode(first, 10), codec.encode(first, 10)
        if mismatch is None and not np.array_equal(wanted, got):
            return Mismatch("group", int(bits[0]), wanted.tobytes().hex(" "), got.tobytes().hex(" "))
        if mismatch is not None:
            return mismatch
    return None


def packed(tags: Uint8Array, codes: Uint32Array) -> Uint8Array:
    """Return the octets of ``netoffload.codec.reference.pack``, by whole-array operations."""
    bursts = -(-tags.size // LANES)
    all_tags = np.zeros((bursts, LANES), np.uint16)
    all_codes = np.zeros((bursts, LANES), np.uint32)
    all_tags.reshape(-1)[: tags.size] = tags
    all_codes.reshape(-1)[: tags.size] = codes
    tag_words = np.bitwise_or.reduce(all_tags << np.arange(0, 2 * LANES, 2, dtype=np.uint16), axis=1)
    octets = np.hstack([tag_words.view(np.uint8).reshape(-1, TAGS_LEN), all_codes.view(np.uint8)])
    kept = np.ones(octets.shape, np.bool_)
    kept[:, TAGS_LEN:] = _KEPT_OCTETS[all_tags].view(np.bool_)
    return octets[kept]


def packed_groups(tags: Uint8Array, codes: Uint32Array) -> Uint8Array:
    """Return the octets of ``netoffload.codec.reference.pack_groups``, by whole-array operations."""
    all_tags, all_codes = _in_groups(tags), _in_groups(codes)
    there = all_tags != 0
    fields = 2 * (all_codes & 127) - 2 + (all_codes >> 7)
    fields = np.where(all_tags == 1, fields, np.where(all_tags == 2, FIELD16, FIELD32))
    widths = np.frexp(np.max(fields * there, axis=1, initial=1).astype(np.float64))[1]
    bits = np.zeros((len(fields), 8 * (1 + GROUP)), np.uint8)
    group, lane = np.nonzero(there)
    rank = np.cumsum(there, axis=1)[group, lane] - 1
    first = np.where(widths == WIDTH_MAX, 8, WIDTH_BITS)[group] + rank * widths[group]
    for bit in range(WIDTH_MAX):
        of_field = bit < widths[group]
        bits[group[of_field], first[of_field] + bit] = fields[group, lane][of_field] >> bit & 1
    for bit in range(WIDTH_BITS):
        bits[:, bit] = widths - 1 >> bit & 1
    lengths = (WIDTH_BITS + there.sum(axis=1) * widths + 7) // 8

    is_empty, number = ~there.any(axis=1), np.arange(len(fields))
    others = np.flatnonzero(np.append(~is_empty, True))
    begins = np.append(-1, others)[np.searchsorted(others, number)] + 1
    is_first = is_empty & ((number - begins) % RUN_MAX == 0)
    left = others[np.searchsorted(others, number)] - number

    octets, kept = _masks(all_tags)
    kept[0] = (is_first | ~is_empty)[:, None]
    octets += [(np.minimum(left, RUN_MAX) - 1).astype(np.uint8)[:, None], np.packbits(bits, axis=1, bitorder="little")]
    kept += [is_first[:, None], np.arange(1 + GROUP) < (lengths * ~is_empty)[:, None]]
    return _kept(octets, kept, all_tags, all_codes)


def _in_groups(values: npt.NDArray[T]) -> npt.NDArray[T]:
    """Return whole groups, the last one filled up with 0."""
    return np.append(values, np.zeros(-values.size % GROUP, values.dtype)).reshape(-1, GROUP)


def _masks(tags: Uint8Array) -> tuple[list[Uint8Array], list[npt.NDArray[np.bool_]]]:
    """Return the burst mask and the lane masks of each group, and which of them are kept."""
    lane_masks = np.packbits(tags != 0, axis=1, bitorder="little")
    burst_masks = np.packbits(lane_masks != 0, axis=1, bitorder="little")
    return [burst_masks, lane_masks], [np.ones(burst_masks.shape, np.bool_), lane_masks != 0]


def _kept(
    octets: list[Uint8Array], kept: list[npt.NDArray[np.bool_]], tags: Uint8Array, codes: Uint32Array
) -> Uint8Array:
    """Return the octets that are kept, with each group's escapes behind its codes."""
    columns = np.hstack([*octets, codes.astype(np.uint16).view(np.uint8), codes.view(np.uint8)])
    escapes = [np.repeat(tags == tag, octets_each, axis=1) for tag, octets_each in ((2, 2), (3, 4))]
    octets_kept: Uint8Array = columns[np.hstack([*kept, *escapes])]
    return octets_kept


_WHOLE_ARRAYS: Final = {Tagged: packed, Packed: packed_groups}
"""The function that makes the payload from tags and codes, by the codec's form."""


def _first_burst(codec: Codec, bound_k: int, words: Uint32Array) -> Mismatch:
    step = GROUP if isinstance(codec.spec.form, Packed) else LANES
    for at in range(0, words.size, step):
        values = words[at : at + step].view(np.float32)
        wanted, got = codec.oracle.encode(values, bound_k), codec.encode(values, bound_k)
        if not np.array_equal(wanted, got):
            return Mismatch(
                "group" if step == GROUP else "burst", int(words[at]), wanted.tobytes().hex(" "), got.tobytes().hex(" ")
            )
    return Mismatch("bursts together", int(words[0]), "each burst's own octets", "others")


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
