"""Offload blocks as scapy layers.

Importing this module binds them: any ``Ether(octets)`` or ``IP(octets)`` of scapy then shows blocks. IPComp (RFC 3173)
is bound to protocol 108 of both IP versions. With the CPI of blocks it carries an :class:`OffloadBlock`, with any other
CPI raw octets. In UDP a block is in an :class:`OffloadEntry`. scapy takes all but the first entry of a bundle for
padding; :func:`entries_of` returns all entries. To build a block by hand::

    IP(src="10.0.0.1", dst="10.0.0.2", tos=0x28) / offload(values, nonce=nonce, sport=5000, dport=5001, seq=1)
    IP(src="10.0.0.1", dst="10.0.0.2", tos=0x28) / UDP(dport=UDP_PORT) / OffloadEntry() / offload(values, ...)

Lengths, the CRC and IPComp's header are filled in when the packet is built; explicit values stay, even wrong ones. The
CRC is combined with the nonce in the capability word of the block's receiving NIC (``netoffload.wire.capability``),
which decodes no other blocks.
"""

from typing import Any, Final

import numpy as np
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    IntField,
    ShortField,
    XByteField,
    XIntField,
    XShortEnumField,
)
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Padding, Raw, bind_bottom_up, bind_layers

from netoffload import codec
from netoffload.codec.bursts import LANES
from netoffload.codec.reference import Classes
from netoffload.codec_specs import SPECS, CodecId, Cut
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.config import BOUND_K_MAX, BOUND_K_MIN
from netoffload.errors import CodecError, WireError
from netoffload.wire import encapsulation
from netoffload.wire import offload as wire
from netoffload.wire.capability import OPTION_EXPERIMENT, OPTION_LEN, Capability, emit_capability, parse_capability
from netoffload.wire.checksum import crc32c

_WRONG_HALF: Final = "the half is not where a burst starts"


class IPComp(Packet):
    """IP Payload Compression header (RFC 3173, 3)."""

    name = "IPComp"
    fields_desc = (
        ByteEnumField("nh", wire.IPCOMP_NEXT_TCP, {wire.IPCOMP_NEXT_TCP: "TCP"}),
        XByteField("flags", 0),
        XShortEnumField("cpi", wire.CPI_OFFLOAD, {wire.CPI_OFFLOAD: "netoffload", 2: "DEFLATE", 3: "LZS"}),
    )


class OffloadEntry(Packet):
    """The header before a block in UDP (``netoffload.wire.encapsulation``)."""

    name = "netoffload entry"
    fields_desc = (
        ByteField("version", encapsulation.ENTRY_VERSION),
        XByteField("reserved", 0),
        ShortField("block_len", None),
    )

    @classmethod
    def dispatch_hook(cls, octets: bytes | None = None, *_args: Any, **_options: Any) -> type[Packet]:
        """Leave other datagrams to this port to other layers."""
        begins = wire.IPCOMP_NEXT_TCP << 24 | wire.CPI_OFFLOAD
        at = encapsulation.ENTRY_LEN
        if octets is not None and (octets[:1] != b"\x01" or octets[at : at + 4] != begins.to_bytes(4, "big")):
            return type(Raw())
        return cls

    def post_build(self, header: bytes, rest: bytes) -> bytes:
        """Fill in the length."""
        if self.block_len is None:
            header = header[: encapsulation.BLOCK_LEN_AT] + len(rest).to_bytes(2, "big")
        return bytes(header + rest)

    def extract_padding(self, octets: bytes) -> tuple[bytes, bytes]:
        """Split the block from the octets behind it."""
        return octets[: self.block_len], octets[self.block_len :]


