"""Blocks in UDP: into datagrams and bundles on the way to the wire, out of them on the way back.

The format is in ``netoffload.wire.encapsulation``. A segment first becomes a row of IPComp frames with one block each
and room before it. :func:`wrap` turns each frame into a UDP datagram. If the kernel cuts bundles, :func:`bundle` then
turns the row into the pieces of one frame::

    spans        vnet Ethernet IP UDP entry block | vnet Ethernet IP UDP entry block | ...
    bundled      vnet Ethernet IP UDP entry block 0 |               entry block 0    | ...       0: zeros

No block moves; the caller gathers the pieces. On the way back :func:`unwrap` turns every block into an IPComp frame in
place, by writing the headers before it. So ``receive`` knows nothing of UDP.
"""

from typing import Final

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import be16, be32, copy_octets, put_be16, u8
from netoffload.engine import network
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.network import IP_AT
from netoffload.engine.segment import Segment
from netoffload.wire import encapsulation, ethernet, ipv6, offload, tcp, udp, vnet

PAD_MAX: Final = 48
"""The most zeros behind a block of a bundle. Coalesced packing leaves less than a burst and a part of a float, 37
octets. Where more zeros were needed (with one frame per MSS, for example), the datagrams leave one by one."""

DATAGRAMS_MAX: Final = 64
"""The most datagrams in a bundle; older kernels refuse more (``UDP_MAX_SEGMENTS``). An MSS below 1 KiB reaches it."""

HEADERS_LEN: Final = vnet.VNET_LEN + ethernet.ETHERNET_LEN + ipv6.IPV6_LEN
"""Room for the headers that :func:`unwrap` keeps."""

_BEGINS_OURS: Final = offload.IPCOMP_NEXT_TCP << 24 | offload.CPI_OFFLOAD
"""The IPComp header of every block."""

# Fields of the cursor of unwrap, int64[CURSOR_FIELDS]; all 0 at first.
_NEXT_AT: Final = 0
"""Where the next entry starts; 0: the frame has not been looked at."""
_END_AT: Final = 1
"""Where the datagram ends."""
PART_AT: Final = 2
"""Result: where the frame with the block starts."""
CURSOR_FIELDS: Final = 3

_NO_PART: Final = -1


@inline_kernel
def wrap(frame: Uint8Array, segment: Segment, wire: Uint8Array, wire_at: int, span: int, index: int) -> int:
    """Make a UDP datagram of the IPComp frame that starts ``DATAGRAM_OVERHEAD`` behind ``wire_at``; return its length.

    ``span`` is the IPComp frame's length, ``index`` its number in its segment.
    """
    ip_len, tcp_at = segment.ip_len, segment.tcp_at
    udp_at = wire_at + tcp_at
    block_len = span - tcp_at
    copy_octets(frame, vnet.VNET_LEN, wire, wire_at + vnet.VNET_LEN, tcp_at - vnet.VNET_LEN)
    ports = be32(frame, tcp_at)
    spread = ((ports >> 16) * 31 ^ ports & 0xFFFF) & encapsulation.SRC_PORT_MASK
    put_be16(wire, udp_at + udp.SRC_PORT, encapsulation.SRC_PORT_FIRST | spread)
    put_be16(wire, udp_at + udp.DST_PORT, encapsulation.UDP_PORT)
    entry_at = udp_at + udp.UDP_LEN
    wire[entry_at + encapsulation.ENTRY_VERSION_AT] = encapsulation.ENTRY_VERSION
    wire[entry_at + encapsulation.ENTRY_RESERVED_AT] = 0
    put_be16(wire, entry_at + encapsulation.BLOCK_LEN_AT, block_len)
    _put_lengths(wire, wire_at, ip_len, encapsulation.DATAGRAM_OVERHEAD + block_len, index, vnet.GSO_NONE, 0)
    return span + encapsulation.DATAGRAM_OVERHEAD


