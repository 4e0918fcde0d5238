"""The capability word: what a NIC tells its peer in the SYN and the SYN/ACK of a tagged connection.

::

    TCP option, experimental (RFC 6994):
    kind 253 | length 12 | ExID 0x4E4F | version | ways | codec bitmap 16 bit | nonce 32 bit

Bit i of the bitmap: this NIC decodes the codec with id i in blocks of that version. Bit 0 of the ways: it takes blocks
in UDP too (``encapsulation``); IPComp every NIC takes. Bit 1: it takes blocks with a MAC, and no others. The nonce is
random. Blocks to this NIC carry their CRC combined with it, so nobody can make one who did not see the handshake.

The NIC that sends adds the option behind the host's own, the NIC that receives takes it out again, so neither host
sees it. What is lost on the way means "cannot decode".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netoffload.codec_specs import ALL_CODECS
from netoffload.errors import WireError
from netoffload.wire.offload import BLOCK_VERSION

OPTION_EXPERIMENT: Final = 253
OPTION_LEN: Final = 12
EXID: Final = 0x4E4F

# Field offsets in the option.
EXID_AT: Final = 2
VERSION_AT: Final = 4
WAYS_AT: Final = 5
CODECS_AT: Final = 6
NONCE_AT: Final = 8

TAKES_UDP: Final = 1
"""Of the ways: blocks in UDP."""
WANTS_MAC: Final = 2
"""Of the ways: every block must end with a MAC of the key that both NICs have."""


class Capability(NamedTuple):
    """What one option says."""

    version: int
    codecs: int
    ways: int
    nonce: int


def emit_capability(
    codecs: int = ALL_CODECS, version: int = BLOCK_VERSION, ways: int = TAKES_UDP, nonce: int = 0
) -> bytes:
    """Return the option's octets."""
    head = bytes((OPTION_EXPERIMENT, OPTION_LEN, EXID >> 8, EXID & 0xFF, version, ways))
    return head + codecs.to_bytes(2, "big") + nonce.to_bytes(4, "big")


def parse_capability(octets: bytes) -> Capability:
    """Return what one option says.

    Raises:
        WireError: another option, or another length.
    """
    if len(octets) != OPTION_LEN or octets[:4] != emit_capability()[:4]:
        raise WireError("not a capability option")
    codecs, nonce = octets[CODECS_AT:NONCE_AT], octets[NONCE_AT:]
    return Capability(octets[VERSION_AT], int.from_bytes(codecs, "big"), octets[WAYS_AT], int.from_bytes(nonce, "big"))
