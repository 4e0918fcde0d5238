"""A capture file as records: the kind of every frame, the contents of blocks, and sums per flow.

The file may have any link type that scapy knows (Ethernet, raw IP, ``tcpdump -i any``), as pcap or pcapng, compressed
or not. A block's CRC is combined with a nonce, which the block's receiving NIC sent in its SYN (:class:`Nonces`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from scapy.error import Scapy_Exception
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.packet import Packet
from scapy.utils import PcapReader

from netoffload import codec
from netoffload.compiled.arrays import Float32Array
from netoffload.config import BOUND_K_MAX, BOUND_K_MIN, TOS_COMPRESS
from netoffload.dissect import layers
from netoffload.dissect.layers import BlockTCP, IPComp, OffloadBlock
from netoffload.errors import UsageError, WireError
from netoffload.wire.capability import WANTS_MAC, Capability
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.encapsulation import ENTRY_LEN
from netoffload.wire.offload import BLOCK_VERSION, HAS_MAC, PROTO_IPCOMP, SEGMENT_FLAGS

CRC_OK: Final = "ok"
CRC_BAD: Final = "bad"
CRC_UNKNOWN: Final = "unknown"
"""The capture has neither the handshake nor enough blocks before this one to know the nonce."""
FRAGMENT: Final = "a fragment"


@dataclass(frozen=True)
class Frame:
    """One captured frame. Attributes that do not apply are None."""

    number: int  # in the file, from 1; the datagrams of a bundle that was captured uncut have the same number
    time_s: float  # since the first frame of the file
    frame_len: int  # on the wire, also if the capture kept fewer octets
    kind: str  # block, offer (a SYN with the capability word), tagged or untagged (other TCP), other
    text: str | None = None  # one line by scapy, for kind ``other``
    src: str | None = None  # from here on fields of the TCP header, which in a block is the host's
    sport: int | None = None
    dst: str | None = None
    dport: int | None = None
    seq: int | None = None
    flags: str | None = None
    raw_len: int | None = None  # payload octets of the segment at the hosts
    payload_len: int | None = None  # payload octets in this frame
    ratio: float | None = None  # raw_len / payload_len of a block
    codec: str | None = None  # its number if this version does not know it
    bound_k: int | None = None
    gso_size: int | None = None
    head: int | None = None  # raw octets before a block's floats
    tail: int | None = None  # raw octets behind them
    classes: tuple[int, int, int, int] | None = None  # floats of 0, 8, 16, 32 bits; not without tags or masks
    crc: str | None = None  # ok, bad, unknown without the nonce; None if a part of the block is missing
    has_mac: bool | None = None  # behind a block's payload; only a NIC with the key can check it
    fault: str | None = None  # why a NIC would not decode the frame, other than its CRC; also of an IPComp fragment
    peer_version: int | None = None  # the block version in an offer
    peer_codecs: tuple[str, ...] | None = None  # the names of the codecs that its NIC decodes
    peer_wants_mac: bool | None = None  # that NIC takes only blocks with a MAC
    values: Float32Array | None = None  # float32[n] of a block that can be decoded, if they are wanted

    @property
    def flow(self) -> tuple[str | None, int | None, str | None, int | None]:
        """Addresses and ports, which identify a flow."""
        return self.src, self.sport, self.dst, self.dport

    def to_json(self) -> dict[str, Any]:
        """Return the attributes that apply as JSON values; NaN and infinities become strings."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        if self.values is not None:
            fields["values"] = [float(x) if np.isfinite(x) else str(x) for x in self.values]
        return {name: value for name, value in fields.items() if value is not None}