class OffloadBlock(Packet):
    """Block header (``netoffload.wire.offload``); if ``crc`` is None and there is an IP header below, it is computed.

    ``nonce`` is combined with the computed CRC, and is not part of the octets. In a dissected block it has no meaning.
    """

    name = "netoffload"
    fields_desc = (
        BitField("version", wire.BLOCK_VERSION, 4),
        BitEnumField("codec", int(CodecId.INCEPTIONN), 4, {int(spec.codec_id): spec.name for spec in SPECS.values()}),
        ByteField("bound_k", 10),
        BitField("head", 0, 4),
        BitField("tail", 0, 4),
        XByteField("flags", 0),
        ShortField("payload_len", 0),
        ShortField("gso_size", 0),
        ShortField("half_bursts", 0),
        ShortField("half_len", 0),
        XIntField("crc", None),
        ConditionalField(IntField("nonce", 0), lambda _: False),
    )

    def post_build(self, header: bytes, rest: bytes) -> bytes:
        """Fill in the CRC."""
        addresses = _addresses(self)
        if self.crc is None and addresses is not None:
            block = self.underlayer.self_build() + header + rest
            crc = _crc(block[: len(block) - _mac_len(self)], addresses) ^ self.getfieldval("nonce")
            header = header[:-4] + crc.to_bytes(4, "big")
        return bytes(header + rest)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Return the TCP header, which always follows a block header."""
        return BlockTCP


class BlockTCP(TCP):  # type: ignore[misc, unused-ignore]
    """The TCP header in a block: verbatim, with checksum 0; the octets behind it are compressed."""

    name = "TCP"
    match_subclass = True

    def post_build(self, header: bytes, rest: bytes) -> bytes:
        """Leave the checksum at 0, and fill in the data offset."""
        if self.dataofs is None:
            header = header[:12] + bytes((len(header) // 4 << 4 | header[12] & 0x0F,)) + header[13:]
        return bytes(header + rest)

    def mysummary(self) -> str:
        """Name the ports and flags, as TCP does."""
        return str(self.sprintf("TCP %BlockTCP.sport% > %BlockTCP.dport% %BlockTCP.flags%"))

    def guess_payload_class(self, payload: bytes) -> Any:
        """Return raw octets: head, bursts, tail and MAC, which :func:`floats_of` decodes."""
        return Raw


bind_layers(IP, IPComp, proto=wire.PROTO_IPCOMP)
bind_layers(IPv6, IPComp, nh=wire.PROTO_IPCOMP)
bind_bottom_up(UDP, OffloadEntry, dport=encapsulation.UDP_PORT)
bind_layers(OffloadEntry, IPComp)
bind_layers(IPComp, OffloadBlock, nh=wire.IPCOMP_NEXT_TCP, cpi=wire.CPI_OFFLOAD)


def offload(
    values: Float32Array,
    codec_name: str = "inceptionn",
    bound_k: int = 10,
    head: bytes = b"",
    tail: bytes = b"",
    gso_size: int = 0,
    nonce: int = 0,
    **tcp: Any,
) -> Packet:
    """Return the layers of one block, to be put behind ``IP(...)`` or ``IPv6(...)``.

    ``head`` and ``tail`` are up to three raw octets before and behind the floats. ``gso_size`` is the MSS of the
    segment that the block is from; 0: the payload is one segment. ``nonce`` is in the receiving NIC's capability word.
    ``tcp`` are fields of the TCP header: ``sport``, ``seq``, ``flags`` and so on.
    """
    chosen = codec.get(codec_name)
    payload = head + chosen.encode(values, bound_k).tobytes() + tail
    block = OffloadBlock(
        codec=int(chosen.codec_id),
        bound_k=bound_k,
        head=len(head),
        tail=len(tail),
        payload_len=len(head) + 4 * values.size + len(tail),
        gso_size=gso_size,
        nonce=nonce,
    )
    return IPComp() / block / BlockTCP(**{"flags": "A"} | tcp) / Raw(payload)


def entries_of(datagram: Packet) -> list[Packet]:
    """Return every :class:`OffloadEntry` in a dissected UDP datagram, or in a bundle that was captured uncut."""
    found = []
    entry = datagram.payload
    while isinstance(entry, OffloadEntry):
        found.append(entry)
        padding = entry.getlayer(Padding)
        rest = padding.load.lstrip(b"\0") if padding is not None else b""
        if len(rest) < encapsulation.ENTRY_LEN:
            break
        entry = OffloadEntry(rest, _underlayer=datagram)
    return found


def nonce_of(block: Packet) -> int | None:
    """Return the nonce with which the CRC of a captured :class:`OffloadBlock` is right; None if octets were cut off."""
    addresses, captured = _addresses(block), _captured(block)
    if addresses is None or captured is None or len(captured) < wire.OVERHEAD + _mac_len(block):
        return None
    return _crc(captured[: len(captured) - _mac_len(block)], addresses) ^ int(block.crc)


def crc_is_good(block: Packet, nonce: int) -> bool | None:
    """Return whether a captured block's CRC is right with the receiving NIC's nonce; None if octets were cut off."""
    found = nonce_of(block)
    return None if found is None else found == nonce


def mac_of(block: Packet) -> bytes | None:
    """Return the MAC behind a dissected block's payload; None if the block has no MAC, or the capture cut it off."""
    captured = _captured(block)
    return None if captured is None or not _mac_len(block) else captured[-wire.MAC_LEN :]


def payload_len_of(block: Packet) -> int | None:
    """Return a dissected block's payload octets according to its headers, without a MAC; the capture may have fewer."""
    length = _announced(block)
    if length is None or BlockTCP not in block or block[BlockTCP].dataofs < 5:
        return None
    payload_len = length - wire.TCP_HEADER - 4 * int(block[BlockTCP].dataofs) - _mac_len(block)
    return payload_len if payload_len >= 0 else None


