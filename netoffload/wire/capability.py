"""The capability word: what a NIC tells its peer in the SYN and the SYN/ACK of a tagged connection.

::

    TCP option, experimental (RFC 6994):  kind 253 | length 8 | ExID 0x4E4F | version | ways | codec bitmap 16 bit

Bit i of the bitmap: this NIC decodes the codec with id i in blocks of that version. Bit 0 of the ways: it takes blocks
in UDP too (``encapsulation``); IPComp every NIC takes. The NIC that sends adds the option behind the host's own, the
NIC that receives takes it out again, so neither host sees it. What is lost on the way means "cannot decode".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netoffload.errors import WireError
from netoffload.wire.offload import BLOCK_VERSION, CodecId

OPTION_EXPERIMENT: Final = 253
OPTION_LEN: Final = 8
EXID: Final = 0x4E4F

# Field offsets in the option.
EXID_AT: Final = 2
VERSION_AT: Final = 4
WAYS_AT: Final = 5
CODECS_AT: Final = 6

ALL_CODECS: Final = sum(1 << codec_id for codec_id in CodecId)
"""What a NIC of this version decodes."""

TAKES_UDP: Final = 1
"""Of the ways: blocks in UDP."""


class Capability(NamedTuple):
    """What one option says."""

    version: int
    codecs: int
    ways: int


def emit_capability(codecs: int = ALL_CODECS, version: int = BLOCK_VERSION, ways: int = TAKES_UDP) -> bytes:
    """Return the option's octets."""
    return bytes((OPTION_EXPERIMENT, OPTION_LEN, EXID >> 8, EXID & 0xFF, version, ways)) + codecs.to_bytes(2, "big")


def parse_capability(octets: bytes) -> Capability:
    """Return what one option says.

    Raises:
        WireError: another option, or another length.
    """
    if len(octets) != OPTION_LEN or octets[:4] != emit_capability()[:4]:
        raise WireError("not a capability option")
    return Capability(octets[VERSION_AT], int.from_bytes(octets[CODECS_AT:], "big"), octets[WAYS_AT])
