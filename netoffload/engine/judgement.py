"""The verdict whether a promised stream is an array of little-endian float32: its first kilobyte, and what follows.

A program that tags its socket promises float32 (``promises``). This is the second line of defence, for programs that
break the promise: a codec that rounds a file destroys it, while floats that travel exact only travel slower. So a flow
counts as floats only on good evidence.

Words are the stream's 32-bit little-endian words. Each kind of word is evidence:

=========  ============================================================================================================
neutral    ±0, ±inf and the usual NaN: they are in arrays of floats and in files alike
odd        no float of a gradient, a weight or an image: magnitude outside [2^-62, 2^25). Two of three random words are
           odd, and every small integer, most lower-case text, and a third of the words of float64
tiny       below 2^-48: a few are in every array of small gradients, but not more than half
text       four octets of ASCII, or four that are close to each other, as in grey images, or two equal halves, or a
           digit of UTF-32
alike      both halves have nearly the same magnitude: float16, bfloat16, sound, or characters of two octets
one-sided  nearly all that are not neutral have an even index, or nearly all an odd one: short numbers as float64
drift      exponents jump from word to word: records, or patterns of another period than four octets
=========  ============================================================================================================

The NIC judges at least :data:`WORDS` words, from the first that is not neutral. A word is *fresh* if it is not neutral
and differs from the last word that was not neutral. A flow is undecided until it has :data:`FRESH_MIN` fresh words or
:data:`EQUAL_MIN` that are not neutral. It can become :data:`NOT_FLOATS` at any word: an integer among these words is a
header, and refutes floats by itself. How TCP cuts the stream does not change the verdict; a word that two segments
share is put together first.

**After the verdict** the NIC looks at every new segment before it rounds the segment (:func:`is_implausible`), in
windows of a kilobyte. A stream of floats may end in text or in a header. Such a segment leaves exact, and so does the
rest of the flow until a kilobyte looks like floats again (:func:`judge_again`). This look allows more than the verdict
does, because gradients of a trained model may be tiny. It counts only words that are not 0, and in a long segment only
those of every other 64 octets:

=========  ============================================================================================================
integers   subnormals; more than two and a sixteenth of the words, or one at either end of the segment
tiny       below 2^-62; more than eight and a half
huge       2^32 and more, but not infinite; more than two and a sixteenth. A third of random words is, so compressed,
           encrypted and executable files have them, and float64, images and text beyond ASCII
text       four octets from 0x20 to 0x7f, blanks and characters of ASCII; more than two and a half
=========  ============================================================================================================

A row of a first layer's gradient is one number times the pixels of few samples, and most bright pixels are equal. So
its words repeat, and one in forty such words looks like text. A word of text that repeats the last one is no evidence,
if it is from 2^-31 to 1 and has a letter among its low three octets. A table of equal numbers has none.
"""

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.emitted import ARRAY, Builder, Value, emits
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel, kernel
from netoffload.compiled.octets import load_u32, u8

# Fields of a flow's accumulators.
JUDGED_WORDS: Final = 0
"""Words judged, from the first one that is not neutral."""
JUDGED_ZEROS: Final = 1
"""Neutral words among the judged ones."""
JUDGED_ODD: Final = 2
JUDGED_TEXT: Final = 3
JUDGED_FRESH: Final = 4
"""Fresh words."""
JUDGED_ALIKE: Final = 5
"""Fresh words whose halves are alike."""
JUDGED_ODD_INDEX: Final = 6
"""Words at an odd index that are not neutral."""
JUDGED_LAST: Final = 7
"""The last word that was not neutral."""
JUDGED_TINY: Final = 8
JUDGED_DRIFT: Final = 9
"""Sum over fresh words of the distance between a word's exponent and the last one's, at most :data:`DRIFT_CAP` each."""
JUDGED_VERDICT: Final = 10
JUDGED_PART: Final = 11
"""The first octets of a word that a segment's end cuts, as a word; :data:`_LOST`: some of them were not seen."""
JUDGED_SEQ: Final = 12
"""The sequence number behind the last octet that was judged."""
JUDGED_AGAIN: Final = 13
"""Whether the flow counted as floats before; then :data:`NOT_FLOATS` is not final, and judging begins anew."""
JUDGE_FIELDS: Final = 14

UNDECIDED: Final = 0
FLOATS: Final = 1
NOT_FLOATS: Final = 2