@dataclass
class Nonces:
    """The known nonces of a capture, by direction of a connection.

    The word in A's SYN has the nonce of blocks *to* A. If the capture has no SYN, a nonce is taken from two blocks in a
    row whose CRC is right with it.
    """

    look_ahead: Callable[[Nonces], None] | None = None
    """Reads the nonces of every SYN in the capture."""
    known: dict[Any, set[int]] = field(default_factory=dict)
    """Nonces by source, source port, destination and destination port of blocks."""
    guessed: dict[Any, int] = field(default_factory=dict)
    """The nonce with which the last block of an unknown direction is right."""

    def learn(self, ends: dict[str, Any], nonce: int) -> None:
        """Note the nonce in a SYN with these ends."""
        self.known.setdefault((ends["dst"], ends["dport"], ends["src"], ends["sport"]), set()).add(nonce)

    def judge(self, ends: dict[str, Any], found: int | None) -> str | None:
        """Return :attr:`Frame.crc` of a block with these ends, whose CRC is right with the nonce ``found``."""
        if found is None or "sport" not in ends:
            return None
        flow = ends["src"], ends["sport"], ends["dst"], ends["dport"]
        # A trace has frames of one direction after frames of the other, so a SYN may come behind its blocks.
        if flow not in self.known and self.look_ahead is not None:
            look_ahead, self.look_ahead = self.look_ahead, None
            look_ahead(self)
        if flow in self.known:
            return CRC_OK if found in self.known[flow] else CRC_BAD
        if self.guessed.get(flow) == found:
            self.known[flow] = {found}
            return CRC_OK
        self.guessed[flow] = found
        return CRC_UNKNOWN


@dataclass
class FlowSum:
    """The sums over all frames of one direction of a connection (:attr:`Frame.flow`)."""

    src: str
    sport: int
    dst: str
    dport: int
    blocks: int = 0
    raw_octets: int = 0
    payload_octets: int = 0
    classes: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    bad_blocks: int = 0
    segments: int = 0
    """Uncompressed segments with payload; the capture may have several in one frame (GSO)."""
    segment_octets: int = 0

    @property
    def ratio(self) -> float | None:
        """Raw over payload octets of the blocks."""
        return self.raw_octets / self.payload_octets if self.payload_octets else None

    def add(self, frame: Frame) -> None:
        """Add one frame."""
        if frame.kind == "block" and (frame.crc == CRC_BAD or frame.fault):
            self.bad_blocks += 1
        elif frame.kind == "block":
            self.blocks += 1
            self.raw_octets += frame.raw_len or 0
            self.payload_octets += frame.payload_len or 0
            for index, count in enumerate(frame.classes or ()):
                self.classes[index] += count
        elif frame.payload_len:
            self.segments += 1
            self.segment_octets += frame.payload_len

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return {**dataclasses.asdict(self), "ratio": self.ratio}


def add_to_flows(flows: dict[Any, FlowSum], frame: Frame) -> None:
    """Add a frame to the sums of its flow, which are made if the flow is new; frames without a flow are left out."""
    if frame.src is None or frame.sport is None or frame.dst is None or frame.dport is None:
        return
    if frame.flow not in flows:
        flows[frame.flow] = FlowSum(frame.src, frame.sport, frame.dst, frame.dport)
    flows[frame.flow].add(frame)


def read_frames(path: Path, with_values: bool = False) -> Iterator[Frame]:
    """Yield the frames of a pcap or pcapng file, with every block's floats if wanted."""
    start: Any = None
    nonces = Nonces(functools.partial(_learn_offers, path) if path.is_file() else None)
    for number, packet in enumerate(_packets(path), 1):
        start = packet.time if start is None else start
        yield from _frames(packet, nonces, number, float(packet.time - start), with_values)


