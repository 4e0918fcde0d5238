"""Random and mutated payloads into the decoder, whose arrays end at pages that raise a fault when touched.

::

    payload  |......... payload |64 octets of slack| no page behind
    target   |......... room for count floats, rounded up to a burst | no page behind

Half of the payloads are random octets; half of those have few bits set, so that many lanes are empty. The other half
are encoded floats. Then up to four octets, the end of the payload, and the count of floats are changed. Each payload is
decoded a second time as two halves, with the right middle in two thirds of the cases; both must give the same floats.
The oracle decodes the last of every :data:`SAMPLE` payloads, whole and as halves, and the statuses must agree.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from netoffload.codec import CODECS, Codec, get, kernels
from netoffload.codec.bursts import BURST_LEN, DECODE_SLACK, ENCODE_SLACK, LANES, MALFORMED, Middle
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import BOUNDED_BY_K, SPECS, CodecId, Exact, Packed
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import kernel
from netoffload.compiled.octets import copy_octets
from netoffload.config import BOUND_K_MAX
from netoffload.errors import CodecError, RunError
from tests.fuzz.batches import BATCH, Tally
from tests.shared.guarded import guarded_octets

MAX_COUNT: Final = 400
"""Floats per payload; a frame of 1500 octets of raw floats holds 365."""

MAX_LEN: Final = 1600
NOISE_LEN: Final = 1 << 16
FLIPS: Final = 4
SAMPLE: Final = 64
"""Payloads of which the oracle decodes one."""

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
    accepted = 0
    for first in range(0, count, SAMPLE):
        some = recipes[first : first + SAMPLE]
        taken, wrong, last = _decode_all(int(codec.codec_id), bound_k, some, values.view(np.uint8), noise, memory)
        accepted += int(taken)
        number_of_last = first + min(int(wrong), len(some) - 1)
        octets = payload[payload.size - DECODE_SLACK - last.length : payload.size - DECODE_SLACK]
        where = f"seed {seeds[0]}, batch {seeds[1]}, payload {number_of_last} ({codec.name}, bound {bound_k})"
        if wrong < len(some):
            raise RunError(f"{where}: {last} of {octets.tobytes().hex()}: the halves differ from the whole")
        try:
            _compare(codec, bound_k, octets, last, targets)
        except CodecError as error:
            raise RunError(f"{where}: {last} of {octets.tobytes().hex()}: {error}") from error
    return accepted


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


class _Last(NamedTuple):
    """A payload's length, the floats that were asked for, the middle, and the status as a whole and as halves."""

    length: int
    told: int
    middle: Middle
    read: int
    again: int


@kernel
def _decode_all(
    codec_id: int,
    bound_k: int,
    recipes: npt.NDArray[np.int64],
    values: Uint8Array,
    noise: npt.NDArray[np.uint8],
    memory: _Memory,
) -> tuple[int, int, _Last]:
    """Make and decode every payload, into both targets; stop at the first two halves that are not the whole.

    Return (accepted, index of the first wrong one or the count, the last payload, whose octets are still there).
    """
    scratch, classes, payload, target, other = memory
    accepted = length = 0
    last = _Last(0, 0, Middle(0, 0), 0, 0)
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
        step = GROUP if _HAVE_GROUPS >> codec_id & 1 else LANES  # the second half must begin with a new group
        half_count = min(recipe[_HALF], told) // step * step
        half_len = kernels.decode(codec_id, payload, start, length, half_count, bound_k, other, other.size - room)
        middle = Middle(min(max(half_len + recipe[_MISS], 0), length), half_count)
        read = kernels.decode(codec_id, payload, start, length, told, bound_k, target, target.size - room)
        again = kernels.decode_halves(codec_id, payload, start, length, told, middle, bound_k, other, other.size - room)
        last = _Last(length, told, middle, read, again)
        if read != MALFORMED and again != MALFORMED and not _is_same(target, other, room, 4 * told, codec_id):
            return accepted, index, last
        accepted += int(read != MALFORMED)
    return accepted, recipes.shape[0], last


_HAVE_GROUPS: Final = sum(1 << codec_id for codec_id, spec in SPECS.items() if isinstance(spec.form, Packed | Exact))
_EXACT: Final = int(CodecId.EXACT)


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


def _compare(
    codec: Codec, bound_k: int, payload: Uint8Array, last: _Last, targets: tuple[Uint8Array, Uint8Array]
) -> None:
    """Raise a CodecError unless the oracle says the same of a payload as a whole and of its halves."""
    half_len, half_count = last.middle
    for status, target, cuts in (
        (last.read, targets[0], [(0, last.told)]),
        (last.again, targets[1], [(0, half_count), (half_len, last.told - half_count)]),
    ):
        ends = [half_len] * (len(cuts) - 1) + [last.length if status == MALFORMED else status]
        try:
            parts = [
                codec.oracle.decode(payload[begin:end], count, bound_k)
                for (begin, count), end in zip(cuts, ends, strict=True)
            ]
        except CodecError:
            if status != MALFORMED:
                raise
            continue
        if status == MALFORMED:
            raise CodecError("the oracle takes it")
        room = -(-last.told // LANES) * BURST_LEN
        got = target[target.size - room : target.size - room + 4 * last.told]
        if np.concatenate(parts).tobytes() != got.tobytes():
            raise CodecError("these are not the oracle's floats")
