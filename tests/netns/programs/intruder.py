"""An intruder's tools: tens of thousands of frames, a view of a flow's blocks, a connection that stays idle."""

import contextlib
import socket
import time
from collections.abc import Iterator

import numpy as np

from netoffload.codec_specs import CodecId
from netoffload.devices.packet import open_packet
from netoffload.lab.testbed import NodePlan
from netoffload.netlink import Namespace, netns_path
from netoffload.wire.capability import emit_capability
from netoffload.wire.encapsulation import UDP_PORT
from netoffload.wire.tcp import SYN
from netoffload.wire.vnet import VNET_LEN
from tests.shared.formats import (
    Block,
    Ethernet,
    Ipv4,
    Tcp,
    emit_block,
    emit_ethernet,
    emit_ipv4,
    emit_tcp,
    nonce_of,
    parse_block,
    parse_entries,
    parse_tcp,
)

ETHERTYPE_IPV4 = 0x0800
OWN_MAC = bytes.fromhex("020000000066")
ETH_LEN, IP_LEN = 14, 20
FORGED_FLOAT = np.float32(-123456.75)
"""At least 1, so lossless in every codec: it is neither sent nor made by anybody else."""


def mac_of(node: NodePlan) -> bytes:
    """The hardware address of a node's interface."""
    with Namespace.open(node.netns) as namespace:
        found = namespace.request("read a link", lambda links: list(links.get_links(ifname=node.device)))
    return bytes.fromhex(str(found[0].get_attr("IFLA_ADDRESS")).replace(":", ""))


def syn_frames(count: int, seed: int, dst_mac: bytes, dst: str, tagged: bool, **fixed: int | str) -> list[bytes]:
    """Ethernet frames with SYNs whose sums are right, random but for what is ``fixed``: ``src``, ``sport``, ``dport``.

    ``tagged`` ones have ToS 0x28 and a capability word, as a NIC would send them.
    """
    draw = np.random.default_rng(seed)
    options = bytes((2, 4, 5, 180)) + (emit_capability() if tagged else b"")
    options = options.ljust(-(-len(options) // 4) * 4, b"\0")
    header = Ipv4(0x28 if tagged else 0, 1, 0x4000, 64, 6, socket.inet_aton("10.98.1.99"), socket.inet_aton(dst))
    template = emit_ethernet(
        Ethernet(dst_mac, OWN_MAC, ETHERTYPE_IPV4),
        emit_ipv4(header, emit_tcp(Tcp(1, 2, 0, 0, SYN, 64_000, options=options), b"")),
    )
    frames = np.tile(np.frombuffer(template, np.uint8), (count, 1))
    ip, tcp = frames[:, ETH_LEN : ETH_LEN + IP_LEN], frames[:, ETH_LEN + IP_LEN :]
    if "src" in fixed:
        ip[:, 12:16] = np.frombuffer(socket.inet_aton(str(fixed["src"])), np.uint8)
    else:
        ip[:, 12:16] = draw.integers(1, 224, (count, 4), dtype=np.uint8)
    for at, name in ((0, "sport"), (2, "dport")):
        ports = np.full(count, fixed[name]) if name in fixed else draw.integers(1024, 65536, count)
        tcp[:, at], tcp[:, at + 1] = ports >> 8, ports & 0xFF
    tcp[:, 4:8] = draw.integers(0, 256, (count, 4), dtype=np.uint8)
    for header_octets, at, extra in ((ip, 10, 0), (tcp, 16, 6 + tcp.shape[1])):
        header_octets[:, at : at + 2] = 0
        total = _sum16(header_octets) + extra + (_sum16(ip[:, 12:20]) if extra else 0)
        while (total >> 16).any():
            total = (total & 0xFFFF) + (total >> 16)
        header_octets[:, at], header_octets[:, at + 1] = (total ^ 0xFFFF) >> 8, (total ^ 0xFFFF) & 0xFF
    return [row.tobytes() for row in frames]


def _sum16(octets: np.ndarray) -> np.ndarray:
    words = octets.astype(np.int64)
    return np.asarray((words[:, 0::2] << 8).sum(axis=1) + words[:, 1::2].sum(axis=1))


@contextlib.contextmanager
def wire_of(node: NodePlan) -> Iterator[socket.socket]:
    """A packet socket on a node's wire, with virtio-net headers."""
    with open_packet(node.wire_device, str(netns_path(node.wire_netns)))[0] as sock:
        sock.setblocking(True)
        yield sock


def send_frames(sock: socket.socket, frames: list[bytes]) -> None:
    """Send frames as they are; a full queue is waited for."""
    header = bytes(VNET_LEN)
    for frame in frames:
        while True:
            try:
                sock.send(header + frame)
                break
            except (BlockingIOError, OSError) as error:
                if error.errno not in (11, 105):  # EAGAIN, ENOBUFS
                    raise
                time.sleep(0.001)


def capture_blocks(sock: socket.socket, src: str, dport: int, count: int) -> list[tuple[bytes, Block]]:
    """The next frames with blocks of the flows from ``src`` to a TCP port: each as it was read, and its last block."""
    found: list[tuple[bytes, Block]] = []
    deadline = time.monotonic() + 10
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} frames with blocks came by"
        octets = sock.recv(70_000)
        packet = octets[VNET_LEN + ETH_LEN :]
        if octets[VNET_LEN + 12 : VNET_LEN + 14] != b"\x08\x00" or packet[12:16] != socket.inet_aton(src):
            continue
        if packet[9] != 17 or packet[22:24] != UDP_PORT.to_bytes(2, "big"):
            continue
        entry, addresses = parse_entries(packet[28:])[-1], (packet[12:16], packet[16:20])
        block = parse_block(entry, *addresses, nonce_of(entry, *addresses))
        if parse_tcp(block.tcp_header)[0].dport == dport:
            found.append((octets, block))
    return found


def forged_blocks(
    seen: Block, src: str, dst: str, count: int, offset: int = 0, dport: int | None = None
) -> list[bytes]:
    """Blocks that continue a flow behind ``seen`` with values of our own, from their IPComp headers on.

    They have no nonce: who makes them has not seen the handshake. ``offset`` is added to the sequence numbers.
    """
    payload = np.full(256, FORGED_FLOAT, np.float32).tobytes()
    header = parse_tcp(seen.tcp_header)[0]
    made = []
    for index in range(count):
        seq = (header.seq + seen.payload_len + offset + index * len(payload)) & 0xFFFFFFFF
        fields = {**vars(header), "seq": seq, "flags": 0x18, "dport": dport or header.dport}
        tcp_header = emit_tcp(Tcp(**fields), b"")
        block = Block(CodecId.NONE, 10, 0, 0, len(payload), 0, tcp_header, payload)
        made.append(emit_block(block, socket.inet_aton(src), socket.inet_aton(dst)))
    return made
