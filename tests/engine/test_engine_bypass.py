"""The frames that the kernel may carry: the program in the kernel against its slow definition and the engine."""

import contextlib
import ctypes
import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6ND_NS,
    ICMPv6PacketTooBig,
    ICMPv6ParamProblem,
    ICMPv6TimeExceeded,
    IPv6,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet

from netoffload.config import TOS_MASK
from netoffload.engine.bypass import ETHERTYPE_ARP, FLOW_ENDS, ICMP_ERRORS, PORTS_LEN, redirect_program, socket_program
from netoffload.wire import ethernet, icmp, ipv4, ipv6, tcp, udp
from netoffload.wire.encapsulation import UDP_PORT
from tests.engine.frames import make_segment
from tests.engine.nic_pair import Nic
from tests.shared.formats import Vnet, emit_vnet

SO_ATTACH_FILTER = 26
V4, V6 = IP(src="10.9.0.1", dst="10.9.0.2"), IPv6(src="fd00::1", dst="fd00::2")

PASS = {
    "arp": ARP(),
    "echo-request": V4 / ICMP(),
    "echo-reply": V4 / ICMP(type=0),
    "redirect": V4 / ICMP(type=5),
    "timestamp": V4 / ICMP(type=13),
    "echo-request6": V6 / ICMPv6EchoRequest(),
    "echo-reply6": V6 / ICMPv6EchoReply(),
    "neighbour": V6 / ICMPv6ND_NS(),
    "tcp": V4 / TCP(flags="PA") / b"data",
    "tcp6": V6 / TCP(flags="A"),
    "tcp-cwr": V4 / TCP(flags="AC") / b"data",
    "tcp-ecn": IP(tos=2) / TCP(flags="A") / b"data",
    "tcp-other-tos": IP(tos=0x2C) / TCP(flags="A"),
    "tcp6-other-class": IPv6(tc=0x20) / TCP(flags="A"),
    "udp": V4 / UDP(dport=53) / b"data",
    "udp6": V6 / UDP(dport=53),
}
STAY = {
    "tagged": IP(tos=0x28) / TCP(flags="A") / b"data",
    "tagged-ecn": IP(tos=0x2A) / TCP(flags="A") / b"data",
    "tagged6": IPv6(tc=0x28, fl=0xFFFFF) / TCP(flags="A") / b"data",
    "tagged6-ecn": IPv6(tc=0x2B) / TCP(flags="A"),
    "unreachable": V4 / ICMP(type=3, code=4, nexthopmtu=1400) / V4 / UDP(dport=UDP_PORT),
    "time-exceeded": V4 / ICMP(type=11) / V4 / UDP(dport=UDP_PORT),
    "parameter-problem": V4 / ICMP(type=12) / V4 / UDP(dport=UDP_PORT),
    "unreachable6": V6 / ICMPv6DestUnreach() / V6 / UDP(dport=UDP_PORT),
    "too-big6": V6 / ICMPv6PacketTooBig(mtu=1400) / V6 / UDP(dport=UDP_PORT),
    "time-exceeded6": V6 / ICMPv6TimeExceeded() / V6 / UDP(dport=UDP_PORT),
    "parameter-problem6": V6 / ICMPv6ParamProblem() / V6 / UDP(dport=UDP_PORT),
    "icmp-of-the-other-version": IP(proto=58) / ICMPv6EchoRequest(),
    "icmp6-of-the-other-version": IPv6(nh=1) / ICMP(),
    "tagged-icmp": IP(tos=0x28) / ICMP(),
    "tagged-udp6": IPv6(tc=0x28) / UDP(dport=53),
    "syn": V4 / TCP(flags="S"),
    "syn-ack6": V6 / TCP(flags="SA"),
    "fin": V4 / TCP(flags="FA") / b"data",
    "rst": V4 / TCP(flags="R"),
    "block": IP(tos=0x28, proto=108) / b"octets",
    "block-tos-lost": IP(proto=108) / b"octets",
    "block6-class-lost": IPv6(nh=108) / b"octets",
    "our-port": V4 / UDP(dport=UDP_PORT) / b"data",
    "from-our-port6": V6 / UDP(sport=UDP_PORT) / b"data",
    "first-fragment": IP(flags="MF") / UDP(dport=53) / b"data",
    "last-fragment": IP(frag=100) / b"data",
    "options": IP(options=b"\x01\x01\x01\x01") / TCP(flags="A"),
    "extension": IPv6() / IPv6ExtHdrHopByHop() / TCP(flags="A"),
    "vlan": Dot1Q(vlan=5) / V4 / TCP(flags="A"),
    "gre": IP(proto=47) / b"octets",
    "ipv4-version-6": IP(version=6) / TCP(flags="A"),
    "ipv6-version-4": IPv6(version=4) / TCP(flags="A"),
}


TAG = 0x28
OTHER_TAGS = (0x48, 0xFC, 0x04)


def octets_of(packet: Packet) -> bytes:
    return bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / packet)