class _Watched:
    """A capture file that notes where a record begins: there it may end. Elsewhere scapy says nothing of an end.

    A record is a packet of pcap, or a block of pcapng, of which a packet may take several.
    """

    def __init__(self, reader: Any) -> None:
        self._file: IO[bytes] = reader.f
        self._reader, self._begins = reader, False
        self.is_cut = False  # inside a record
        self.has_ended = False  # where a record would begin
        reader.f = self
        if hasattr(reader, "_read_block"):  # pcapng
            reader._read_block = functools.partial(self._read_block, reader._read_block)
            reader._check_interface_id = functools.partial(self._has_interface, reader._check_interface_id)

    def begin(self) -> None:
        self._begins = True

    def read(self, len_octets: int) -> bytes:
        octets = self._file.read(len_octets)
        self.has_ended, self._begins = self._begins and not octets, False
        self.is_cut |= len(octets) < len_octets and not self.has_ended
        return octets

    def _read_block(self, read: Callable[..., Any], *size: int, **named: int) -> Any:
        self.begin()
        return read(*size, **named)

    def _has_interface(self, is_known: Callable[[int], bool], number: int) -> bool:
        """Raise EOFError for a packet of an unknown interface, which scapy leaves out; a snap length of 0 is none."""
        if not is_known(number):
            raise EOFError(f"a packet is of interface {number}, which the file does not describe")
        link, snap_len, *more = self._reader.interfaces[number]
        self._reader.interfaces[number] = (link, snap_len or 2**32 - 1, *more)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _packets(path: Path) -> Iterator[Packet]:
    """Yield the packets of a capture file."""
    try:
        reader = PcapReader(str(path))
    except Scapy_Exception as error:
        raise UsageError(f"{path} is not a pcap or pcapng capture") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with reader:
        file = _Watched(reader)
        for number in itertools.count():
            try:
                file.begin()
                packet = reader.read_packet()
                if file.is_cut:
                    raise EOFError
                yield packet
            except EOFError as error:
                if file.has_ended and not error.args:
                    return
                # With a reason, an interface is unknown, or a compressed file was cut.
                why = "the file ends inside a record" if file.is_cut else "a record is damaged"
                why = error.args[0] if error.args else why
                raise UsageError(f"{path} cannot be read behind frame {number}: {why}") from error
            except (Scapy_Exception, OSError) as error:
                raise UsageError(f"{path} cannot be read behind frame {number}: {error}") from error


def _learn_offers(path: Path, nonces: Nonces) -> None:
    """Learn the nonces of every SYN in a capture file, as far as the file can be read."""
    with contextlib.suppress(UsageError):
        for packet in _packets(path):
            ip, above = _outermost(packet)
            if isinstance(above, TCP) and "S" in above.flags:
                _learn(_ends(ip, above), layers.capability_of(above), nonces)


def _learn(ends: dict[str, Any], word: Capability | None, nonces: Nonces) -> None:
    if word is not None and word.version == BLOCK_VERSION:
        nonces.learn(ends, word.nonce)


def _outermost(packet: Packet) -> tuple[Packet | None, Packet | None]:
    """Return the outer IP header and its payload; a NIC does not look into tunnels."""
    ip = next((layer for layer in packet.iterpayloads() if isinstance(layer, IP | IPv6)), None)
    return ip, None if ip is None else ip.payload


def _frames(packet: Packet, nonces: Nonces, number: int, time_s: float, with_values: bool) -> Iterator[Frame]:
    """Yield one frame, or the datagrams of a bundle that was captured uncut."""
    frame_len = packet.wirelen or len(packet.original)
    ip, above = _outermost(packet)
    if isinstance(above, IPComp) and isinstance(above.payload, OffloadBlock):
        yield _block(ip, above.payload, nonces, with_values, number=number, time_s=time_s, frame_len=frame_len)
    elif isinstance(above, UDP) and (entries := layers.entries_of(above)):
        before = len(packet.original) - len(above.payload.original)
        for entry in entries:
            one_len = frame_len if len(entries) == 1 else before + ENTRY_LEN + entry.block_len
            block = entry.payload.payload
            if isinstance(block, OffloadBlock):
                yield _block(ip, block, nonces, with_values, number=number, time_s=time_s, frame_len=one_len)
            else:
                yield Frame(number, time_s, one_len, "other", text=entry.summary())
    elif isinstance(above, TCP):
        yield _segment(ip, above, nonces, number=number, time_s=time_s, frame_len=frame_len)
    else:
        fault = FRAGMENT if ip is not None and _is_ipcomp_fragment(ip) else None
        yield Frame(number, time_s, frame_len, "other", text=packet.summary(), fault=fault)


