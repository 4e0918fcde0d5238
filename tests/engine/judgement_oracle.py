"""The slow definition of ``netoffload.engine.judgement``: a verdict computed anew for every beginning of a stream."""

import itertools
import math
import string
import struct

UNDECIDED, FLOATS, NOT_FLOATS = 0, 1, 2

NEUTRAL = {struct.pack("<I", word) for word in (0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000)}
PRINTABLE = set(string.printable.encode())


def judge(octets: bytes) -> int:
    """Return the verdict on a stream that begins with these octets; a last word that is not whole is left out."""
    quads = [octets[at : at + 4] for at in range(0, len(octets) - 3, 4)]
    while quads and quads[0] in NEUTRAL:
        del quads[0]
    for count in range(1, len(quads) + 1):
        said = _verdict(quads[:count])
        if said != UNDECIDED:
            return said
    return UNDECIDED


def _verdict(quads: list[bytes]) -> int:
    telling = [quad for quad in quads if quad not in NEUTRAL]
    if quads[-1] not in NEUTRAL:
        integers = [quad for quad in telling if exponent(quad) in (0, 255)]
        odd = sum(map(is_odd, telling))
        text = sum(
            is_text(quad) and not (quad == before and is_repeatable(quad))
            for before, quad in zip([b"", *telling], telling, strict=False)
        )
        if is_odd(telling[0]) or integers or (len(telling) == text == 3):
            return NOT_FLOATS
        if odd > 2 + len(telling) // 16 or text > 6 + len(telling) // 2:
            return NOT_FLOATS
    fresh = [quad for before, quad in zip([b"", *telling], telling, strict=False) if quad != before]
    if len(quads) < 256 or (len(fresh) < 32 and len(telling) < 128):
        return UNDECIDED
    right = sum(quad not in NEUTRAL for quad in quads[1::2])
    steps = [abs(exponent(a) - exponent(b)) for a, b in itertools.pairwise(fresh)]
    refuted = (
        min(right, len(telling) - right) < (len(telling) - 16) // 8
        or sum(exponent(quad) < 127 - 48 for quad in telling) > len(telling) // 2
        or sum(map(is_alike, fresh)) > 8 + len(fresh) // 2
        or sum(min(step, 32) for step in steps) > 16 * len(fresh)
        or (len(fresh) < 32 and exponent(fresh[-1]) < 127 - 20)
    )
    return NOT_FLOATS if refuted else FLOATS


def exponent(quad: bytes) -> int:
    """The biased exponent, from the value where it has one."""
    (value,) = struct.unpack("<f", quad)
    if not math.isfinite(value):
        return 255
    return max(math.frexp(value)[1] + 126, 0) if value else 0


def is_odd(quad: bytes) -> bool:
    magnitude = math.fabs(struct.unpack("<f", quad)[0])
    return not 2.0**-62 <= magnitude < 2.0**25


def is_text(quad: bytes) -> bool:
    one_character = quad[:3] == b"\0\0\0" and 0x20 <= quad[3] < 0x3F
    return set(quad) <= PRINTABLE or max(quad) - min(quad) < 0x20 or quad[:2] == quad[2:] or one_character


def is_alike(quad: bytes) -> bool:
    low, high = int.from_bytes(quad[:2], "little"), int.from_bytes(quad[2:], "little")
    return low % 0x4000 != 0 and abs(low % 0x8000 - high % 0x8000) < 0x800


def is_implausible(octets: bytes) -> bool:
    """Whether whole words that follow floats cannot be floats."""
    quads = [octets[at : at + 4] for at in range(0, len(octets), 4)]
    if any(is_subnormal(quad) for quad in (*quads[:1], *quads[-1:])):
        return True
    windows = [quads[at : at + 256] for at in range(0, len(quads), 256)]
    if len(quads) >= 1024:
        whole = [window for window in windows if len(window) == 256]
        halves = [[quad for index, quad in enumerate(window) if index // 16 % 2 == 0] for window in whole]
        windows = halves + windows[len(whole) :]
    return any(_speaks_against([quad for quad in window if struct.unpack("<f", quad)[0] != 0]) for window in windows)


def _speaks_against(quads: list[bytes]) -> bool:
    tiny = [quad for quad in quads if math.fabs(struct.unpack("<f", quad)[0]) < 2.0**-62]
    text = [quad for quad in quads if all(0x20 <= octet <= 0x7F for octet in quad)]
    repeated = [quad for before, quad in itertools.pairwise(text) if quad == before and is_repeatable(quad)]
    integers = [quad for quad in quads if is_subnormal(quad)]
    huge = [quad for quad in quads if 2.0**32 <= math.fabs(struct.unpack("<f", quad)[0]) < math.inf]
    count = len(quads)
    if len(text) > 2 + count // 2:
        count -= len(repeated)
    is_text = len(text) - len(repeated) > 2 + count // 2
    return max(len(integers), len(huge)) > 2 + count // 16 or len(tiny) > 8 + count // 2 or is_text


def is_repeatable(quad: bytes) -> bool:
    """Whether a word of text may as well be a gradient that stands there several times."""
    return 2.0**-31 <= struct.unpack("<f", quad)[0] < 1 and any(octet & 0x40 for octet in quad[:3])


def is_subnormal(quad: bytes) -> bool:
    return 0 < math.fabs(struct.unpack("<f", quad)[0]) < 2.0**-126
