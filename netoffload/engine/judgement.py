"""The verdict whether a tagged stream is an array of little-endian float32, taken from its first kilobyte.

ToS 0x28 is DSCP AF11 (RFC 2597), which QoS policies also put on backups. A codec that rounds a file destroys it, while
floats that travel exact only travel slower. So a flow counts as floats only on good evidence.

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
:data:`EQUAL_MIN` that are not neutral. It can become :data:`NOT_FLOATS` at any word. How TCP cuts the stream does not
change the verdict.
"""

from __future__ import annotations

from typing import Final

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
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
JUDGE_FIELDS: Final = 11

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

FIRST_WORDS: Final = 16
"""Integers among this many first words are a header, which rounding would destroy; later ones may be tiny floats."""

HALVES_DIFFER: Final = 0x800
"""Halves whose magnitudes are closer than this are alike: 2 exponents of float16, 16 of bfloat16."""

OCTETS_DIFFER: Final = 0x20
"""Four octets that are all closer than this count as text."""

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
def is_alike(word: int) -> bool:
    """Whether both halves of a word have nearly the same magnitude."""
    low, high = word & 0x7FFF, word >> 16 & 0x7FFF
    return word & _SHORT_MASK != 0 and abs(high - low) < HALVES_DIFFER


@inline_kernel
def _is_refuted(row: Int64Array, word: int) -> bool:
    """Whether the words up to ``word``, the last one, cannot be floats."""
    told = row[JUDGED_WORDS] - row[JUDGED_ZEROS]
    if is_odd(word) and (told == 1 or (told <= FIRST_WORDS and is_integer(word))):
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
    if is_neutral(word):
        if row[JUDGED_WORDS] > 0:
            row[JUDGED_WORDS] += 1
            row[JUDGED_ZEROS] += 1
            row[JUDGED_VERDICT] = _final(row)
        return
    row[JUDGED_ODD_INDEX] += row[JUDGED_WORDS] & 1
    row[JUDGED_WORDS] += 1
    row[JUDGED_ODD] += is_odd(word)
    row[JUDGED_TEXT] += is_text(word)
    row[JUDGED_TINY] += exponent_of(word) < EXPONENT_TINY
    if word != row[JUDGED_LAST]:
        if row[JUDGED_FRESH] > 0:
            row[JUDGED_DRIFT] += min(abs(exponent_of(word) - exponent_of(row[JUDGED_LAST])), DRIFT_CAP)
        row[JUDGED_LAST] = word
        row[JUDGED_FRESH] += 1
        row[JUDGED_ALIKE] += is_alike(word)
    row[JUDGED_VERDICT] = NOT_FLOATS if _is_refuted(row, word) else _final(row)


@kernel
def weigh(row: Int64Array, octets: Uint8Array, at: int, words: int) -> None:
    """Judge the next words of a flow, until there is a verdict.

    Args:
        row: int64[JUDGE_FIELDS], the flow's accumulators, zeros at first.
        octets: uint8; the caller has checked that the words are in it.
        at: index of the first word's first octet.
        words: number of words, each of four octets.
    """
    for index in range(words):
        if row[JUDGED_VERDICT] != UNDECIDED:
            break
        _weigh_word(row, load_u32(octets, at + 4 * index))


@inline_kernel
def verdict(row: Int64Array) -> int:
    """Return ``UNDECIDED``, ``FLOATS`` or ``NOT_FLOATS``; the last two are final."""
    return row[JUDGED_VERDICT]


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
