"""Random and mutated payloads into the decoder, whose arrays end at pages that raise a fault when touched.

::

    payload  |......... payload |64 octets of slack| no page behind
    target   |......... room for count floats, rounded up to a burst | no page behind

Half of the payloads are random octets; half of those have few bits set, so that many lanes are empty. The other half
are encoded floats. Then up to four octets, the end of the payload, and the count of floats are changed. A function that
shares no code with the kernels checks the payload again, lane by lane; the decoder's status must agree. The oracle
decodes one payload per batch of one codec and bound. Each payload is decoded a second time as two halves, with the
right middle in two thirds of the cases. Two runs of empty groups may meet at the middle and nowhere else, so
``decode_halves`` has its own check.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from netoffload.codec import CODECS, Codec, get, kernels
from netoffload.codec.bursts import BURST_LEN, DECODE_SLACK, ENCODE_SLACK, LANES, MALFORMED, TAGS_LEN, Middle
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import BOUNDED_BY_K, SPECS, TAGGED, CodecId, Exact, Packed
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import kernel
from netoffload.compiled.octets import copy_octets, load_u16
from netoffload.config import BOUND_K_MAX
from netoffload.errors import CodecError, RunError
from tests.fuzz.batches import BATCH, Tally
from tests.shared.guarded import guarded_octets

MAX_COUNT: Final = 400
"""Floats per payload; a frame of 1500 octets of raw floats holds 365."""

MAX_LEN: Final = 1600
NOISE_LEN: Final = 1 << 16
FLIPS: Final = 4

_ORDER: Final = (*BOUNDED_BY_K, *BOUNDED_BY_K, *CODECS)


def fuzz_batches(seed: int, first_batch: int, count: int, codec: str = "") -> Tally:
    """Decode ``count`` payloads in this process, of one codec or of all: batch ``first_batch`` and those after it."""
    order = (get(codec).codec_id,) if codec else _ORDER
    payload = guarded_octets(MAX_LEN + DECODE_SLACK)
    targets = guarded_octets(-(-MAX_COUNT // LANES) * BURST_LEN), guarded_octets(-(-MAX_COUNT // LANES) * BURST_LEN)
    accepted = 0
    for number, start in enumerate(range(0, count, BATCH), first_batch):
        of = CODECS[order[number % len(order)]]
        accepted += _fuzz_batch((seed, number), of, min(BATCH, count - start), payload, targets)
    return Tally(accepted=accepted, refused=count - accepted)


def _fuzz_batch(
    seeds: tuple[int, int], codec: Codec, count: int, payload: Uint8Array, targets: tuple[Uint8Array, Uint8Array]
) -> int:
    rng = np.random.default_rng(seeds)
    bound_k = int(rng.integers(1, BOUND_K_MAX + 1))
    values = (rng.normal(0, 1, NOISE_LEN // 4) * 10 ** rng.uniform(-5, 1, NOISE_LEN // 4)).astype(np.float32)
    noise = rng.integers(0, 256, (3, NOISE_LEN), np.uint8)
    noise[1] &= noise[2] & rng.integers(0, 256, NOISE_LEN, np.uint8)
    recipes = _recipes(rng, count)
    scratch = np.zeros(MAX_LEN + ENCODE_SLACK, np.uint8)
    payload[-DECODE_SLACK:] = noise[2, :DECODE_SLACK]
    memory = _Memory(scratch, np.zeros(4, np.int64), payload, *targets)
    accepted, wrong, length, read = _decode_all(
        int(codec.codec_id), bound_k, recipes, values.view(np.uint8), noise, memory
    )
    told = int(recipes[min(wrong, count - 1), _TOLD])
    last = payload[payload.size - DECODE_SLACK - length : payload.size - DECODE_SLACK]
    where = f"seed {seeds[0]}, batch {seeds[1]}, payload {min(wrong, count - 1)} ({codec.name}, bound {bound_k})"
    if wrong < count:
        raise RunError(f"{where}: status {read} for {told} floats in {last.tobytes().hex()}")
    _compare_last(codec, bound_k, last, read, told, targets[0], where)
    return int(accepted)


_KIND, _MADE, _TOLD, _FROM, _LEN, _STRETCH, _HALF, _MISS, _FLIP_AT = range(9)
_FLIP_BY: Final = _FLIP_AT + FLIPS


def _recipes(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Return int64[count, columns]: how to make each payload."""
    recipes = np.empty((count, _FLIP_BY + FLIPS), np.int64)
    recipes[:, _KIND] = rng.choice(3, count, p=(0.25, 0.25, 0.5))  # noise, sparse noise, encoded floats
    recipes[:, _MADE] = rng.integers(0, MAX_COUNT + 1, count)
    change = rng.integers(-9, 10, count) * (rng.random(count) < 0.3)
    recipes[:, _TOLD] = np.clip(recipes[:, _MADE] + change, 0, MAX_COUNT)
    recipes[:, _FROM] = rng.integers(0, (NOISE_LEN - MAX_LEN) // 4, count) * 4
    recipes[:, _LEN] = rng.integers(0, MAX_LEN + 1, count)
    recipes[:, _STRETCH] = rng.integers(-40, 41, count) * (rng.random(count) < 0.3)
    recipes[:, _HALF] = rng.integers(0, MAX_COUNT + 1, count)
    recipes[:, _MISS] = rng.integers(-40, 41, count) * (rng.random(count) < 1 / 3)
    flips = slice(_FLIP_AT, _FLIP_AT + FLIPS)
    recipes[:, flips] = rng.integers(0, MAX_LEN, (count, FLIPS)) * (rng.random((count, FLIPS)) < 0.7)
    recipes[:, _FLIP_BY:] = rng.integers(0, 256, (count, FLIPS)) * (rng.random((count, FLIPS)) < 0.25)
    return recipes


class _Memory(NamedTuple):
    """The arrays in which payloads are made and decoded."""

    scratch: Uint8Array
    classes: Int64Array
    payload: Uint8Array
    target: Uint8Array
    other: Uint8Array


@kernel
def _decode_all(
    codec_id: int,
    bound_k: int,
    recipes: npt.NDArray[np.int64],
    values: Uint8Array,
    noise: npt.NDArray[np.uint8],
    memory: _Memory,
) -> tuple[int, int, int, int]:
    """Make and decode every payload, into both targets; stop at the first wrong result.

    Return (accepted, index of the first wrong one or the count, length, status). The last two belong to the last
    payload, which is still in ``payload`` and ``target``.
    """
    scratch, classes, payload, target, other = memory
    accepted = length = read = 0
    for index in range(recipes.shape[0]):
        recipe = recipes[index]
        if recipe[_KIND] == 2:
            _, length = kernels.encode_fit(
                codec_id, values, recipe[_FROM], recipe[_MADE], bound_k, scratch, 0, MAX_LEN, classes
            )
        else:
            length = recipe[_LEN]
            copy_octets(noise[recipe[_KIND]], recipe[_FROM], scratch, 0, length)
        length = min(max(length + recipe[_STRETCH], 0), MAX_LEN)
        for flip in range(FLIPS if length else 0):
            scratch[recipe[_FLIP_AT + flip] % length] ^= np.uint8(recipe[_FLIP_BY + flip])
        told = recipe[_TOLD]
        start = payload.size - DECODE_SLACK - length
        room = (told + LANES - 1) // LANES * BURST_LEN
        copy_octets(scratch, 0, payload, start, length)
        read = kernels.decode(codec_id, payload, start, length, told, bound_k, target, target.size - room)
        step = GROUP if _HAVE_GROUPS >> codec_id & 1 else LANES  # the second half must begin with a new group
        half_count = min(recipe[_HALF], told) // step * step
        half_len = _wanted_status(codec_id, payload, start, length, half_count) + recipe[_MISS]
        middle = Middle(min(max(half_len, 0), length), half_count)
        again = kernels.decode_halves(codec_id, payload, start, length, told, middle, bound_k, other, other.size - room)
        if (
            read != _wanted_status(codec_id, payload, start, length, told)
            or again != _wanted_halves(codec_id, payload, start, length, told, middle)
            or (read != MALFORMED and again != MALFORMED and not _is_same(target, other, room, 4 * told, codec_id))
        ):
            return accepted, index, length, read
        accepted += int(read != MALFORMED)
    return accepted, recipes.shape[0], length, read


_HAVE_TAGS: Final = sum(1 << codec_id for codec_id in TAGGED)
_HAVE_GROUPS: Final = sum(1 << codec_id for codec_id, spec in SPECS.items() if isinstance(spec.form, Packed | Exact))
_EXACT: Final = int(CodecId.EXACT)
_BURST_OCTETS: Final = np.zeros(16, np.int64)
for _codec_id, _codec in CODECS.items():
    _BURST_OCTETS[_codec_id] = _codec.oracle.encode(np.zeros(LANES, np.float32), 10).size


@kernel
def _wanted_status(codec_id: int, payload: Uint8Array, start: int, length: int, count: int) -> int:
    if codec_id == _EXACT:
        return _wanted_exact(payload, start, length, count)
    if _HAVE_GROUPS >> codec_id & 1:
        return _wanted_groups(payload, start, length, count)
    if _HAVE_TAGS >> codec_id & 1 == 0:
        whole = (count + LANES - 1) // LANES * _BURST_OCTETS[codec_id]
        return MALFORMED if whole > length else whole
    at = 0
    for index in range((count + LANES - 1) // LANES * LANES):
        if index % LANES == 0:
            if at + TAGS_LEN > length:
                return MALFORMED
            tags = load_u16(payload, start + at)
            at += TAGS_LEN
        tag = tags & 3
        tags >>= 2
        if tag != 0 and index >= count:
            return MALFORMED
        at += 4 if tag == 3 else tag
    return MALFORMED if at > length else at


@kernel
def _wanted_groups(payload: Uint8Array, start: int, length: int, count: int) -> int:
    """Return the status of groups, octet by octet: masks, then fields, each of which announces 0, 2 or 4 octets."""
    at, end = start, start + length
    empty = run = 0  # groups that remain of a run, and all its groups
    for first in range(0, count, GROUP):
        if empty > 0:
            empty -= 1
            continue
        if at >= end:
            return MALFORMED
        present = int(payload[at])
        at += 1
        if present == 0:
            if at >= end or run % 256:
                return MALFORMED
            empty = int(payload[at])
            run = empty + 1
            at += 1
            continue
        run = 0
        codes = 0
        for index in range(GROUP):
            if index % LANES == 0:
                mask = 0
                if present >> (index // LANES) & 1:
                    if at >= end or payload[at] == 0 or first + index >= count:
                        return MALFORMED
                    mask = int(payload[at])
                    at += 1
            is_there = mask >> (index % LANES) & 1
            if is_there and first + index >= count:
                return MALFORMED
            codes += is_there
        if at < end and payload[at] & 7 < 7:
            at = _wanted_fields(payload, at, codes)
        elif at >= end or payload[at] != 7:
            return MALFORMED
        else:
            at += 1 + _wanted_octets(payload, at + 1, end, codes)
        if not start < at <= end:
            return MALFORMED
    return MALFORMED if empty > 0 else at - start


@kernel
def _wanted_exact(payload: Uint8Array, start: int, length: int, count: int) -> int:
    """Return the status of groups of ``exact``, value by value; bits are read one at a time."""
    at, end, left = start, start + length, count
    while left > 0:
        if at >= end:
            return MALFORMED
        head = int(payload[at])
        kind, form, has_mask, width = head // 64, head // 16 % 4, head // 8 % 2, head % 8
        lanes = min(left, 32 if form == 2 else 64)
        values = 2 * lanes if form == 2 else lanes
        left -= lanes
        at += 1
        if kind == 3 or form == 3 or width == 7 or (kind < 2 and head % 32 != 0):
            return MALFORMED
        if kind < 2:
            at += 4 * lanes * kind
            if at > end:
                return MALFORMED
            continue
        mask_at = at + 1
        at = mask_at + has_mask * ((values + 7) // 8)
        if at > end:
            return MALFORMED
        there = values
        if has_mask:
            there = 0
            for value in range(values):
                there += int(payload[mask_at + value // 8]) >> value % 8 & 1
        plane_len = (there + 7) // 8
        planes_at = at
        at += width * plane_len
        if at > end or there == 0:
            return MALFORMED
        escapes = 0
        for value in range(there):
            ones = 0
            for bit in range(width):
                ones += int(payload[planes_at + bit * plane_len + value // 8]) >> value % 8 & 1
            escapes += int(width > 0 and ones == width)
        at += escapes + there * (3 if form == 0 else 1)
        if at > end:
            return MALFORMED
    return at - start


@kernel
def _wanted_octets(payload: Uint8Array, at: int, end: int, codes: int) -> int:
    """Return the octets of 8-bit fields with the escapes that they announce; too many if the payload ends."""
    if at + codes > end:
        return MAX_LEN + 1
    escapes = 0
    is_least = False
    for code_at in range(at, at + codes):
        code = int(payload[code_at])
        is_least |= code >= 128
        if code >= 254:
            escapes += 2 if code == 255 else 4
    return codes + escapes if is_least else MAX_LEN + 1


@kernel
def _wanted_fields(payload: Uint8Array, at: int, codes: int) -> int:
    """Return where fields of less than 8 bits end, or a negative number if no encoder writes them; bit by bit."""
    width = (int(payload[at]) & 7) + 1
    bit, is_least = 3, width == 1
    for _ in range(codes):
        bit += width
        if at + (bit - 1) // 8 >= payload.size:
            return MALFORMED
        is_least |= (int(payload[at + (bit - 1) // 8]) >> (bit - 1) % 8) & 1 != 0
    while bit % 8:
        if (int(payload[at + bit // 8]) >> bit % 8) & 1:
            return MALFORMED
        bit += 1
    return at + bit // 8 if is_least else MALFORMED


@kernel
def _wanted_halves(codec_id: int, payload: Uint8Array, start: int, length: int, count: int, middle: Middle) -> int:
    half_len, half_count = middle
    if _wanted_status(codec_id, payload, start, half_len, half_count) != half_len:
        return MALFORMED
    rest = _wanted_status(codec_id, payload, start + half_len, length - half_len, count - half_count)
    return MALFORMED if rest == MALFORMED else half_len + rest


@kernel
def _is_same(left: Uint8Array, right: Uint8Array, room: int, length: int, codec_id: int) -> bool:
    """Whether two targets of equal size hold the same ``length`` octets, from ``room`` octets before their ends on.

    Groups of ``exact`` have 32 or 64 words, so a middle that is no encoder's may cut one in two, and both are accepted.
    """
    differs = 0
    if codec_id == _EXACT:
        return True
    for index in range(left.size - room, left.size - room + length):
        differs |= left[index] ^ right[index]
    return differs == 0


def _compare_last(
    codec: Codec, bound_k: int, payload: Uint8Array, read: int, count: int, target: Uint8Array, where: str
) -> None:
    try:
        wanted = codec.oracle.decode(payload[: max(read, 0)] if read != MALFORMED else payload, count, bound_k)
    except CodecError as error:
        if read != MALFORMED:
            raise RunError(f"{where}: accepted, but {error}") from error
        return
    room = -(-count // LANES) * BURST_LEN
    got = target[target.size - room : target.size - room + 4 * count]
    if read != MALFORMED and wanted.tobytes() != got.tobytes():
        raise RunError(f"{where}: {count} floats of {payload.tobytes().hex()} are not the oracle's")
