"""The engines of the masked codec: memories for two groups each, one on its way in and one on its way out.

The memories are needed because the masks leave first but are complete only after the last burst.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netoffload.codec.escapes import ESCAPE16, ESCAPE32
from netoffload.codec.groups import GROUP, HEAD_MAX
from netoffload.errors import CodecError
from netoffload.lab.models.hardware.blocks import CODE_BITS, Blocks, Coded
from netoffload.lab.models.hardware.circuit import Circuit, Shifter, tree
from netoffload.lab.models.hardware.engines import FLOAT_BITS, LANES, Engine, Vector, beat_of, coded_lanes, joined
from netoffload.lab.models.hardware.ports import BEAT_BITS, Beat, Wait

BURSTS: Final = GROUP // LANES
"""Bursts in a group."""

ALIGNMENT_BITS: Final = 2 * BEAT_BITS - 8
"""504, the least size that cannot hang: a word or beat may come while all but an octet of a beat is held."""

MEMORY_BITS: Final = 2 * (8 * HEAD_MAX + sum(CODE_BITS[1:]) * GROUP)
"""7312: masks, codes, 16-bit and 32-bit escapes of two groups."""

EMPTY: Final = Vector(0, 0)

_CODE_OF_TAG: Final = {2: ESCAPE16, 3: ESCAPE32}
_TAG_OF_CODE: Final = {code: tag for tag, code in _CODE_OF_TAG.items()}

_PARTS: Final = (
    *(tree("codes", 8, 1) + tree("16 bits", 16, 1) + tree("32 bits", 32, 1)),
    *(Shifter(what, BEAT_BITS, BEAT_BITS // bits) for what, bits in (("codes", 8), ("16 bits", 16), ("32 bits", 32))),
)
"""Three trees, and behind them three rotators, because octets may start anywhere in a word of a memory."""


class Group(NamedTuple):
    """The parts of one group in the memories; immutable, so a cycle that changes a group makes a new one.

    Attributes:
        bursts: bursts that have come, or that have yet to leave.
        lanes: a bit per float, 1 if the float is not 0; the next float's bit is lowest.
        codes: the codes of those floats, an octet each.
        sixteens: the 16-bit escapes.
        wholes: the 32-bit escapes.
    """

    bursts: int = 0
    lanes: int = 0
    codes: Vector = EMPTY
    sixteens: Vector = EMPTY
    wholes: Vector = EMPTY

    def with_burst(self, coded: list[Coded]) -> Group:
        """Return the group with one burst more: one tree per part squeezes out the lanes without a code."""
        mask = sum((tag != 0) << lane for lane, (tag, _) in enumerate(coded))
        codes = joined([Vector(_CODE_OF_TAG.get(tag, code), 8 if tag else 0) for tag, code in coded])
        sixteens, wholes = (
            joined([Vector(code, CODE_BITS[tag]) if tag == wanted else EMPTY for tag, code in coded])
            for wanted in (2, 3)
        )
        return Group(
            self.bursts + 1,
            self.lanes | mask << LANES * self.bursts,
            self.codes.then(codes),
            self.sixteens.then(sixteens),
            self.wholes.then(wholes),
        )

    def words(self) -> list[Vector]:
        """Return the words that leave, one per cycle: the masks, then every part in words of at most a beat."""
        masks = [self.lanes >> LANES * burst & 0xFF for burst in range(BURSTS)]
        words = [Vector(sum((mask != 0) << burst for burst, mask in enumerate(masks)), 8)]
        for mask in filter(None, masks):
            words[0] = words[0].then(Vector(mask, 8))
        for part in (self.codes, self.sixteens, self.wholes):
            words += [part.without(at).first(BEAT_BITS) for at in range(0, part.length, BEAT_BITS)]
        return words

    def without_burst(self, blocks: Blocks) -> tuple[int, Group]:
        """Return the eight floats of the next burst, and the group without them."""
        burst, codes, sixteens, wholes = 0, self.codes, self.sixteens, self.wholes
        for lane in range(LANES):
            if self.lanes >> lane & 1 == 0:
                continue
            code, codes = codes.first(8).bits, codes.without(8)
            tag = _TAG_OF_CODE.get(code, 1)
            if tag == 2:
                code, sixteens = sixteens.first(16).bits, sixteens.without(16)
            elif tag == 3:
                code, wholes = wholes.first(32).bits, wholes.without(32)
            burst |= blocks.decompress(Coded(tag, code)) << FLOAT_BITS * lane
        return burst, Group(self.bursts - 1, self.lanes >> LANES, codes, sixteens, wholes)


class GroupCompressor(Engine):
    """Collects a group while the one before it leaves, a word per cycle, through the alignment unit."""

    circuit = Circuit(ALIGNMENT_BITS, MEMORY_BITS, (*_PARTS, Shifter("alignment", ALIGNMENT_BITS, BEAT_BITS // 8)))
    when_short = Wait.COLLECTING

    def __init__(self, blocks: Blocks) -> None:
        super().__init__(blocks)
        self._coming = Group()
        self._leaving: list[Vector] = []

    @property
    def is_empty(self) -> bool:
        """Whether the memories and the alignment unit are empty."""
        return not (self._coming.bursts or self._leaving or self.held.length)

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return 256 bits, or the rest once the input and the memories have ended."""
        return beat_of(self.held, is_last=has_ended and not self._leaving and not self._coming.bursts)

    def move(self, has_ended: bool) -> None:
        """Swap the memories once a group is complete and the one before has left; move a word if one surely fits."""
        is_whole = self._coming.bursts == BURSTS or (has_ended and self._coming.bursts > 0)
        if is_whole and not self._leaving:
            self._leaving, self._coming = self._coming.words(), Group()
        if self._leaving and self.held.length + BEAT_BITS <= ALIGNMENT_BITS:
            self.held = self.held.then(self._leaving.pop(0))

    def refusal(self) -> Wait | None:
        """Refuse a beat behind a whole group."""
        return Wait.GROUP_FULL if self._coming.bursts == BURSTS else None

    def enter(self, beat: Beat) -> None:
        """Append a burst to every part."""
        self._coming = self._coming.with_burst(coded_lanes(self.blocks, beat))