WORDS: Final = 256
FRESH_MIN: Final = 32
EQUAL_MIN: Final = 128
"""Non-neutral words that suffice if few are fresh: an array of ones, or labels as one-hot vectors."""

EXPONENT_MIN: Final = 127 - 62
EXPONENT_MAX: Final = 127 + 24
"""The range of biased exponents of plausible floats. Above 2^24 float32 does not hold every integer."""

EXPONENT_TINY: Final = 127 - 48
"""Floats with a smaller biased exponent are tiny. Tables of offsets in executables often look like tiny floats only."""

EXPONENT_EQUAL: Final = 127 - 20
"""The least biased exponent of floats that are all equal; smaller ones could be any repeated octets."""

DRIFT_CAP: Final = 32
DRIFT_MAX: Final = 16
"""The most drift per fresh word. Normal values have 1.6; values spread evenly over 10^-12 to 10^-4 have nine."""

MANY_WORDS: Final = 4 * WORDS
"""From this length on, half of a new segment's words show enough."""

HEADER_WORDS: Final = 3
"""As many words of text in front are a header; three random floats look like text once in 30,000 times."""

HALVES_DIFFER: Final = 0x800
"""Halves whose magnitudes are closer than this are alike: 2 exponents of float16, 16 of bfloat16."""

OCTETS_DIFFER: Final = 0x20
"""Four octets that are all closer than this count as text."""

_LOST: Final = -1

_GRADIENT_TOP: Final = 3
"""The highest four bits of floats from 2^-31 to 1, and of the digits and marks that may end a word of text."""
_LETTERS: Final = 0x404040
"""Bits that letters in a word's low three octets have, and digits do not."""

_SHORT_MASK: Final = 0x3FFF
"""Low halves without these bits belong to floats of few digits, which resemble many high halves by chance."""


@inline_kernel
def is_neutral(word: int) -> bool:
    """Whether a word is no evidence: ±0, ±inf, or the NaN that processors make."""
    magnitude = word & 0x7FFFFFFF
    return magnitude == 0 or magnitude == 0x7F800000 or magnitude == 0x7FC00000


@inline_kernel
def exponent_of(word: int) -> int:
    """Return the biased exponent of a word's float32."""
    return word >> 23 & 0xFF


@inline_kernel
def is_odd(word: int) -> bool:
    """Whether a word is not a plausible float32."""
    exponent = exponent_of(word)
    return exponent < EXPONENT_MIN or exponent > EXPONENT_MAX


@inline_kernel
def is_integer(word: int) -> bool:
    """Whether a word is a small integer of either sign: a subnormal, or a NaN of unusual bits."""
    exponent = exponent_of(word)
    return exponent == 0 or exponent == 0xFF


@inline_kernel
def _is_printable(octet: int) -> bool:
    return 0x20 <= octet <= 0x7E or 0x09 <= octet <= 0x0D


@inline_kernel
def is_text(word: int) -> bool:
    """Whether a word is four octets of text, close to each other, two equal halves, or a character of UTF-32."""
    a, b, c, d = word & 0xFF, word >> 8 & 0xFF, word >> 16 & 0xFF, word >> 24
    if _is_printable(a) and _is_printable(b) and _is_printable(c) and _is_printable(d):
        return True
    if max(a, b, c, d) - min(a, b, c, d) < OCTETS_DIFFER or (a == c and b == d):
        return True
    return word & 0xFFFFFF == 0 and 0x20 <= d < 0x3F


@inline_kernel
def _may_be_gradient(word: int) -> bool:
    """Whether a word of text may as well be a gradient that stands there several times."""
    return word >> 28 == _GRADIENT_TOP and word & _LETTERS != 0


@inline_kernel
def is_alike(word: int) -> bool:
    """Whether both halves of a word have nearly the same magnitude."""
    low, high = word & 0x7FFF, word >> 16 & 0x7FFF
    return word & _SHORT_MASK != 0 and abs(high - low) < HALVES_DIFFER


@inline_kernel
def _is_refuted(row: Int64Array, word: int) -> bool:
    """Whether the words up to ``word``, the last one, cannot be floats."""
    told = row[JUDGED_WORDS] - row[JUDGED_ZEROS]
    if is_integer(word) or (told == 1 and is_odd(word)) or (told == HEADER_WORDS == row[JUDGED_TEXT]):
        return True
    return row[JUDGED_ODD] > 2 + told // 16 or row[JUDGED_TEXT] > 6 + told // 2


