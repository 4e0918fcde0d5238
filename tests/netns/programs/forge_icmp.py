"""Forge ICMP errors from a third host while a tagged flow fills its wire: ``forge_icmp.py --count 1000``.

The third host sits at the switch of a testbed, and is neither on the path nor a router. It knows the addresses of both
nodes; where a kind says so, it also knows the ports, and ``in flight`` even a sequence number that is on its way, but
neither a nonce nor a checksum. The program prints a JSON line per kind: what the errors changed.
"""

import argparse
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from netoffload.devices.netns import in_netns
from netoffload.lab.testbed import NicSettings, Testbed
from netoffload.netlink import netns_path
from netoffload.wire.checksum import internet_checksum
from netoffload.wire.encapsulation import UDP_PORT, src_port
from netoffload.wire.ethernet import ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet, emit_ethernet
from netoffload.wire.icmp import (
    FRAGMENTATION_NEEDED,
    PORT_UNREACHABLE,
    PROTOCOL_UNREACHABLE,
    UNREACHABLE,
    V6_PARAMETER_PROBLEM,
    V6_PORT_UNREACHABLE,
    V6_TOO_BIG,
    V6_UNKNOWN_NEXT_HEADER,
    V6_UNREACHABLE,
)
from netoffload.wire.ipv4 import Ipv4, emit_ipv4
from netoffload.wire.ipv6 import Ipv6, emit_ipv6
from netoffload.wire.offload import BLOCK_VERSION, CPI_OFFLOAD, IPCOMP_NEXT_TCP, PROTO_IPCOMP, TCP_HEADER
from tests.netns.programs.both_ways import TAGGED, connected, ipv6_of
from tests.netns.programs.foreign_streams import gradient
from tests.netns.programs.third_host import DEVICE, HOST_ADDRESS, HOST_IPV6, third_host
from tests.shared.beds import built, counters, flows
from tests.soak import add_ipv6, ip

PROTO_TCP: Final = 6
PROTO_UDP: Final = 17
PROTO_ICMP: Final = 1
PROTO_ICMPV6: Final = 58
FORGED_MTU: Final = 552
FORGED_MTU_V6: Final = 1280
AWAY: Final = 1 << 28
"""Guessed sequence numbers are at least this far from those in flight, so that no guess is right by chance."""
QUEUED: Final = 1 << 19
"""Octets of the stream behind a sniffed segment, of which most are on their way when the error arrives."""
RATE_BPS: Final = 50_000_000
PORT: Final = 7600
TCPI_PMTU: Final = slice(60, 64)
TCPI_BYTES_ACKED: Final = slice(120, 128)
"""``tcpi_pmtu`` and ``tcpi_bytes_acked`` in ``struct tcp_info`` (linux/tcp.h)."""
SETTLE_S: Final = 1.5


@dataclass(frozen=True)
class Victim:
    """What the third host knows of a connection from n0 to n1, of one IP version."""

    version: int
    src: bytes
    dst: bytes
    sport: int
    dport: int


Body = Callable[[Victim, random.Random, int], tuple[int, bytes]]
"""From a victim and a sequence number in flight to the quoted protocol, and the octets behind the quoted IP header."""


def _ipcomp(length: int = 4, then: bytes = b"") -> bytes:
    return struct.pack(">BBH", IPCOMP_NEXT_TCP, 0, CPI_OFFLOAD)[:length] + then


def _block_head(draw: random.Random) -> bytes:
    return struct.pack(">BBBBHHHHI", BLOCK_VERSION << 4, 10, 0, 0, 5792, 1448, 0, 0, draw.getrandbits(32))


def _tcp(victim: Victim, seq: int) -> bytes:
    return struct.pack(">HHIIBBHHH", victim.sport, victim.dport, seq, 1, 0x80, 0x10, 500, 0, 0)


def _udp(victim: Victim, draw: random.Random, entry: bytes) -> bytes:
    port = src_port(victim.sport, victim.dport)
    return struct.pack(">HHHH", port, UDP_PORT, 8 + 1400, draw.getrandbits(16)) + entry


def _guess(draw: random.Random, seq: int) -> int:
    return (seq + AWAY + draw.randrange((1 << 32) - 2 * AWAY)) & 0xFFFFFFFF


def quote_ipcomp(victim: Victim, draw: random.Random, _seq: int) -> tuple[int, bytes]:
    return PROTO_IPCOMP, _ipcomp(then=_block_head(draw)[:4])


