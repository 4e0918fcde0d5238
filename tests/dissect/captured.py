"""Frames as a capture of the wire has them: the engine's, of both IP versions, and some damaged ones."""

from pathlib import Path
from typing import Any

import numpy as np
from scapy.layers.inet import IP, TCP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import RawPcapReader, RawPcapWriter, wrpcap, wrpcapng

from netoffload.codec import CODECS, CodecId
from netoffload.dissect import layers
from netoffload.wire import vnet
from netoffload.wire.encapsulation import UDP_PORT
from tests.engine.frames import IPV4_ADDRESSES, IPV6_ADDRESSES, make_segment
from tests.engine.nic_pair import Nic, connect

VALUES = np.random.default_rng(1).normal(0, 0.01, 5000).astype(np.float32)
VALUES[:8] = 0.0, -0.0, np.inf, np.nan, 1.0, -2.5, 1e-40, 0.75
NONCE = 0x01020304
PORTS: dict[str, Any] = {"sport": 40000, "dport": 5001}
ETHERNET = Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01")


def frames_of_a_connection(
    in_udp: bool = False, bundles: bool = False, key: bytes | None = None, codec: CodecId = CodecId.INCEPTIONN
) -> list[bytes]:
    """SYN, SYN/ACK with capability words, and a segment of VALUES as blocks; Ethernet frames."""
    client, server = Nic(in_udp=in_udp, bundles=bundles, key=key, codec=codec), Nic(key=key)
    handshake = _handshake(client, server)
    blocks = client.from_host(make_segment(VALUES.tobytes(), seq=1001))
    return [frame[vnet.VNET_LEN :] for frame in (*handshake, *blocks)]


def _handshake(client: Nic, server: Nic) -> list[bytes]:
    """Make a connection; return its SYN and SYN/ACK on the wire."""
    server.from_host(make_segment(flags="S", sport=1))  # or both would draw the same nonce
    syn = client.from_host(make_segment(flags="S", seq=1000))
    server.from_wire(syn)
    answer = server.from_host(make_segment(flags="SA", seq=5, ack=1001, to_client=True))
    client.from_wire(answer)
    client.judge()
    server.judge()
    return [*syn, *answer]


def frames_of_both_directions() -> list[bytes]:
    """The handshake, and two blocks each way, one after the other."""
    client, server = Nic(), Nic()
    frames = _handshake(client, server)
    for number in range(2):
        payload = VALUES[100 * number :][:100].tobytes()
        frames += client.from_host(make_segment(payload, seq=1001 + 400 * number))
        frames += server.from_host(make_segment(payload, seq=6 + 400 * number, to_client=True))
    return [frame[vnet.VNET_LEN :] for frame in frames]


def nonce_in(frame: bytes) -> int:
    """The nonce in a SYN with a capability word."""
    word = layers.capability_of(Ether(frame)[TCP])
    assert word is not None
    return word.nonce


def receiving_nic(ipv6: bool = False) -> tuple[Nic, int]:
    """The server's NIC of a connection, and the nonce that blocks to it carry."""
    client, server = Nic(), Nic()
    connect(client, server, ipv6=ipv6)
    (answer,) = server.from_host(make_segment(flags="SA", seq=5, ack=1001, to_client=True, ipv6=ipv6))
    return server, nonce_in(answer[vnet.VNET_LEN :])


def answer_of(nonce: int = NONCE) -> Packet:
    """A SYN/ACK of the server with this nonce."""
    ethernet = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")
    segment = TCP(sport=5001, dport=40000, flags="SA", seq=5, options=[layers.capability_option(nonce)])
    return ethernet / IP(src=IPV4_ADDRESSES[1], dst=IPV4_ADDRESSES[0], tos=0x28) / segment


