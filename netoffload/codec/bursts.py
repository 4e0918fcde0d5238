"""What all kernels share: the numbers of the burst format, the contract, and how one half follows the other.

Every kernel works in the caller's octet arrays, allocates nothing, raises nothing and returns counts or a status. No
kernel checks that the arrays are long enough: the caller leaves the slack that the contract asks for.

======================  ==============================================================================
kernel                  contract
======================  ==============================================================================
``encode_fit``          ``target`` has ``capacity + ENCODE_SLACK`` octets from ``target_at`` on
``decode``,             ``DECODE_SLACK`` octets behind ``payload_at + available`` may be read; ``target`` has
``decode_halves``       ``4 * count`` octets, rounded up to a whole burst. A burst is written after its tags
                        are checked; a payload whose tags do not fit is refused, with the target undefined
``round_trip``          uint32 arrays of equal length, which may be the same
======================  ==============================================================================
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from netoffload.compiled.arrays import Stretch, Uint8Array
from netoffload.compiled.jit import inlined_with
from netoffload.wire.offload import BURST_FLOATS

LANES: Final = BURST_FLOATS
"""Floats in a burst: 256 bits (INCEPTIONN, VI-A)."""

BURST_LEN: Final = 4 * LANES
TAGS_LEN: Final = 2
MAX_BURST_PAYLOAD: Final = 3 + LANES + BURST_LEN
"""The most octets of a burst: masks, width and codes of a group of one burst, whose floats all escape to 32 bits."""

ENCODE_SLACK: Final = 576
"""A group of 64 floats, up to 330 octets, is written before it is known to fit, and 64 octets are stored at a time.
``exact`` fills up short groups in the last 256 octets."""

DECODE_SLACK: Final = 64
"""Lanes are read as whole words, and vector kernels read up to 64 octets at a time."""

MALFORMED: Final = -1
"""Status of ``decode``: no encoder makes this payload of ``count`` floats."""


class Middle(NamedTuple):
    """Where the second half of a payload begins, so that both halves can be decoded side by side.

    The first half has these octets and floats: whole bursts, or none.
    """

    octets: int
    floats: int


@inlined_with
def decode_halves(
    decode: Callable[..., int],
    coded: Stretch,
    count: int,
    middle: Middle,
    parameter: Any,
    target: Uint8Array,
    target_at: int,
) -> int:
    """``decode_halves``: one half after the other; each is a complete payload."""
    first, floats = middle
    octets, at = coded.octets, coded.at
    if decode(octets, at, first, floats, parameter, target, target_at) != first:
        return MALFORMED
    to, left = target_at + 4 * floats, count - floats
    rest = decode(octets, at + first, coded.length - first, left, parameter, target, to)
    return MALFORMED if rest == MALFORMED else first + rest