@inline_kernel
def _final(row: Int64Array) -> int:
    """Return the verdict on all words so far, none of which refuted floats by itself."""
    told = row[JUDGED_WORDS] - row[JUDGED_ZEROS]
    fresh = row[JUDGED_FRESH]
    if row[JUDGED_WORDS] < WORDS or (fresh < FRESH_MIN and told < EQUAL_MIN):
        return UNDECIDED
    if min(row[JUDGED_ODD_INDEX], told - row[JUDGED_ODD_INDEX]) < (told - 16) // 8 or row[JUDGED_TINY] > told // 2:
        return NOT_FLOATS
    if row[JUDGED_ALIKE] > 8 + fresh // 2 or row[JUDGED_DRIFT] > DRIFT_MAX * fresh:
        return NOT_FLOATS
    if fresh < FRESH_MIN and exponent_of(row[JUDGED_LAST]) < EXPONENT_EQUAL:
        return NOT_FLOATS
    return FLOATS


@inline_kernel
def _weigh_word(row: Int64Array, word: int) -> None:
    if not is_neutral(word):
        _add_evidence(row, word)
        row[JUDGED_VERDICT] = NOT_FLOATS if _is_refuted(row, word) else _final(row)
    elif row[JUDGED_WORDS] > 0:
        row[JUDGED_WORDS] += 1
        row[JUDGED_ZEROS] += 1
        row[JUDGED_VERDICT] = _final(row)
    if row[JUDGED_VERDICT] == NOT_FLOATS and row[JUDGED_AGAIN]:
        judge_again(row, row[JUDGED_SEQ])


@inline_kernel
def _add_evidence(row: Int64Array, word: int) -> None:
    """Count a word that is not neutral."""
    row[JUDGED_ODD_INDEX] += row[JUDGED_WORDS] & 1
    row[JUDGED_WORDS] += 1
    row[JUDGED_ODD] += is_odd(word)
    row[JUDGED_TEXT] += is_text(word) and not (word == row[JUDGED_LAST] and _may_be_gradient(word))
    row[JUDGED_TINY] += exponent_of(word) < EXPONENT_TINY
    if word != row[JUDGED_LAST]:
        if row[JUDGED_FRESH] > 0:
            row[JUDGED_DRIFT] += min(abs(exponent_of(word) - exponent_of(row[JUDGED_LAST])), DRIFT_CAP)
        row[JUDGED_LAST] = word
        row[JUDGED_FRESH] += 1
        row[JUDGED_ALIKE] += is_alike(word)


@kernel
def weigh(row: Int64Array, octets: Uint8Array, at: int, length: int, seq: int, cut: int) -> None:
    """Judge the next octets of a flow, until there is a verdict; ``seq`` is ``cut`` octets into a word, 0..3.

    ``row``, int64[JUDGE_FIELDS], has the flow's accumulators; zeros at first, but for ``JUDGED_SEQ``.
    """
    end = at + length
    if row[JUDGED_SEQ] != seq and cut:
        row[JUDGED_PART] = _LOST
    row[JUDGED_SEQ] = (seq + length) & 0xFFFFFFFF
    while cut > 0 and at < end:
        if row[JUDGED_PART] != _LOST:
            row[JUDGED_PART] |= u8(octets, at) << 8 * cut
        at += 1
        cut = cut + 1 & 3
        if cut == 0 and row[JUDGED_PART] != _LOST and row[JUDGED_VERDICT] == UNDECIDED:
            _weigh_word(row, row[JUDGED_PART])
    if cut:
        return
    words = (end - at) // 4
    for index in range(words):
        if row[JUDGED_VERDICT] != UNDECIDED:
            return
        _weigh_word(row, load_u32(octets, at + 4 * index))
    row[JUDGED_PART] = 0
    for octet in range(at + 4 * words, end):
        row[JUDGED_PART] |= u8(octets, octet) << 8 * (octet - at - 4 * words)


@inline_kernel
def verdict(row: Int64Array) -> int:
    """Return ``UNDECIDED``, ``FLOATS`` or ``NOT_FLOATS``."""
    return row[JUDGED_VERDICT]