@inline_kernel
def _put_lengths(
    wire: Uint8Array, wire_at: int, ip_len: int, datagram_len: int, index: int, gso_type: int, gso_size: int
) -> None:
    """Set the lengths of IP, UDP and virtio-net header, and leave the checksum of UDP to be filled in."""
    udp_at = wire_at + IP_AT + ip_len
    network.put_datagram(wire, wire_at + IP_AT, ip_len, ip_len + datagram_len, index, udp.PROTO_UDP)
    put_be16(wire, udp_at + udp.DATAGRAM_LEN, datagram_len)
    pseudo_sum = network.pseudo_sum(wire, wire_at + IP_AT, ip_len, udp.PROTO_UDP, datagram_len)
    put_be16(wire, udp_at + udp.UDP_CHECKSUM, pseudo_sum)
    network.put_offload(wire, wire_at, IP_AT + ip_len, udp.UDP_LEN, udp.UDP_CHECKSUM, gso_type, gso_size)


@inline_kernel
def bundle(wire: Uint8Array, spans: Int64Array, frames: int, ip_len: int) -> int:
    """Turn the wrapped frames in ``spans`` into the pieces of one frame, if few zeros are needed between them.

    Return how many zeros were filled in; -1 where the frames were left as they are.
    """
    header_len = IP_AT + ip_len + udp.UDP_LEN
    gso_size = total = 0
    for index in range(frames):
        gso_size = max(gso_size, spans[index, 1] - header_len)
        total += spans[index, 1] - header_len
    padding = (frames - 1) * gso_size + spans[frames - 1, 1] - header_len - total
    for index in range(frames - 1):
        if gso_size - (spans[index, 1] - header_len) > PAD_MAX:
            return -1
    datagram_len = udp.UDP_LEN + total + padding
    if frames == 1 or frames > DATAGRAMS_MAX or ip_len + datagram_len > network.DATAGRAM_LEN_MAX:
        return -1
    for index in range(frames):
        start, entry_len = spans[index, 0] + header_len, spans[index, 1] - header_len
        if index < frames - 1:
            # The zeros may overwrite the headers of the next frame, which are not part of the bundle.
            wire[start + entry_len : start + gso_size] = 0
            entry_len = gso_size
        spans[index, 0] = start - (header_len if index == 0 else 0)
        spans[index, 1] = entry_len + (header_len if index == 0 else 0)
    _put_lengths(wire, spans[0, 0], ip_len, datagram_len, 0, vnet.GSO_UDP_L4, gso_size)
    return padding


@inline_kernel
def is_bundle(wire: Uint8Array, spans: Int64Array, frames: int) -> bool:
    """Whether the ``frames`` in ``spans`` are pieces of one; the gso_type of a single frame does not count."""
    return frames > 1 and u8(wire, spans[0, 0] + vnet.GSO_TYPE) == vnet.GSO_UDP_L4


@kernel
def unwrap(frame: Uint8Array, length: int, cursor: Int64Array, headers: Uint8Array, counters: Counters) -> int:
    """Find the next block of a frame from the wire, and turn it into an IPComp frame in place.

    A frame without blocks in UDP is its own only result. Call the function until the result is negative.

    Returns:
        The length of the result, which starts at ``cursor[PART_AT]``. ``headers`` keeps the frame's headers between
        the calls.
    """
    if cursor[_NEXT_AT] == 0:
        ip_len = _find_datagram(frame, length)
        if ip_len == 0:
            cursor[PART_AT] = 0
            cursor[_NEXT_AT] = cursor[_END_AT] = length + 1
            return length
        udp_at = IP_AT + ip_len
        end_at = IP_AT + network.get_datagram_len(frame, ip_len)
        entry_at = udp_at + udp.UDP_LEN
        if not entry_at < end_at <= length or be16(frame, udp_at + udp.DATAGRAM_LEN) != end_at - udp_at:
            counters[Counter.DROP_RUNT] += 1
            return _NO_PART
        if not network.is_summed_right(frame, ip_len):
            counters[Counter.DROP_BAD_HEADER] += 1
            return _NO_PART
        cursor[_NEXT_AT], cursor[_END_AT] = entry_at, end_at
        copy_octets(frame, 0, headers, 0, udp_at)
    return _next_block(frame, cursor, headers, counters)


