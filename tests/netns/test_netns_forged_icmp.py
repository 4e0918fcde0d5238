"""Errors of ICMP that a third host forges about a tagged flow's blocks change nothing.

The host sits at the switch, and is neither on the path nor a router. It knows the addresses and ports of the flow, and
for ``in flight`` even a sequence number that is on its way, but neither a nonce nor a checksum.
"""

import contextlib
import itertools
import json
import random
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6ParamProblem, IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from netoffload.devices.netns import in_netns
from netoffload.lab.testbed import NicSettings, Testbed
from netoffload.netlink import netns_path
from netoffload.wire.encapsulation import UDP_PORT
from netoffload.wire.offload import BLOCK_VERSION, CPI_OFFLOAD, IPCOMP_NEXT_TCP, PROTO_IPCOMP, TCP_HEADER
from netoffload.wire.tcp import PROTO_TCP
from netoffload.wire.udp import PROTO_UDP
from tests.netns.programs.both_ways import TAGGED, connected, ipv6_of
from tests.netns.programs.foreign_streams import gradient
from tests.netns.programs.third_host import DEVICE, HOST_ADDRESS, HOST_IPV6, third_host
from tests.shared.beds import built, counters, flows
from tests.shared.formats import src_port
from tests.shared.quick_cases import NIGHT, by_day
from tests.soak.events import add_ipv6, ip

COUNT = 1000 if NIGHT else 100
LOOK_S = 1.5 if NIGHT else 0.7
"""The wire is watched for so long each time."""
SETTLE_S = 1.5
SHARE_CHANGE_MAX = 0.1
AWAY = 1 << 28
"""Guessed sequence numbers are at least this far from those in flight, so that no guess is right by chance."""
QUEUED = 1 << 19
"""Octets of the stream behind a sniffed segment, of which most are on their way when the error arrives."""
RATE_BPS = 50_000_000
PORT = 7600
TCPI_PMTU, TCPI_BYTES_ACKED = slice(60, 64), slice(120, 128)
"""``tcpi_pmtu`` and ``tcpi_bytes_acked`` in ``struct tcp_info`` (linux/tcp.h)."""

ERRORS: dict[tuple[str, int], Packet] = {
    ("too big", 4): ICMP(type=3, code=4, nexthopmtu=552),
    ("too big", 6): ICMPv6PacketTooBig(mtu=1280),
    ("port unreachable", 4): ICMP(type=3, code=3),
    ("port unreachable", 6): ICMPv6DestUnreach(code=4),
    ("protocol unreachable", 4): ICMP(type=3, code=2),
    ("protocol unreachable", 6): ICMPv6ParamProblem(code=1, ptr=6),
}
QUOTES = [*itertools.product(("ipcomp", "udp"), ("8 octets", "guessed", "in flight")), ("tcp", "guessed")]
"""What the error quotes of the datagram, and whose sequence number it has."""
CARRIERS = {
    "too big": ("ipcomp", "udp", "tcp"),
    "port unreachable": ("udp", "tcp"),
    "protocol unreachable": ("ipcomp",),
}


