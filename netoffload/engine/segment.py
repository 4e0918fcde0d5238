"""A TCP segment in a frame, compiled: its parts, its options, its sequence numbers, and a change of one field.

Sequence numbers wrap at 2**32 (RFC 9293, 3.4). They are compared by their distance, so they must be less than 2**31
apart. Every result is a number of 32 bits.
"""

from typing import Final, NamedTuple

from netoffload.compiled.arrays import Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be32, load_u16, put_be16, store_u16, u8
from netoffload.engine import network
from netoffload.engine.network import IP_AT
from netoffload.engine.sums import folded
from netoffload.wire import tcp, vnet

NO_OPTION: Final = 0
UNREADABLE: Final = -1
"""An option's length is impossible, so nothing behind it can be read."""


class Segment(NamedTuple):
    """Where the parts of a host's frame with one TCP segment are, found once per frame.

    Attributes:
        ip_len: octets of the network header, 20 for IPv4 and 40 for IPv6.
        seq: sequence number of the payload's first octet.
        gso_size: MSS of a TSO frame in whole floats; 0 where the frame is one segment.
    """

    ip_len: int
    tcp_at: int
    payload_at: int
    payload_len: int
    seq: int
    gso_size: int
    flags: int


@inline_kernel
def find_segment(frame: Uint8Array, ip_len: int) -> Segment:
    """Return the :class:`Segment` of a TCP frame."""
    tcp_at = IP_AT + ip_len
    tcp_len = get_tcp_len(frame, tcp_at)
    payload_len = network.get_datagram_len(frame, ip_len) - ip_len - tcp_len
    # Whole floats, so that neither blocks nor the kernel cut one where the host's MSS is odd.
    gso_size = 0 if u8(frame, vnet.GSO_TYPE) == vnet.GSO_NONE else load_u16(frame, vnet.VNET_GSO_SIZE) & ~3
    seq, flags = be32(frame, tcp_at + tcp.SEQ), u8(frame, tcp_at + tcp.FLAGS)
    return Segment(ip_len, tcp_at, tcp_at + tcp_len, payload_len, seq, gso_size, flags)


@inline_kernel
def get_tcp_len(octets: Uint8Array, tcp_at: int) -> int:
    """Return the length that the TCP header at ``tcp_at`` states."""
    return (u8(octets, tcp_at + tcp.DATA_OFFSET) >> 4) * 4


@inline_kernel
def find_option(frame: Uint8Array, tcp_at: int, wanted: int) -> int:
    """Return where the first option of a kind is, or ``NO_OPTION``, or ``UNREADABLE``.

    ``tcp.OPTION_END`` finds the end of the list.
    """
    at = tcp_at + tcp.TCP_MIN_LEN
    end = tcp_at + get_tcp_len(frame, tcp_at)
    while at < end:
        kind = u8(frame, at)
        if kind == tcp.OPTION_END:
            return at if wanted == tcp.OPTION_END else NO_OPTION
        if kind == tcp.OPTION_NOP:
            at += 1
            continue
        if at + 1 >= end or u8(frame, at + 1) < 2 or at + u8(frame, at + 1) > end:
            return UNREADABLE
        if kind == wanted:
            return at
        at += u8(frame, at + 1)
    return NO_OPTION


@inline_kernel
def find_sized_option(frame: Uint8Array, tcp_at: int, wanted: int, option_len: int) -> int:
    """Return where the first option of a kind is if it has this length; else ``NO_OPTION``."""
    at = find_option(frame, tcp_at, wanted)
    return at if at > NO_OPTION and u8(frame, at + 1) == option_len else NO_OPTION


@inline_kernel
def find_timestamps(frame: Uint8Array, tcp_at: int) -> int:
    """Return where the option for timestamps is (RFC 7323), or ``NO_OPTION``."""
    return find_sized_option(frame, tcp_at, tcp.OPTION_TIMESTAMPS, tcp.OPTION_TIMESTAMPS_LEN)


@inline_kernel
def has_signature(frame: Uint8Array, tcp_at: int) -> bool:
    """Whether an option signs the segment (TCP-MD5, TCP-AO), or the options cannot be read."""
    return (
        find_option(frame, tcp_at, tcp.OPTION_MD5) != NO_OPTION
        or find_option(frame, tcp_at, tcp.OPTION_AO) != NO_OPTION
    )


@inline_kernel
def advance(seq: int, octets: int) -> int:
    """Return the number ``octets`` after ``seq``; a negative ``octets`` goes back."""
    return (seq + octets) & 0xFFFFFFFF


@inline_kernel
def distance(first: int, second: int) -> int:
    """Return how many octets ``second`` is behind ``first`` in the stream: -2**31 .. 2**31 - 1."""
    return ((second - first + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@inline_kernel
def is_before(first: int, second: int) -> bool:
    """Whether ``first`` comes before ``second``."""
    return (first - second) & 0x80000000 != 0


@inline_kernel
def has_right_sum(frame: Uint8Array, ip_len: int) -> bool:
    """Whether the checksum of a TCP segment is right, was checked by the device, or is still to be filled in."""
    if u8(frame, vnet.VNET_FLAGS) & (vnet.NEEDS_CSUM | vnet.DATA_VALID):
        return True
    return network.is_tcp_summed_right(frame, ip_len, network.get_datagram_len(frame, ip_len) - ip_len)


@inline_kernel
def replace_u16(frame: Uint8Array, tcp_at: int, field: int, value: int) -> None:
    """Change a 16-bit field of a TCP header, and the checksum accordingly (RFC 1624)."""
    if u8(frame, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM:
        put_be16(frame, tcp_at + field, value)
        return
    total = (load_u16(frame, tcp_at + tcp.CHECKSUM) ^ 0xFFFF) + (load_u16(frame, tcp_at + field) ^ 0xFFFF)
    put_be16(frame, tcp_at + field, value)
    total = folded(total + load_u16(frame, tcp_at + field))
    store_u16(frame, tcp_at + tcp.CHECKSUM, total ^ 0xFFFF)


@inline_kernel
def replace_u32(frame: Uint8Array, tcp_at: int, field: int, value: int) -> None:
    """Change a 32-bit field of a TCP header, and the checksum accordingly."""
    replace_u16(frame, tcp_at, field, value >> 16)
    replace_u16(frame, tcp_at, field + 2, value & 0xFFFF)