@inline_kernel
def is_block(frame: Uint8Array, length: int, ip_len: int) -> bool:
    """Whether a frame of the host looks like blocks: by protocol and CPI, or by its UDP port.

    Only NICs make blocks, but every program may send UDP. The other NIC would turn such a frame into TCP segments with
    any port that the program chose.
    """
    at = IP_AT + ip_len
    if ip_len == 0 or length < at + offload.IPCOMP_LEN or network.is_fragment(frame, ip_len):
        return False
    protocol = network.get_protocol(frame, ip_len)
    if protocol == offload.PROTO_IPCOMP:
        return be16(frame, at + offload.CPI) == offload.CPI_OFFLOAD
    return protocol == udp.PROTO_UDP and be16(frame, at + udp.DST_PORT) == encapsulation.UDP_PORT


@inline_kernel
def _find_datagram(frame: Uint8Array, length: int) -> int:
    """Return the length of the network header before a UDP datagram with blocks; 0 for every other frame."""
    ip_len = network.find_ip_len(frame, length)
    udp_at = IP_AT + ip_len
    comp_at = udp_at + encapsulation.DATAGRAM_OVERHEAD
    if (
        ip_len == 0
        or network.get_protocol(frame, ip_len) != udp.PROTO_UDP
        or length < comp_at + offload.IPCOMP_LEN
        or be16(frame, udp_at + udp.DST_PORT) != encapsulation.UDP_PORT
        or u8(frame, udp_at + udp.UDP_LEN + encapsulation.ENTRY_VERSION_AT) != encapsulation.ENTRY_VERSION
        or be32(frame, comp_at) != _BEGINS_OURS
        or network.is_fragment(frame, ip_len)
    ):
        return 0
    return ip_len


@inline_kernel
def _next_block(frame: Uint8Array, cursor: Int64Array, headers: Uint8Array, counters: Counters) -> int:
    entry_at, end_at = cursor[_NEXT_AT], cursor[_END_AT]
    cursor[_NEXT_AT] = 0  # a bad block ends the walk too
    if entry_at >= end_at:
        return _NO_PART
    block_at = entry_at + encapsulation.ENTRY_LEN
    if block_at + offload.OVERHEAD + tcp.TCP_MIN_LEN > end_at:
        counters[Counter.DROP_RUNT] += 1
        return _NO_PART
    version = u8(frame, entry_at + encapsulation.ENTRY_VERSION_AT)
    if (
        version != encapsulation.ENTRY_VERSION
        or u8(frame, entry_at + encapsulation.ENTRY_RESERVED_AT)
        or be32(frame, block_at) != _BEGINS_OURS  # receive would take it for a frame that crosses
    ):
        counters[Counter.DROP_BAD_VERSION] += 1
        return _NO_PART
    block_len = be16(frame, entry_at + encapsulation.BLOCK_LEN_AT)
    if block_len < offload.OVERHEAD + tcp.TCP_MIN_LEN or block_at + block_len > end_at:
        counters[Counter.DROP_BAD_LENGTHS] += 1
        return _NO_PART
    next_at = block_at + block_len
    while next_at < end_at and u8(frame, next_at) == 0:
        next_at += 1
    cursor[_NEXT_AT] = next_at
    # The headers overwrite their own first place or the block before, which has been handled.
    ip_len = network.find_ip_len(headers, HEADERS_LEN)
    frame_at = block_at - ip_len - IP_AT
    copy_octets(headers, 0, frame, frame_at, IP_AT + ip_len)
    network.put_datagram(frame, frame_at + IP_AT, ip_len, ip_len + block_len, 0, offload.PROTO_IPCOMP)
    cursor[PART_AT] = frame_at
    return IP_AT + ip_len + block_len