def _segment(ip: Packet, segment: Packet, nonces: Nonces, **seen: Any) -> Frame:
    """Return a TCP segment that is not a block; its length is from the IP header, as the capture may be short."""
    tos = ip.tos if isinstance(ip, IP) else ip.tc
    ip_payload_len = ip.len - 4 * ip.ihl if isinstance(ip, IP) else ip.plen
    payload_len = max(0, ip_payload_len - 4 * (segment.dataofs or 5))
    word = layers.capability_of(segment) if "S" in segment.flags else None
    ends = _ends(ip, segment)
    _learn(ends, word, nonces)
    return Frame(
        **seen,
        kind="offer" if word else "tagged" if tos & 0xFC == TOS_COMPRESS else "untagged",
        **ends,
        raw_len=payload_len,
        payload_len=payload_len,
        peer_version=word.version if word else None,
        peer_codecs=tuple(_codec_name(bit) for bit in range(16) if word.codecs >> bit & 1) if word else None,
        peer_wants_mac=bool(word.ways & WANTS_MAC) if word else None,
    )


def _block(ip: Packet, block: Packet, nonces: Nonces, with_values: bool, **seen: Any) -> Frame:
    ends = _ends(ip, block.payload)
    crc = nonces.judge(ends, None if _is_fragment(ip) else layers.nonce_of(block))
    payload_len = layers.payload_len_of(block)
    classes, values, fault = None, None, _refusal(ip, block)
    if crc in (CRC_OK, CRC_UNKNOWN) and fault is None:  # damaged or incomplete octets are not checked further
        try:
            classes = layers.classes_of(block)
            values = layers.floats_of(block) if with_values else None
        except WireError as error:
            fault = str(error)
    return Frame(
        **seen,
        kind="block",
        **ends,
        raw_len=block.payload_len,
        payload_len=payload_len,
        ratio=block.payload_len / payload_len if payload_len else None,
        codec=_codec_name(block.codec),
        bound_k=block.bound_k,
        gso_size=block.gso_size,
        head=block.head,
        tail=block.tail,
        classes=classes,
        crc=crc,
        has_mac=bool(block.flags & HAS_MAC),
        fault=fault,
        values=values,
    )


def _refusal(ip: Packet, block: Packet) -> str | None:
    """Return why a NIC would refuse a block for its headers, or None; the capture may have only the headers.

    The reasons and their order are as in ``netoffload.engine.receive``.
    """
    if _is_fragment(ip):
        return FRAGMENT
    if isinstance(ip, IP) and internet_checksum(bytes(ip.original[: 4 * ip.ihl])) != 0:
        return "wrong IPv4 header checksum"
    if block.version != BLOCK_VERSION or block.underlayer.flags or block.flags & ~HAS_MAC:
        return f"version {block.version}, or a reserved bit set"
    if codec.by_id(block.codec) is None or not BOUND_K_MIN <= block.bound_k <= BOUND_K_MAX:
        return f"codec {block.codec} with bound {block.bound_k} is unknown"
    if BlockTCP in block and int(block[BlockTCP].flags) & ~SEGMENT_FLAGS:
        return f"a segment with flags {block[BlockTCP].flags}"
    return None if block.payload_len else "a block without payload"


def _is_fragment(ip: Packet) -> bool:
    """Whether this is a fragment of a datagram; NICs do not reassemble fragments."""
    return bool(ip.frag or ip.flags.MF) if isinstance(ip, IP) else isinstance(ip.payload, IPv6ExtHdrFragment)


def _is_ipcomp_fragment(ip: Packet) -> bool:
    return _is_fragment(ip) and (ip.proto if isinstance(ip, IP) else ip.payload.nh) == PROTO_IPCOMP


def _ends(ip: Packet, segment: Packet) -> dict[str, Any]:
    """Return addresses and fields of the TCP header, without fields that the capture cut off."""
    ends = {"src": ip.src, "dst": ip.dst}
    if isinstance(segment, TCP | BlockTCP):
        ends |= {"sport": segment.sport, "dport": segment.dport, "seq": segment.seq, "flags": str(segment.flags)}
    return ends


def _codec_name(number: int) -> str:
    known = codec.by_id(number)
    return str(number) if known is None else known.name
