"""The capability word: in the SYN and the SYN/ACK of a tagged connection a NIC says what it decodes.

::

    TCP option, experimental (RFC 6994):
    kind 253 | length 12 | ExID 0x4E4F | version | ways | codec bitmap 16 bit | nonce 32 bit

Bit i of the bitmap: this NIC decodes the codec with id i in blocks of that version. Bit 0 of the ways: it takes blocks
in UDP too (``encapsulation``); every NIC takes blocks in IPComp. Bit 1: it takes only blocks with a MAC. The nonce is
random, and blocks to this NIC carry their CRC combined with it. So only a sender that saw the handshake can make valid
blocks.

The sending NIC adds the option behind the host's options, and the receiving NIC takes it out again, so neither host
sees it. If the option is lost on the way, the peer counts as a NIC that cannot decode.
"""

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
"""Bit of the ways: the NIC takes blocks in UDP."""
WANTS_MAC: Final = 2
"""Bit of the ways: every block must end with a MAC, made with the key that both NICs share."""


class Capability(NamedTuple):
    """The fields of one capability option."""

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
    """Return the fields of one capability option."""
    if len(octets) != OPTION_LEN or octets[:4] != emit_capability()[:4]:
        raise WireError("not a capability option")
    codecs, nonce = octets[CODECS_AT:NONCE_AT], octets[NONCE_AT:]
    return Capability(octets[VERSION_AT], int.from_bytes(codecs, "big"), octets[WAYS_AT], int.from_bytes(nonce, "big"))