def may_pass(frame: bytes, tag: int, has_vlan_tag: bool = False) -> bool:
    """Whether the kernel may carry an Ethernet frame; ``has_vlan_tag``: it took a VLAN tag out of the frame."""
    if has_vlan_tag or len(frame) < ethernet.ETHERNET_LEN:
        return False
    ethertype = int.from_bytes(frame[ethernet.ETHERTYPE : ethernet.ETHERTYPE + 2], "big")
    datagram = frame[ethernet.ETHERNET_LEN :]
    if ethertype == ETHERTYPE_ARP:
        return True
    if ethertype == ethernet.ETHERTYPE_IPV4 and len(datagram) >= ipv4.IPV4_MIN_LEN and datagram[0] == 0x45:
        fragment = int.from_bytes(datagram[ipv4.FRAGMENT : ipv4.FRAGMENT + 2], "big") & ipv4.FRAGMENT_MASK
        protocol = datagram[ipv4.PROTOCOL]
        untagged = datagram[ipv4.TOS] & TOS_MASK != tag and not fragment
        return untagged and transport_may_pass(protocol, datagram[ipv4.IPV4_MIN_LEN :], icmp.PROTO_ICMP)
    if ethertype == ethernet.ETHERTYPE_IPV6 and len(datagram) >= ipv6.IPV6_LEN and datagram[0] >> 4 == 6:
        protocol = datagram[ipv6.NEXT_HEADER]
        untagged = int.from_bytes(datagram[:2], "big") >> 4 & TOS_MASK != tag
        return untagged and transport_may_pass(protocol, datagram[ipv6.IPV6_LEN :], icmp.PROTO_ICMPV6)
    return False


def transport_may_pass(protocol: int, octets: bytes, own_icmp: int) -> bool:
    """Whether a datagram may pass; ``own_icmp`` is the protocol number of ICMP in this IP version."""
    if protocol == own_icmp:
        if not octets:
            return False
        return octets[0] > icmp.V6_ERROR_MAX if own_icmp == icmp.PROTO_ICMPV6 else octets[0] not in ICMP_ERRORS
    if protocol == tcp.PROTO_TCP:
        return len(octets) >= tcp.TCP_MIN_LEN and not octets[tcp.FLAGS] & FLOW_ENDS
    ports = struct.unpack_from("!HH", octets) if len(octets) >= PORTS_LEN else (UDP_PORT,)
    return protocol == udp.PROTO_UDP and UDP_PORT not in ports


@contextlib.contextmanager
def kernel(tag: int) -> Iterator[Callable[[bytes], bool]]:
    """A function that says whether the kernel would carry a frame: it runs the program for a pair of sockets."""
    program = socket_program(tag)
    instructions = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def carried(frame: bytes) -> bool:
        sender.send(frame)
        try:
            assert receiver.recv(1 << 17) == frame  # what stays with the NIC it hears whole
        except BlockingIOError:
            return True
        return False

    with sender, receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
        receiver.setblocking(False)
        yield carried


@pytest.fixture(scope="module")
def passes() -> Iterator[Callable[[bytes], bool]]:
    with kernel(TAG) as carried:
        yield carried


@pytest.mark.parametrize("name", [*PASS, *STAY])
def test_the_kernel_carries_what_the_nic_does_not_keep(passes: Callable[[bytes], bool], name: str) -> None:
    frame = octets_of((PASS | STAY)[name])
    assert may_pass(frame, TAG) == passes(frame) == (name in PASS)
    assert not may_pass(frame, TAG, has_vlan_tag=True)


def test_frames_of_every_length_and_a_large_one(passes: Callable[[bytes], bool]) -> None:
    for packet in map(PASS.__getitem__, ("tcp", "tcp6", "udp", "udp6", "echo-request", "echo-request6", "arp")):
        frame = octets_of(packet)
        for length in range(1, len(frame) + 1):
            assert passes(frame[:length]) == may_pass(frame[:length], TAG), (packet.summary(), length)
    large = octets_of(V4 / TCP(flags="A")) + bytes(65_000)
    assert passes(large)
    assert not passes(octets_of(IP(tos=0x28) / TCP(flags="A")) + bytes(65_000))


def test_random_headers_as_the_slow_definition_says(passes: Callable[[bytes], bool]) -> None:
    random = np.random.default_rng(1)
    frames = [octets_of(packet) for packet in (*PASS.values(), *STAY.values())]
    carried = 0
    for _ in range(20_000):
        frame = bytearray(frames[random.integers(len(frames))])
        for _ in range(random.integers(1, 4)):
            frame[random.integers(12, len(frame))] ^= 1 << random.integers(8)
        carried += may_pass(bytes(frame), TAG)
        assert passes(bytes(frame)) == may_pass(bytes(frame), TAG), frame.hex()
    assert 2_000 < carried < 18_000


@pytest.mark.parametrize("tag", OTHER_TAGS)
def test_another_tag_stays_and_the_usual_one_passes(tag: int) -> None:
    with kernel(tag) as passes:
        for ip in (V4, V6):
            for tos in (TAG, *OTHER_TAGS):
                for ecn in range(4):
                    marked = ip.copy()
                    setattr(marked, "tos" if ip is V4 else "tc", tos | ecn)
                    frame = octets_of(marked / TCP(flags="A") / b"data")
                    assert passes(frame) == may_pass(frame, tag) == (tos != tag)


def test_tc_is_told_the_opposite_of_the_socket() -> None:
    redirect, socket_ = (np.frombuffer(one(TAG), "u1,u1,u2,u4") for one in (redirect_program, socket_program))
    assert np.array_equal(redirect[:-2], socket_[:-2])
    assert [redirect["f3"][at] for at in (-2, -1)] == [socket_["f3"][at] for at in (-1, -2)] == [0xFFFF_FFFF, 0]


@pytest.mark.parametrize("name", PASS)
def test_the_engine_would_not_have_touched_it(name: str) -> None:
    nic = Nic()
    nic.from_wire(nic.from_host(make_segment(flags="S")))
    before = nic.table.copy()
    frame = emit_vnet(Vnet(), octets_of(PASS[name]))
    assert nic.from_host(frame) == [frame]
    assert nic.from_wire([frame]) == [frame]
    assert np.array_equal(nic.table, before)