class Scene:
    """A tagged flow that fills n0's wire, an untagged connection beside it, and a third host that forges errors."""

    def __init__(self, bed: Testbed, third_netns: str, version: int, stack: contextlib.ExitStack) -> None:
        self.bed, self.version = bed, version
        self.n0 = bed.plan.nodes[0]
        with in_netns(str(netns_path(third_netns))):
            self._forger = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            self._forger.bind((DEVICE, 0))
        with in_netns(str(netns_path(bed.plan.switch_netns))):
            self._sniffer = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
            self._sniffer.bind((self.n0.port, 0))
        self._to_n0 = Ether(dst=_mac(self.n0.netns, self.n0.device), src=_mac(third_netns, DEVICE))
        ipv6 = version == 6
        self._near, far = stack.enter_context(connected(bed, PORT, (TAGGED, TAGGED), ipv6=ipv6))
        self._plain, self._plain_far = stack.enter_context(connected(bed, PORT + 1, (0, 0), ipv6=ipv6))
        self.src, self.dst = far.getpeername()[0], self._near.getpeername()[0]
        self.sport = self._near.getsockname()[1]
        values, stopped = gradient(250_000).tobytes(), threading.Event()

        def send() -> None:
            with contextlib.suppress(OSError):
                while not stopped.is_set():
                    self._near.sendall(values)

        def receive() -> None:
            with contextlib.suppress(OSError):
                while far.recv(1 << 20):
                    pass

        def end() -> None:
            stopped.set()
            for sock in (self._near, far):
                sock.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()

        threads = [threading.Thread(target=send), threading.Thread(target=receive)]
        for thread in threads:
            thread.start()
        stack.callback(end)

    def forge(self, error: str, quote: tuple[str, str]) -> None:
        """Send errors of a kind, within about half a second."""
        draw = random.Random(repr(quote))
        for number in range(COUNT):
            if number % 50 == 0:
                seq = self._seq_in_flight()
                time.sleep(0.02)
            self._forger.send(bytes(self._to_n0 / self._error(error, *self._quoted(*quote, draw, seq))))

    def _error(self, error: str, protocol: int, body: bytes) -> Packet:
        """Return an error of the third host about a datagram of n0, which was longer than what is quoted of it."""
        kind = ERRORS[error, self.version]
        if self.version == 4:
            about = IP(tos=TAGGED, flags="DF", ttl=63, proto=protocol, len=1500, src=self.src, dst=self.dst)
            return IP(src=HOST_ADDRESS, dst=self.src) / kind / (bytes(about) + body)
        about = IPv6(tc=TAGGED, hlim=63, nh=protocol, plen=1460, src=self.src, dst=self.dst)
        return IPv6(src=HOST_IPV6, dst=self.src) / kind / (bytes(about) + body)

    def _quoted(self, carrier: str, how: str, draw: random.Random, seq: int) -> tuple[int, bytes]:
        """Return the quoted protocol, and the octets behind the quoted IP header."""
        seq += draw.randrange(QUEUED) if how == "in flight" else AWAY + draw.randrange((1 << 32) - 2 * AWAY)
        tcp = struct.pack(">HHIIBBHHH", self.sport, PORT, seq & 0xFFFFFFFF, 1, 0x80, 0x10, 500, 0, 0)
        if carrier == "tcp":
            return PROTO_TCP, tcp
        block = struct.pack(">BBH", IPCOMP_NEXT_TCP, 0, CPI_OFFLOAD)
        block += struct.pack(">BBBBHHHHI", BLOCK_VERSION << 4, 10, 0, 0, 5792, 1448, 0, 0, draw.getrandbits(32)) + tcp
        if carrier == "ipcomp":
            return PROTO_IPCOMP, block[:8] if how == "8 octets" else block
        udp = struct.pack(">HHHH", src_port(self.sport, PORT), UDP_PORT, 8 + 1400, draw.getrandbits(16))
        return PROTO_UDP, udp + (b"" if how == "8 octets" else b"\x01\x00" + struct.pack(">H", 1396) + block)

    def share_on_wire(self) -> float:
        """Return octets on n0's wire per octet of the tagged flow that n1 acknowledges."""
        before = self.bed.wire_counters()[0].tx_octets, self._info(TCPI_BYTES_ACKED, self._near)
        time.sleep(LOOK_S)
        after = self.bed.wire_counters()[0].tx_octets, self._info(TCPI_BYTES_ACKED, self._near)
        return (after[0] - before[0]) / max(after[1] - before[1], 1)

    def state(self) -> dict[str, object]:
        """Return what n0's kernel and its NIC hold of the path."""
        sink, family = self.bed.plan.nodes[1], f"-{self.version}"
        target = ipv6_of(sink) if self.version == 6 else sink.address
        shown = ip("-n", self.n0.netns, family, "route", "get", target)
        shown += ip("-n", self.n0.netns, family, "route", "show", "cache")
        self._plain.sendall(b"x" * 3000)
        time.sleep(0.05)  # the socket asks its route again with the next segment
        self._plain.sendall(b"x")
        mine = [flow for flow in flows(self.bed) if flow["direction"] == "tx" and flow["sport"] == self.sport]
        return {
            "route_mtus": sorted({int(mtu) for mtu in re.findall(r"mtu (?:lock )?(\d+)", shown)}),
            "untagged_pmtu": self._info(TCPI_PMTU, self._plain),
            "datagram_max_octets": [flow.get("datagram_max_octets") for flow in mine],
            "on_probation": [flow.get("on_probation") for flow in mine],
        }

    def _info(self, field: slice, sock: socket.socket) -> int:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_BYTES_ACKED.stop)
        return int.from_bytes(info[field], sys.byteorder)

    def _seq_in_flight(self) -> int:
        """Return the sequence number of a block or segment that has just left n0; those in n0's queue are higher."""
        self._sniffer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._sniffer.recv(65_536)
        self._sniffer.settimeout(5)
        ip_len, protocol_at = (20, 9) if self.version == 4 else (40, 6)
        header_at = {PROTO_TCP: 0, PROTO_IPCOMP: TCP_HEADER, PROTO_UDP: 12 + TCP_HEADER}
        for _ in range(10_000):
            frame = self._sniffer.recv(65_536)
            if len(frame) >= 14 + ip_len + 60 and frame[14 + protocol_at] in header_at:
                at = 14 + ip_len + header_at[frame[14 + protocol_at]]
                sport, dport, seq = struct.unpack_from(">HHI", frame, at)
                if (sport, dport) == (self.sport, PORT):
                    return int(seq)
        raise RuntimeError("the tagged flow stands still")


def _mac(netns: str, device: str) -> str:
    return str(json.loads(ip("-n", netns, "-j", "link", "show", device))[0]["address"])


@pytest.fixture
def scene(encapsulation: str, version: int) -> Iterator[Scene]:
    with built(rate_bps=RATE_BPS, nic=NicSettings(encapsulation=encapsulation)) as bed:
        if version == 6 and not add_ipv6(bed):
            pytest.skip("this kernel has no IPv6")
        with third_host(bed) as third, contextlib.ExitStack() as stack:
            made = Scene(bed, third, version, stack)
            time.sleep(SETTLE_S)
            yield made


BY_DAY = [("udp", "port unreachable", 4), ("ipcomp", "protocol unreachable", 6), ("udp", "too big", 6)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("encapsulation", "error", "version"), by_day(itertools.product(("udp", "ipcomp"), CARRIERS, (4, 6)), BY_DAY)
)
def test_a_forged_error_changes_nothing(scene: Scene, error: str) -> None:
    before, counted, share_before = scene.state(), counters(scene.bed), scene.share_on_wire()
    for quote in (quote for quote in QUOTES if quote[0] in CARRIERS[error]):
        with ThreadPoolExecutor() as threads:
            forging = threads.submit(scene.forge, error, quote)
            seen = [scene.state() for _ in range(3)]
            shares = [scene.share_on_wire()]
            forging.result()
        seen.append(scene.state())
        shares.append(scene.share_on_wire())
        assert seen == [before] * 4, (quote, counted, counters(scene.bed))
        assert max(shares) < share_before * (1 + SHARE_CHANGE_MAX), quote