def ipv6_block(codec_name: str = "bounded", count: int = 300, nonce: int = NONCE) -> Packet:
    """A block behind an IPv6 header."""
    ip = IPv6(src=IPV6_ADDRESSES[0], dst=IPV6_ADDRESSES[1], tc=0x28)
    made = layers.offload(VALUES[:count], codec_name, 8, nonce=nonce, seq=9, flags="PA", **PORTS)
    return ETHERNET / ip / made


def udp_block(nonce: int = NONCE) -> Packet:
    """A block in UDP behind an IPv6 header."""
    packet = ipv6_block(nonce=nonce)
    made = packet[layers.IPComp]
    packet[IPv6].remove_payload()
    return packet / UDP(sport=50000, dport=UDP_PORT) / layers.OffloadEntry() / made


def damaged(frame: bytes) -> bytes:
    """One bit of the payload is not what it was."""
    octets = bytearray(frame)
    octets[-9] ^= 4
    return bytes(octets)


def write_capture(path: Path) -> list[Packet]:
    """Write a capture: the connection, IPv6 blocks of every codec, a damaged block, blocks in UDP, other UDP, raw TCP,
    other IPComp, ARP."""
    frames, other = frames_of_a_connection(), ETHERNET / IP(src="10.9.0.3", dst="10.9.0.1")
    packets = [
        *(Ether(frame) for frame in frames),
        *(ipv6_block(codec.name) for codec in CODECS.values()),
        Ether(damaged(frames[3])),
        udp_block(),
        other / UDP(sport=9, dport=UDP_PORT) / b"somebody else's",
        other / TCP(sport=1, dport=2, flags="A") / b"hello",
        other / layers.IPComp(cpi=2) / b"not deflated",
        ETHERNET / ARP(psrc="10.9.0.1", hwsrc="02:00:00:00:00:01"),
    ]
    for number, packet in enumerate(packets):
        packet.time = 1_700_000_000 + number / 1000
    (wrpcapng if path.suffix == ".pcapng" else wrpcap)(str(path), packets)
    return packets


Fields = tuple[dict[str, Any], ...]
"""Fields of the IPComp, block and TCP headers and of the payload."""


def packed(octets: bytes, count: int, half_bursts: int = 0, half_len: int = 0) -> Fields:
    """Fields of a block of ``packed`` with these octets of ``count`` floats."""
    mark = {"half_bursts": half_bursts, "half_len": half_len}
    return {}, {"codec": int(CodecId.PACKED), "payload_len": 4 * count, **mark}, {}, {"load": octets}


def exact(octets: bytes, count: int, half_bursts: int = 0, half_len: int = 0) -> Fields:
    """Fields of a block of ``exact`` with these octets of ``count`` floats."""
    in_ip, in_block, *others = packed(octets, count, half_bursts, half_len)
    return in_ip, {**in_block, "codec": int(CodecId.EXACT)}, *others