class GroupDecompressor(Engine):
    """Reads the parts of a group, at most a word per cycle, while the bursts of the group before it leave.

    Args:
        blocks: the logic of a lane.
        count: floats in the payload, from the block header.
    """

    circuit = Circuit(
        ALIGNMENT_BITS,
        MEMORY_BITS,
        (
            Shifter("beat in", ALIGNMENT_BITS, BEAT_BITS // 8),
            Shifter("part away", ALIGNMENT_BITS, BEAT_BITS // 8),
            *_PARTS,
        ),
    )
    when_short = Wait.INCOMPLETE_GROUP

    def __init__(self, blocks: Blocks, count: int) -> None:
        super().__init__(blocks)
        self._count = count
        self._coming: Group | None = None
        self._leaving = Group()

    @property
    def is_empty(self) -> bool:
        """Whether the memories and the register are empty."""
        return not (self._coming or self._leaving.bursts or self.held.length)

    def leave(self, has_ended: bool) -> tuple[Beat, int] | None:
        """Return eight floats if a whole group is there."""
        del has_ended
        return (Beat(self._leaving.without_burst(self.blocks)[0]), 0) if self._leaving.bursts else None

    def release(self, used: int) -> None:
        """Remove the burst that left."""
        del used
        self._leaving = self._leaving.without_burst(self.blocks)[1]

    def move(self, has_ended: bool) -> None:
        """Read the next part of a group; swap the memories once it is complete and the group before has left.

        Raises:
            CodecError: the stream is not a payload of the masked codec.
        """
        wanted = self._wanted_bits()
        if self.held.length and self._coming is None and not self._count:
            raise CodecError(f"payload has {self.held.length // 8} octets behind its last group")
        if wanted and self.held.length >= wanted:
            self._read(self.held.first(wanted))
            self.held = self.held.without(wanted)
            wanted = self._wanted_bits()
        elif wanted and has_ended and (self.held.length or self._coming):
            raise CodecError(f"payload ends {wanted - self.held.length} bits or more before its last group does")
        if self._coming is not None and not wanted and not self._leaving.bursts:
            self._leaving, self._coming = self._coming, None

    def _wanted_bits(self) -> int:
        """Return how many bits to read next: the masks, or at most a word of an incomplete part; 0 if none."""
        coming = self._coming
        if coming is None:
            return 8 + 8 * (self.held.bits & 0xFF).bit_count() if self._count else 0
        for part, length in self._parts(coming):
            if part.length < length:
                return min(BEAT_BITS, length - part.length)
        return 0

    @staticmethod
    def _parts(group: Group) -> tuple[tuple[Vector, int], ...]:
        """Return every part and its full length in bits, as far as the part before it says so."""
        octets = group.codes.bits.to_bytes(group.codes.length // 8, "little")
        return (
            (group.codes, 8 * group.lanes.bit_count()),
            (group.sixteens, 16 * octets.count(ESCAPE16)),
            (group.wholes, 32 * octets.count(ESCAPE32)),
        )

    def _read(self, octets: Vector) -> None:
        """Take in what :meth:`_wanted_bits` asked for."""
        coming = self._coming
        if coming is None:
            self._coming = self._begun(octets)
            return
        codes, sixteens, _ = (part.length == length for part, length in self._parts(coming))
        if not codes:
            self._coming = coming._replace(codes=coming.codes.then(octets))
        elif not sixteens:
            self._coming = coming._replace(sixteens=coming.sixteens.then(octets))
        else:
            self._coming = coming._replace(wholes=coming.wholes.then(octets))

    def _begun(self, octets: Vector) -> Group:
        """Return a group with its masks."""
        floats = min(GROUP, self._count)
        present, lanes, masks = octets.first(8).bits, 0, octets.without(8)
        for burst in range(BURSTS):
            if present >> burst & 1:
                lanes |= masks.first(8).bits << LANES * burst
                if not masks.first(8).bits:
                    raise CodecError("masks are not those of an encoder: a burst has no float")
                masks = masks.without(8)
        if lanes >> floats:
            raise CodecError("masks are not those of an encoder: a float is beyond the last one")
        self._count -= floats
        return Group(-(-floats // LANES), lanes)

    def refusal(self) -> Wait | None:
        """Refuse a beat that would not fit."""
        if self.held.length + BEAT_BITS <= ALIGNMENT_BITS:
            return None
        return Wait.GROUP_FULL if self._coming is not None and not self._wanted_bits() else Wait.PART_SHORT

    def enter(self, beat: Beat) -> None:
        """Append a beat to the register."""
        self.held = self.held.then(Vector(beat.bits, 8 * beat.octets))