@inline_kernel
def judge_again(row: Int64Array, seq: int) -> None:
    """Judge a flow anew from ``seq`` on, which counted as floats so far."""
    for field in range(JUDGE_FIELDS):
        row[field] = 0
    row[JUDGED_SEQ] = seq
    row[JUDGED_AGAIN] = 1


# Evidence about one word or several: five counts in one number.
_COUNT_BITS: Final = 12
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_INTEGERS: Final = _COUNT_BITS
_TINY: Final = 2 * _COUNT_BITS
_TEXT: Final = 3 * _COUNT_BITS
_HUGE: Final = 4 * _COUNT_BITS
_LANES: Final = 16
"""Words that are weighed at once."""

_MAGNITUDE: Final = 0x7FFFFFFF
_NORMAL_MIN: Final = 1 << 23
_TINY_MAX: Final = EXPONENT_MIN << 23
_HUGE_MIN: Final = 127 + 32 << 23
_INFINITE: Final = 255 << 23


@inline_kernel
def _is_shown(octet: int) -> bool:
    """Whether an octet is a blank, a visible character of ASCII, or delete."""
    return 0x20 <= octet <= 0x7F


@inline_kernel
def evidence_of(word: int) -> int:
    """Return the counts for one word: whether it is not 0, an integer, tiny, text, huge."""
    magnitude = word & _MAGNITUDE
    text = _is_shown(word & 0xFF) and _is_shown(word >> 8 & 0xFF)
    text = text and _is_shown(word >> 16 & 0xFF) and _is_shown(word >> 24)
    counts = int(magnitude != 0) | int(0 < magnitude < _NORMAL_MIN) << _INTEGERS
    counts |= int(0 < magnitude < _TINY_MAX) << _TINY | int(text) << _TEXT
    return counts | int(_HUGE_MIN <= magnitude < _INFINITE) << _HUGE


if JIT_DISABLED:

    def evidence_of_lanes(octets: Uint8Array, at: int) -> int:
        """Return the counts for the 16 words at ``at``, without integers."""
        counts = sum(evidence_of(load_u32(octets, at + 4 * lane)) for lane in range(_LANES))
        return counts & ~(_COUNT_MASK << _INTEGERS)

    def integers_in_lanes(octets: Uint8Array, at: int) -> int:
        """Return the count of integers among the 16 words at ``at``."""
        return sum(evidence_of(load_u32(octets, at + 4 * lane)) for lane in range(_LANES)) & _COUNT_MASK << _INTEGERS

else:

    def _every(number: int) -> Value:
        return ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [number] * _LANES)

    def _emit_count(builder: Builder, flags: Value, shift: int) -> Value:
        """Emit the number of lanes that are true, at the place of a count."""
        number = builder.ctpop(builder.bitcast(flags, ir.IntType(_LANES)))
        return builder.shl(builder.zext(number, ir.IntType(64)), ir.Constant(ir.IntType(64), shift))

    def _emit_evidence(builder: Builder, words: Value) -> Value:
        magnitudes = builder.and_(words, _every(_MAGNITUDE))
        nonzero = builder.icmp_unsigned("!=", magnitudes, _every(0))
        # A magnitude of 0 becomes the largest number.
        tiny = builder.icmp_unsigned("<", builder.sub(magnitudes, _every(1)), _every(_TINY_MAX - 1))
        # Four octets are shown if the highest bit of each is 0, and one of the next two is not.
        either = builder.and_(builder.or_(words, builder.shl(words, _every(1))), _every(0x40404040))
        low = builder.and_(builder.xor(words, _every(0xFFFFFFFF)), _every(0x80808080))
        text = builder.icmp_signed("==", builder.or_(either, low), _every(0xC0C0C0C0))
        huge = builder.icmp_unsigned("<", builder.sub(magnitudes, _every(_HUGE_MIN)), _every(_INFINITE - _HUGE_MIN))
        counts = builder.add(_emit_count(builder, nonzero, 0), _emit_count(builder, tiny, _TINY))
        counts = builder.add(counts, _emit_count(builder, huge, _HUGE))
        return builder.add(counts, _emit_count(builder, text, _TEXT))

    def _emit_integers(builder: Builder, words: Value) -> Value:
        below = builder.sub(builder.and_(words, _every(_MAGNITUDE)), _every(1))
        return _emit_count(builder, builder.icmp_unsigned("<", below, _every(_NORMAL_MIN - 1)), _INTEGERS)

    def _of_lanes(emit: Callable[[Builder, Value], Value]) -> Any:
        """Return an intrinsic of octets and an index: what ``emit`` makes of the 16 words there."""

        def of_lanes(builder: Builder, octets: Value, at: Value) -> Value:
            lanes = builder.bitcast(builder.gep(octets, [at]), _every(0).type.as_pointer())
            return emit(builder, builder.load(lanes, align=1))

        return emits(types.int64, ARRAY, types.int64)(of_lanes)

    evidence_of_lanes = _of_lanes(_emit_evidence)
    integers_in_lanes = _of_lanes(_emit_integers)