def quote_udp(victim: Victim, draw: random.Random, _seq: int) -> tuple[int, bytes]:
    return PROTO_UDP, _udp(victim, draw, b"")


def quote_ipcomp_block(victim: Victim, draw: random.Random, seq: int) -> tuple[int, bytes]:
    return PROTO_IPCOMP, _ipcomp(then=_block_head(draw) + _tcp(victim, _guess(draw, seq)))


def quote_udp_block(victim: Victim, draw: random.Random, seq: int) -> tuple[int, bytes]:
    _, block = quote_ipcomp_block(victim, draw, seq)
    return PROTO_UDP, _udp(victim, draw, b"\x01\x00" + struct.pack(">H", 1396) + block)


def quote_ipcomp_block_in_flight(victim: Victim, draw: random.Random, seq: int) -> tuple[int, bytes]:
    seq = (seq + draw.randrange(QUEUED)) & 0xFFFFFFFF
    return PROTO_IPCOMP, _ipcomp(then=_block_head(draw) + _tcp(victim, seq))


def quote_udp_block_in_flight(victim: Victim, draw: random.Random, seq: int) -> tuple[int, bytes]:
    _, block = quote_ipcomp_block_in_flight(victim, draw, seq)
    return PROTO_UDP, _udp(victim, draw, b"\x01\x00" + struct.pack(">H", 1396) + block)


def quote_tcp(victim: Victim, draw: random.Random, seq: int) -> tuple[int, bytes]:
    return PROTO_TCP, _tcp(victim, _guess(draw, seq))


TOO_BIG: Final = {4: (UNREACHABLE, FRAGMENTATION_NEEDED, FORGED_MTU), 6: (V6_TOO_BIG, 0, FORGED_MTU_V6)}
PORT_GONE: Final = {4: (UNREACHABLE, PORT_UNREACHABLE, 0), 6: (V6_UNREACHABLE, V6_PORT_UNREACHABLE, 0)}
PROTOCOL_GONE: Final = {
    4: (UNREACHABLE, PROTOCOL_UNREACHABLE, 0),
    6: (V6_PARAMETER_PROBLEM, V6_UNKNOWN_NEXT_HEADER, 6),
}
ERRORS: Final = {"too big": TOO_BIG, "port unreachable": PORT_GONE, "protocol unreachable": PROTOCOL_GONE}

QUOTES: Final[dict[str, Body]] = {
    "ipcomp, 8 octets": quote_ipcomp,
    "udp, 8 octets": quote_udp,
    "ipcomp, guessed tcp": quote_ipcomp_block,
    "udp, guessed tcp": quote_udp_block,
    "ipcomp, in flight": quote_ipcomp_block_in_flight,
    "udp, in flight": quote_udp_block_in_flight,
    "plain tcp, guessed": quote_tcp,
}

KINDS: Final = [
    *(("too big", quote) for quote in QUOTES),
    *(("port unreachable", quote) for quote in QUOTES if quote.startswith(("udp", "plain"))),
    *(("protocol unreachable", quote) for quote in QUOTES if quote.startswith("ipcomp")),
]


def forged_frame(victim: Victim, error: str, quoted: tuple[int, bytes], macs: tuple[bytes, bytes]) -> bytes:
    """Return an ICMP error of the third host about a datagram of n0; ``macs`` are n0's and the third host's."""
    kind, code, rest = ERRORS[error][victim.version]
    protocol, body = quoted
    if victim.version == 4:
        # The quoted datagram was longer than the quote.
        inner = bytearray(emit_ipv4(Ipv4(TAGGED, 0, 0x4000, 63, protocol, victim.src, victim.dst), body))
        inner[2:4] = (1500).to_bytes(2, "big")
        inner[10:12] = b"\0\0"
        inner[10:12] = internet_checksum(bytes(inner[:20])).to_bytes(2, "big")
        message = bytearray(struct.pack(">BBHI", kind, code, 0, rest) + inner)
        message[2:4] = internet_checksum(bytes(message)).to_bytes(2, "big")
        src = socket.inet_aton(HOST_ADDRESS)
        datagram = emit_ipv4(Ipv4(0, 1, 0, 64, PROTO_ICMP, src, victim.src), bytes(message))
        return emit_ethernet(Ethernet(macs[0], macs[1], ETHERTYPE_IPV4), datagram)
    inner = bytearray(emit_ipv6(Ipv6(TAGGED, 0, protocol, 63, victim.src, victim.dst), body))
    inner[4:6] = (1460).to_bytes(2, "big")
    message = bytearray(struct.pack(">BBHI", kind, code, 0, rest) + inner)
    src = socket.inet_pton(socket.AF_INET6, HOST_IPV6)
    pseudo = src + victim.src + struct.pack(">II", len(message), PROTO_ICMPV6)
    message[2:4] = internet_checksum(pseudo + bytes(message)).to_bytes(2, "big")
    datagram = emit_ipv6(Ipv6(0, 0, PROTO_ICMPV6, 64, src, victim.src), bytes(message))
    return emit_ethernet(Ethernet(macs[0], macs[1], ETHERTYPE_IPV6), datagram)


