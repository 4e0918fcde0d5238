"""All codecs: number in a block header, name, and form of the payload.

Each codec is one row of :data:`SPECS`, and everything else is made from these rows: the names that users choose, the
bitmap that NICs exchange, the choice of kernels, the list of the hardware model, scapy's names and Wireshark's tables.
A member of :class:`CodecId` without a row fails at import, and so does a row without kernels or without an oracle.

All codecs share the burst: eight floats become a whole number of octets, and a float's code depends on that float
alone (``netoffload.codec``). There are five forms: :class:`Tagged`, :class:`Packed`, :class:`Exact`, :class:`Cut` and
:class:`Made`, whose kernels ``netoffload.codec.fixed`` makes from a row's integer arithmetic of one float.

A new codec without tags needs its member and row here, and its oracle in ``netoffload.codec.reference``; a codec that
only cuts bits off needs no oracle. A tagged codec also needs its arithmetic in ``netoffload.codec.tagged``. A codec of
another form also needs a body like ``netoffload.codec.packed``, its kernels in ``netoffload.codec.kernels``, and its
checks in ``verify`` and ``fuzz``: six files. ``scripts/generate`` then writes what files of other languages hold.

This module imports only the standard library, so the command line can name codecs without compiling.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


class CodecId(enum.IntEnum):
    """The codec's number in a block header (4 bits), in the order in which they are offered to users.

    6 stays free: NICs of version 0.2 announce it as ``sparse``.
    """

    INCEPTIONN = 1
    BOUNDED = 2
    TRUNCATE16 = 3
    TRUNCATE22 = 4
    TRUNCATE24 = 5
    PACKED = 7
    EXACT = 8
    NONE = 0


@dataclass(frozen=True)
class Tagged:
    """Bursts that begin with a tag word."""

    places8: tuple[int, int]
    """For the error bound 2**-k, the last bit of the 8-bit form weighs 2**-(places8[0] + places8[1] k)."""


@dataclass(frozen=True)
class Packed:
    """Groups of 64 floats, whose codes are all as wide as the widest of them, and runs of groups of zeros."""

    values: CodecId
    """A codec with tags that has the same values, to the bit, for peers that cannot decode this one."""


@dataclass(frozen=True)
class Exact:
    """Groups of 64 float32 or bf16: exponents near the largest one, and all other bits as they are."""


@dataclass(frozen=True)
class Cut:
    """Every float keeps its ``bits`` most significant bits; lane i starts at bit ``bits * i`` of its burst.

    ``bits`` is even and 2..16, so that half a burst is whole octets, or 32, which is the float as it is.
    """

    bits: int

    def __post_init__(self) -> None:
        """Refuse what the kernels cannot pack."""
        as_it_is = type(self) is Cut and self.bits == 32
        if not as_it_is and (self.bits % 2 or not 2 <= self.bits <= 16):
            raise ValueError(f"a code of {self.bits} bits cannot be packed: choose an even number up to 16")


@dataclass(frozen=True)
class Made(Cut):
    """Every float becomes a code of ``bits`` bits, up to 16, by arithmetic that is compiled: integers and operators."""

    to_code: Callable[[Any, Any], Any]
    """From (the 32 bits of a float, bound k) to its code."""
    to_word: Callable[[Any, Any], Any]
    """From (code, bound k) to the 32 bits of a float."""


@dataclass(frozen=True)
class CodecSpec:
    """One codec."""

    codec_id: CodecId
    form: Tagged | Packed | Exact | Cut
    keeps_bound: bool = False
    """Every finite float below 1 comes back with an error of at most 2**-k."""

    @property
    def name(self) -> str:
        """The name that users choose it by."""
        return self.codec_id.name.lower()

    @property
    def is_lossless(self) -> bool:
        """Whether all octets come back as they were, also those of no float: a NIC then needs no promise of floats."""
        return isinstance(self.form, Exact) or self.form == Cut(32)


def _checked(*rows: CodecSpec) -> dict[CodecId, CodecSpec]:
    """Return the rows by their ids, in the order of the ids, which must fit into the four bits of a block header."""
    ids = [row.codec_id for row in rows]
    wrong = [codec_id.name for codec_id in CodecId if ids.count(codec_id) != 1 or not 0 <= codec_id <= 15]
    if wrong:
        raise ValueError(f"codecs that do not have exactly one row and an id in 0..15: {', '.join(wrong)}")
    return {codec_id: rows[ids.index(codec_id)] for codec_id in CodecId}


SPECS: Final = _checked(
    CodecSpec(CodecId.INCEPTIONN, Tagged(places8=(7, 0))),
    CodecSpec(CodecId.BOUNDED, Tagged(places8=(-1, 1)), keeps_bound=True),
    CodecSpec(CodecId.TRUNCATE16, Cut(16)),
    CodecSpec(CodecId.TRUNCATE22, Cut(10)),
    CodecSpec(CodecId.TRUNCATE24, Cut(8)),
    CodecSpec(CodecId.PACKED, Packed(values=CodecId.BOUNDED), keeps_bound=True),
    CodecSpec(CodecId.EXACT, Exact()),
    CodecSpec(CodecId.NONE, Cut(32)),
)
NAMES: Final = tuple(spec.name for spec in SPECS.values())

RETIRED: Final = {"sparse": "packed"}
"""Names of former codecs, and the codec that has the same values in fewer octets."""

TAGGED: Final = {codec_id: spec.form for codec_id, spec in SPECS.items() if isinstance(spec.form, Tagged)}

BOUNDED_BY_K: Final = {codec_id for codec_id, spec in SPECS.items() if isinstance(spec.form, Tagged | Packed)}
"""Codecs whose values depend on the bound 2^-k."""

LOSSLESS: Final = {spec.name for spec in SPECS.values() if spec.is_lossless}
"""Names of the codecs that give back every bit."""

ALL_CODECS: Final = sum(1 << codec_id for codec_id in CodecId)
"""The bitmap of codecs that a NIC of this version decodes: bit i for codec id i."""