REFUSED: dict[str, tuple[Any, ...]] = {
    "IPv4 sum": ("wrong IPv4 header checksum", {"chksum": 1}, {}, {}),
    "IPComp flags": ("a reserved bit set", {}, {"flags": 1}, {}),
    "block flags": ("a reserved bit set", {}, {}, {"flags": 0x80}),
    "half": ("the half is not where a burst starts", {}, {}, {"half_bursts": 9, "half_len": 1}),
    "half behind all": ("the half is not where a burst starts", {}, {}, {"half_bursts": 38, "half_len": 1}),
    "half of nothing": ("the half is not where a burst starts", {}, {}, {"half_len": 1}),
    "too large a half": ("lengths contradict each other", {}, {}, {"half_len": 20000}),
    "no bound": ("bound 0 is unknown", {}, {}, {"bound_k": 0}),
    "bound": ("bound 17 is unknown", {}, {}, {"bound_k": 17}),
    "nothing": ("a block without payload", {}, {}, {"payload_len": 0}),
    "SYN": ("a segment with flags SA", {}, {}, {}, {"flags": "SA"}),
    "RST": ("a segment with flags R", {}, {}, {}, {"flags": "R"}),
    "burst beyond the count": ("masks are not those of an encoder", {}, *packed(b"\x02\x01\x00", 8)),
    "burst of no lane": ("masks are not those of an encoder", {}, *packed(b"\x01\x00\x00", 8)),
    "no lane mask": ("payload ends inside a group", {}, *packed(b"\x01", 8)),
    "no second group": ("payload ends inside a group", {}, *packed(b"\x01\x01\x00", 65)),
    "an octet too many": ("masks and length contradict each other", {}, *packed(b"\x01\x01\x00\x00", 8)),
    "half in a group": ("the half is not where a burst starts", {}, *packed(b"\x03\x01\x01\x00", 16, 1, 3)),
    "octet between the halves": ("the half is not where a burst starts", {}, *packed(bytes(5), 16, 1, 3)),
    "half of no group": ("the half is not where a burst starts", {}, *packed(bytes(3), 8, 0, 1)),
    "too wide a field": ("fields fit into fewer bits", {}, *packed(b"\x01\x01\x44", 8)),
    "bit behind a field": ("bits behind the fields are not 0", {}, *packed(b"\x01\x01\x10", 8)),
    "bit behind the width": ("bits behind the fields are not 0", {}, *packed(b"\x01\x01\x0f\xff\x00\x40", 8)),
    "lane beyond the count": ("masks are not those of an encoder", {}, *packed(b"\x01\x08\x00", 3)),
    "no width": ("payload ends inside a group", {}, *packed(b"\x01\x01", 8)),
    "too few fields": ("payload ends inside a group", {}, *packed(b"\x01\x03\x07\x05", 8)),
    "no 16 bits": ("payload ends inside a group", {}, *packed(b"\x01\x01\x07\xff\x05", 8)),
    "no 32 bits": ("payload ends inside a group", {}, *packed(b"\x01\x01\x07\xfe\x01\x02\x03", 8)),
    "no length of a run": ("payload ends inside a group", {}, *packed(b"\x00", 8)),
    "too long a run": ("runs are not those of an encoder", {}, *packed(b"\x00\x01", 64)),
    "two runs": ("runs are not those of an encoder", {}, *packed(bytes(4), 128)),
    "run across the half": ("the half is not where a burst starts", {}, *packed(b"\x00\x01", 128, 8, 2)),
    "nothing behind a run": ("payload ends inside a group", {}, *packed(bytes(2), 65)),
    "octet behind a run": ("masks and length contradict each other", {}, *packed(bytes(3), 8)),
    "kind": ("no group begins like this", {}, *exact(b"\xc0", 8)),
    "type": ("no group begins like this", {}, *exact(b"\xb0\x7f" + bytes(99), 8)),
    "width": ("no group begins like this", {}, *exact(b"\x87\x7f" + bytes(99), 8)),
    "width of raw values": ("no group begins like this", {}, *exact(b"\x41" + bytes(32), 8)),
    "too few raw values": ("payload ends inside a group", {}, *exact(b"\x40" + bytes(31), 8)),
    "no mask": ("payload ends inside a group", {}, *exact(b"\x88\x7f", 8)),
    "mask of nothing": ("a group with a mask has no value that is not 0", {}, *exact(b"\x88\x7f\x00", 8)),
    "no plane": ("payload ends inside a group", {}, *exact(b"\x92\x7f\xff", 8)),
    "no escape": ("payload ends inside a group", {}, *exact(b"\x91\x7f\xff", 8)),
    "no rest": ("payload ends inside a group", {}, *exact(b"\x90\x7f" + bytes(7), 8)),
    "octet behind zeros": ("masks and length contradict each other", {}, *exact(bytes(2), 8)),
}
"""What is wrong -> what is said about it, and fields of the IP, IPComp, block and TCP headers and of the payload."""