class Scene:
    """A tagged flow that fills n0's wire, an untagged connection beside it, and a third host that forges errors."""

    def __init__(self, bed: Testbed, third_netns: str, version: int) -> None:
        self.bed, self._version = bed, version
        self._stack = contextlib.ExitStack()
        self._n0 = bed.plan.nodes[0]
        with in_netns(str(netns_path(third_netns))):
            self._forger = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self._forger.bind((DEVICE, 0))
        with in_netns(str(netns_path(bed.plan.switch_netns))):
            self._sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self._sniffer.bind((self._n0.port, 0))
        self._sniffer.settimeout(5)
        self._macs = _mac(self._n0.netns, self._n0.device), _mac(third_netns, DEVICE)

    def __enter__(self) -> Self:
        """Connect, and let the tagged flow begin."""
        ipv6 = self._version == 6
        near, far = self._stack.enter_context(connected(self.bed, PORT, (TAGGED, TAGGED), ipv6=ipv6))
        self._plain, self._plain_far = self._stack.enter_context(connected(self.bed, PORT + 1, (0, 0), ipv6=ipv6))
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        addresses = [socket.inet_pton(family, end.getpeername()[0]) for end in (far, near)]
        self._near, sport = near, near.getsockname()[1]
        self.victim = Victim(self._version, addresses[0], addresses[1], sport, PORT)
        self._stop = threading.Event()
        values = gradient(250_000).tobytes()

        def send() -> None:
            with contextlib.suppress(OSError):
                while not self._stop.is_set():
                    near.sendall(values)

        def receive() -> None:
            with contextlib.suppress(OSError):
                while far.recv(1 << 20):
                    pass

        threads = [threading.Thread(target=send), threading.Thread(target=receive)]
        for thread in threads:
            thread.start()
        for sock in (self._forger, self._sniffer):
            self._stack.callback(sock.close)

        def end() -> None:
            self._stop.set()
            near.shutdown(socket.SHUT_RDWR)
            far.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()

        self._stack.callback(end)
        return self

    def __exit__(self, *_: object) -> None:
        """End both connections."""
        self._stack.close()

    def forge(self, error: str, quote: str, count: int, seed: int) -> None:
        """Send ``count`` errors of a kind, within about half a second."""
        draw = random.Random(seed)
        for number in range(count):
            if number % 50 == 0:
                seq = self._seq_in_flight()
                time.sleep(0.02)
            quoted = QUOTES[quote](self.victim, draw, seq)
            self._forger.send(forged_frame(self.victim, error, quoted, self._macs))

    def share_on_wire(self, seconds: float) -> float:
        """Return octets on n0's wire per octet of the tagged flow that n1 acknowledges."""
        before = self.bed.wire_counters()[0].tx_octets, self._acked_octets()
        time.sleep(seconds)
        after = self.bed.wire_counters()[0].tx_octets, self._acked_octets()
        return (after[0] - before[0]) / max(after[1] - before[1], 1)

    def state(self) -> dict[str, object]:
        """Return what n0's kernel and its NIC hold of the path."""
        target = ipv6_of(self.bed.plan.nodes[1]) if self._version == 6 else self.bed.plan.nodes[1].address
        family = f"-{self._version}"
        shown = ip("-n", self._n0.netns, family, "route", "get", target)
        shown += ip("-n", self._n0.netns, family, "route", "show", "cache")
        self._plain.sendall(b"x" * 3000)
        mine = [flow for flow in flows(self.bed) if flow["direction"] == "tx" and flow["sport"] == self.victim.sport]
        return {
            "route_mtus": sorted({int(mtu) for mtu in re.findall(r"mtu (?:lock )?(\d+)", shown)}),
            "untagged_pmtu": self._pmtu(),
            "datagram_max_octets": [flow.get("datagram_max_octets") for flow in mine],
            "on_probation": [flow.get("on_probation") for flow in mine],
        }

    def flush(self) -> None:
        """Let the kernel forget what it was told about the path."""
        for family in ("-4", "-6"):
            ip("-n", self._n0.netns, family, "route", "flush", "cache")

    def _pmtu(self) -> int:
        time.sleep(0.05)  # the socket asks its route again with the next segment
        self._plain.sendall(b"x")
        info = self._plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return int.from_bytes(info[TCPI_PMTU], sys.byteorder)

    def _acked_octets(self) -> int:
        info = self._near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_BYTES_ACKED.stop)
        return int.from_bytes(info[TCPI_BYTES_ACKED], sys.byteorder)

    def _seq_in_flight(self) -> int:
        """Return the sequence number of a block or segment that has just left n0; those in n0's queue are higher."""
        self._sniffer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._sniffer.recv(65_536)
        self._sniffer.settimeout(5)
        header_len = 14 + (20 if self._version == 4 else 40)
        for _ in range(10_000):
            frame = self._sniffer.recv(65_536)
            if len(frame) < header_len + 60 or self.victim.src not in frame[14 + 8 : 14 + 24]:
                continue
            protocol = frame[14 + (9 if self._version == 4 else 6)]
            at = {PROTO_TCP: 0, PROTO_IPCOMP: TCP_HEADER, PROTO_UDP: 12 + TCP_HEADER}.get(protocol)
            if at is None:
                continue
            sport, dport, seq = struct.unpack_from(">HHI", frame, header_len + at)
            if (sport, dport) == (self.victim.sport, self.victim.dport):
                return int(seq)
        raise RuntimeError("the tagged flow stands still")