@inline_kernel
def _speaks_against(counts: int) -> bool:
    """Whether the words that were counted cannot all be floats."""
    nonzero, integers = counts & _COUNT_MASK, counts >> _INTEGERS & _COUNT_MASK
    tiny, huge = counts >> _TINY & _COUNT_MASK, counts >> _HUGE
    return max(integers, huge) > 2 + nonzero // 16 or tiny > 8 + nonzero // 2 or _is_text_against(counts)


@inline_kernel
def _is_text_against(counts: int) -> bool:
    return counts >> _TEXT & _COUNT_MASK > 2 + (counts & _COUNT_MASK) // 2


@inline_kernel
def _repeats_left_out(counts: int, octets: Uint8Array, at: int, words: int, step: int) -> int:
    """Take words that repeat the last word of text from the counts of a window that looks like text."""
    if not _is_text_against(counts):
        return counts
    last = 0
    for first in range(0, words, step):
        for lane in range(first, min(first + _LANES, words)):
            word = load_u32(octets, at + 4 * lane)
            if evidence_of(word) >> _TEXT & 1:
                if word == last and _may_be_gradient(word):
                    counts -= 1 | 1 << _TEXT
                last = word
    return counts


@inline_kernel
def _integers_counted(counts: int, octets: Uint8Array, at: int, words: int, step: int) -> int:
    """Add to a window's counts the integers in its vectors: integers are tiny, and few gradients have tiny values."""
    if counts >> _TINY & _COUNT_MASK:
        for word in range(0, words - _LANES + 1, step):
            counts += integers_in_lanes(octets, at + 4 * word)
    return counts


@kernel
def is_implausible(octets: Uint8Array, at: int, words: int) -> bool:
    """Whether words that follow floats cannot be floats: a window of them speaks against it, or the first or last word.

    In a segment of :data:`MANY_WORDS` or more, only every other 64 octets of a window count, which takes half the time.
    """
    if words <= 0:
        return False
    ends = evidence_of(load_u32(octets, at)) | evidence_of(load_u32(octets, at + 4 * (words - 1)))
    if ends >> _INTEGERS & 1:
        return True
    last = 0
    if words >= MANY_WORDS:
        last = words // WORDS * WORDS
        for first in range(0, last, WORDS):
            begin, counts = at + 4 * first, 0
            for word in range(0, WORDS, 2 * _LANES):  # a constant range, which the compiler unrolls
                counts += evidence_of_lanes(octets, begin + 4 * word)
            counts = _repeats_left_out(counts, octets, begin, WORDS, 2 * _LANES)
            if _speaks_against(_integers_counted(counts, octets, begin, WORDS, 2 * _LANES)):
                return True
    for first in range(last, words, WORDS):
        begin, count, counts = at + 4 * first, min(WORDS, words - first), 0
        for word in range(0, count - _LANES + 1, _LANES):
            counts += evidence_of_lanes(octets, begin + 4 * word)
        for word in range(count // _LANES * _LANES, count):
            counts += evidence_of(load_u32(octets, begin + 4 * word))
        counts = _repeats_left_out(counts, octets, begin, count, _LANES)
        if _speaks_against(_integers_counted(counts, octets, begin, count, _LANES)):
            return True
    return False


@inline_kernel
def is_all_zero(octets: Uint8Array, at: int, length: int) -> bool:
    """Whether ``length`` octets from index ``at`` are 0, which every codec keeps exact."""
    whole = length & ~3
    found = 0
    for index in range(0, whole, 4):
        found |= load_u32(octets, at + index)
    for index in range(whole, length):
        found |= u8(octets, at + index)
    return found == 0