TAKEN: dict[str, tuple[Fields, tuple[int, int, int, int]]] = {
    "two halves": (packed(b"\x01\x01\x07\xfe\x00\x00\x00\x40\x02\x01\x43", 72, 1, 8), (70, 1, 0, 1)),
    "a bit": (packed(b"\x01\x80\x08", 8), (7, 1, 0, 0)),
    "four bits": (packed(b"\x01\x81\x83\x05", 8), (6, 2, 0, 0)),
    "escapes": (packed(b"\x01\x07\x07\xfe\xff\x09" + bytes((0, 0x40, 0, 0, 0, 0x40)), 3), (0, 1, 1, 1)),
    "halves with runs": (packed(b"\x00\x01\x00\x00\x01\x01\x00", 144, 9, 2), (143, 1, 0, 0)),
    "the longest run": (packed(b"\x00\xff", 16373), (16373, 0, 0, 0)),
    "exponents": (exact(bytes.fromhex("997f1b0c7e4300810000"), 5), (1, 0, 0, 4)),
    "whole mantissas": (exact(b"\x80\x7f" + bytes(range(6)), 2), (0, 0, 0, 2)),
    "bf16 with zeros": (exact(b"\xa8\x7f\x05\x00\x03", 2), (0, 0, 2, 0)),
    "bf16 and float32": (exact(b"\x20\x00\x20", 97), (64, 0, 33, 0)),
    "raw values": (exact(b"\x40" + bytes(range(8)), 2), (0, 0, 0, 2)),
    "halves of zeros": (exact(bytes(2), 72, 1, 1), (72, 0, 0, 0)),
}
"""Blocks of groups that a NIC takes, and how many of their floats take 0, 8, 16 and 32 bits."""


def refused_block(what: str, nonce: int = NONCE) -> Packet:
    """A block whose CRC is right, and which a NIC refuses all the same."""
    return changed_block(*REFUSED[what][1:], nonce=nonce)


def changed_block(in_ip: dict[str, Any], *fields_of: dict[str, Any], nonce: int = NONCE) -> Packet:
    """A block with these fields of its headers and of its payload, and the CRC of that."""
    made = layers.offload(VALUES[:304], nonce=nonce, seq=9, flags="PA", **PORTS)
    for layer, fields in zip((layers.IPComp, layers.OffloadBlock, layers.BlockTCP, Raw), fields_of, strict=False):
        for name, value in fields.items():
            setattr(made[layer], name, value)
    ip = IP(src=IPV4_ADDRESSES[0], dst=IPV4_ADDRESSES[1], tos=0x28, **in_ip)
    return ETHERNET / ip / made


def fragments() -> list[Packet]:
    """A block in two fragments, over IPv4 and then over IPv6."""
    made = layers.offload(VALUES[:300], nonce=NONCE, seq=9, flags="PA", **PORTS)
    ipv4 = IP(src="10.9.0.1", dst="10.9.0.2", tos=0x28, id=7) / made
    ipv6 = IPv6(src="fd00::1", dst="fd00::2", tc=0x28) / IPv6ExtHdrFragment(id=7) / made
    pieces = [*fragment(ipv4, 240), *fragment6(ipv6, 320)]
    return [ETHERNET / piece for piece in pieces]


def write_mutated(path: Path, capture: Path, count: int) -> None:
    """Write frames of a capture with octets changed and ends cut off."""
    pick = np.random.default_rng(7)
    with RawPcapReader(str(capture)) as reader:
        originals = [octets for octets, _ in reader]
    with RawPcapWriter(str(path), linktype=1) as writer:
        writer.write_header(b"")
        for number in range(count):
            octets = bytearray(originals[number % len(originals)])
            octets = octets[: int(pick.integers(1, 200))] if number % 3 else octets
            for _ in range(int(pick.integers(0, 4))):
                octets[int(pick.integers(0, min(100, len(octets))))] = int(pick.integers(0, 256))
            writer.write_packet(bytes(octets), sec=1, usec=0)