def _mac(netns: str, device: str) -> bytes:
    return bytes.fromhex(json.loads(ip("-n", netns, "-j", "link", "show", device))[0]["address"].replace(":", ""))


def measure(scene: Scene, error: str, quote: str, args: argparse.Namespace, seed: int) -> dict[str, object]:
    """Return what some errors of one kind change."""
    before, counted = scene.state(), counters(scene.bed)
    share_before = scene.share_on_wire(args.look_s)
    forging = threading.Thread(target=scene.forge, args=(error, quote, args.count, seed))
    forging.start()
    seen = [scene.state() for _ in range(3)]
    share_meanwhile = scene.share_on_wire(args.look_s)
    forging.join()
    seen.append(scene.state())
    share_after = scene.share_on_wire(args.look_s)
    changes = {name: number - counted.get(name, 0) for name, number in counters(scene.bed).items()}
    changed = sorted({name for look in seen for name, value in look.items() if value != before[name]})
    return {
        "error": error,
        "quotes": quote,
        "count": args.count,
        "changed": changed,
        "before": before,
        "after": seen[-1],
        "shares_on_wire": [round(share, 4) for share in (share_before, share_meanwhile, share_after)],
        "share_change": round(max(share_meanwhile, share_after) / share_before - 1, 4),
        "counters": {
            name: changes[name]
            for name in ("rx_errors_translated", "drop_peer_refuses", "tx_fallbacks", "tx_path_limits")
            if changes.get(name)
        },
    }


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row per kind; each has a testbed of its own, so that no kind inherits from the one before."""
    numbers = itertools.count(args.seed)
    for error, quote in KINDS:
        if args.errors and error not in args.errors:
            continue
        with built(rate_bps=RATE_BPS, nic=NicSettings(encapsulation=args.encapsulation)) as bed:
            if args.version == 6 and not add_ipv6(bed):
                raise RuntimeError("this kernel has no IPv6")
            with third_host(bed) as netns, Scene(bed, netns, args.version) as scene:
                time.sleep(SETTLE_S)
                yield {"version": args.version, **measure(scene, error, quote, args, next(numbers))}


def main() -> int:
    """Run the command line; the exit code is 1 if an error changed anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="errors of each kind")
    parser.add_argument("--version", type=int, choices=[4, 6], default=4, help="of IP")
    parser.add_argument("--encapsulation", choices=["udp", "ipcomp"], default="udp", help="of the victim's blocks")
    parser.add_argument("--errors", nargs="*", choices=list(ERRORS), help="only these")
    parser.add_argument("--share-change-max", type=float, default=0.1, help="more octets on the wire, relative")
    parser.add_argument("--look-s", type=float, default=1.5, help="for which the wire is watched, three times")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = False
    for row in rows(args):
        failed |= bool(row["changed"]) or float(str(row["share_change"])) > args.share_change_max
        print(json.dumps(row), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