def bursts_of(block: Packet) -> bytes:
    """Return the codec's payload in a dissected block, between the raw octets."""
    captured, payload_len = _captured(block), payload_len_of(block)
    if captured is None:
        raise WireError("the capture does not have the whole block")
    if payload_len is None:
        raise WireError("impossible TCP header")
    end = len(captured) - _mac_len(block)
    payload = captured[end - payload_len : end]
    if (
        max(block.head, block.tail) > 3
        or payload_len < block.head + block.tail
        or block.payload_len < block.head + block.tail
        or (block.payload_len - block.head - block.tail) % 4
        or payload_len < block.head + block.half_len + block.tail
        or block.payload_len < block.head + 4 * LANES * block.half_bursts + block.tail
    ):
        raise WireError("lengths contradict each other")
    return payload[block.head : payload_len - block.tail]


def floats_of(block: Packet) -> Float32Array:
    """Return the floats of a dissected block, as the receiving NIC decodes them, or raise :class:`WireError`."""
    chosen = codec.by_id(block.codec)
    if chosen is None or not BOUND_K_MIN <= block.bound_k <= BOUND_K_MAX:
        raise WireError(f"codec {block.codec} with bound {block.bound_k} is unknown")
    return np.concatenate([chosen.decode(half, count, block.bound_k) for half, count in _halves(block)])


def classes_of(block: Packet) -> Classes | None:
    """Return how many floats of a block took 0, 8, 16 and 32 bits; None for a codec that gives all the same bits."""
    chosen = codec.by_id(block.codec)
    if chosen is None:
        return None
    first, second = _halves(block)
    if chosen.oracle.classes is None:
        if isinstance(chosen.spec.form, Cut) and block.half_len != block.half_bursts * chosen.spec.form.bits:
            raise CodecError(_WRONG_HALF)
        return None
    try:
        counts = [chosen.oracle.classes(*first)]
    except CodecError as error:
        raise CodecError(_WRONG_HALF) from error
    counts.append(chosen.oracle.classes(*second))
    none, eight, sixteen, whole = (sum(both) for both in zip(*counts, strict=True))
    return none, eight, sixteen, whole


def _halves(block: Packet) -> tuple[tuple[Uint8Array, int], tuple[Uint8Array, int]]:
    """Return the codec's payload and the floats of both halves; without a mark the first one is empty."""
    bursts, first = np.frombuffer(bursts_of(block), np.uint8), LANES * block.half_bursts
    floats = (block.payload_len - block.head - block.tail) // 4
    return (bursts[: block.half_len], first), (bursts[block.half_len :], int(floats - first))


def capability_of(segment: Packet) -> Capability | None:
    """Return the capability word in a SYN's options (RFC 6994); None without one."""
    for kind, value in segment.options:
        if kind == OPTION_EXPERIMENT and isinstance(value, bytes) and len(value) == OPTION_LEN - 2:
            try:
                return parse_capability(bytes((OPTION_EXPERIMENT, OPTION_LEN)) + value)
            except WireError:
                continue
    return None


def capability_option(nonce: int = 0) -> tuple[int, bytes]:
    """Return the capability word as an option for scapy's ``TCP(options=[...])``."""
    return OPTION_EXPERIMENT, emit_capability(nonce=nonce)[2:]


def _mac_len(block: Packet) -> int:
    return wire.MAC_LEN if block.flags & wire.HAS_MAC else 0


def _addresses(block: Packet) -> bytes | None:
    """Return source and destination of the IP header below; None without an IP header."""
    ip = block.underlayer and block.underlayer.underlayer
    while isinstance(ip, OffloadEntry | UDP):
        ip = ip.underlayer
    if not isinstance(ip, IP | IPv6):
        return None
    octets = ip.self_build()
    return bytes(octets[12:20] if isinstance(ip, IP) else octets[8:40])


def _announced(block: Packet) -> int | None:
    """Return the octets from the IPComp header on, according to the IP header or the entry below."""
    ip = block.underlayer.underlayer
    if isinstance(ip, OffloadEntry):
        return int(ip.block_len)
    if isinstance(ip, IP) and ip.len is not None:
        return int(ip.len - 4 * ip.ihl)
    return int(ip.plen) if isinstance(ip, IPv6) and ip.plen is not None else None


def _captured(block: Packet) -> bytes | None:
    """Return the octets from the IPComp header on; None if the capture does not have all of them."""
    length, octets = _announced(block), block.underlayer.original
    return None if length is None or len(octets) < length else bytes(octets[:length])


def _crc(block: bytes, addresses: bytes) -> int:
    """Return the CRC32C of addresses and block; protocol and length replace the CRC (``netoffload.wire.offload``)."""
    covered = bytes((0, wire.PROTO_IPCOMP)) + len(block).to_bytes(2, "big")
    return crc32c(addresses + block[: wire.CRC] + covered + block[wire.CRC + 4 :])
