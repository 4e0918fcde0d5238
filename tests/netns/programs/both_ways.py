"""One connection between two nodes of a testbed that carries a stream both ways, and a policy that marks all of TCP.

The sockets are made in the nodes' namespaces by threads of this process.
"""

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from netoffload.codec import get
from netoffload.config import TOS_COMPRESS
from netoffload.devices.netns import in_netns
from netoffload.lab.testbed import NodePlan, Testbed
from netoffload.netlink import netns_path
from tests.shared.beds import flows
from tests.soak.damage import nft_path, run_nft
from tests.soak.options import draw_values

TAGGED: Final = TOS_COMPRESS
TIMEOUT_S: Final = 60.0

POLICY: Final = """
add table inet marking
add chain inet marking out { type filter hook output priority mangle; }
add rule inet marking out meta l4proto tcp meta nfproto ipv4 ip dscp set af11 counter
add rule inet marking out meta l4proto tcp meta nfproto ipv6 ip6 dscp set af11 counter
"""


class Arrived(NamedTuple):
    """What arrived at the node that listens (``forth``) and at the one that connects, and what left through the wires.

    ``wire_octets`` are those of both wires, from the first octet to the end of both streams.
    """

    forth: bytes
    back: bytes
    wire_octets: int


def gradient(floats: int, seed: int = 1) -> np.ndarray:
    """Return normal values like those of a gradient, float32[floats]."""
    return np.random.default_rng(seed).normal(0, 2e-3, floats).astype("<f4")


def ipv6_of(node: NodePlan) -> str:
    """Return the address that ``add_ipv6`` of the soak gives a node."""
    return f"fd98::{node.index + 1}"


def socket_on(node: NodePlan, tos: int, *, ipv6: bool = False) -> socket.socket:
    """Return a TCP socket of a node that bears a ToS, or traffic class; 0: none."""
    with in_netns(str(netns_path(node.netns))):
        sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET)
    sock.settimeout(TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    mark(sock, tos)
    return sock


def mark(sock: socket.socket, tos: int) -> None:
    """Set the ToS, or traffic class, of a socket."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, tos)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)


@contextlib.contextmanager
def connected(
    bed: Testbed, port: int, tos: tuple[int, int], *, ipv6: bool = False, source_port: int = 0
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from n0 to n1, whose sockets bear these ToS."""
    source, sink = bed.plan.nodes[:2]
    address = ipv6_of(sink) if ipv6 else sink.address
    with socket_on(sink, tos[1], ipv6=ipv6) as listening, socket_on(source, tos[0], ipv6=ipv6) as near:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
        near.bind(("", source_port))
        near.connect((address, port))
        far, _ = listening.accept()
        with far:
            far.settimeout(TIMEOUT_S)
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield near, far


def carried(near: socket.socket, far: socket.socket, octets: bytes) -> bytes:
    """Send octets and the end of the stream from one socket; return what the other one got."""

    def send() -> None:
        near.sendall(octets)
        near.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = b"".join(iter(lambda: far.recv(1 << 20), b""))
    sender.join()
    return got


def carried_to(bed: Testbed, port: int, octets: bytes, tos: int = TAGGED, source_port: int = 0) -> tuple[bytes, int]:
    """Send octets from n0 to a port of n1; return what arrived, and how many of them n0's NIC compressed."""
    with connected(bed, port, (tos, tos), source_port=source_port) as (near, far):
        got = carried(near, far, octets)
        ports = near.getsockname()[1], port
    mine = [flow for flow in flows(bed) if flow["direction"] == "tx" and (flow["sport"], flow["dport"]) == ports]
    return got, sum(flow["raw_octets"] for flow in mine)


def read_exactly(sock: socket.socket, octets: int) -> bytes:
    got = bytearray()
    while len(got) < octets:
        part = sock.recv(octets - len(got))
        assert part, f"the connection ended after {len(got)} of {octets} octets"
        got += part
    return bytes(got)


def exchange(near: socket.socket, far: socket.socket, seed: int, values_of: str = "gradients") -> int:
    """Send values over a tagged connection, and compare what arrives with the codec's; return how many octets went."""
    values = draw_values(values_of, 20_000, seed)
    near.sendall(values.tobytes())
    rounded = get("inceptionn").round_trip(values, 10)
    assert read_exactly(far, values.nbytes) == rounded.tobytes()
    return values.nbytes


def carry_both_ways(bed: Testbed, octets: bytes, tos: tuple[int, int], *, port: int, ipv6: bool = False) -> Arrived:
    """Let both ends send the octets, and return what arrived; ``tos`` is of n0's socket and of n1's."""
    with connected(bed, port, tos, ipv6=ipv6) as (near, far), ThreadPoolExecutor() as threads:
        before = _wire_octets(bed)
        ways = [threads.submit(carried, *ends, octets) for ends in ((near, far), (far, near))]
        forth, back = (way.result() for way in ways)
        return Arrived(forth, back, _wire_octets(bed) - before)


@contextlib.contextmanager
def policy(bed: Testbed, nodes: tuple[int, ...] = (0, 1)) -> Iterator[None]:
    """Mark every TCP packet that a node sends with AF11, by nftables in its namespace, the handshake's too."""
    marking = [bed.plan.nodes[index] for index in nodes]
    try:
        for node in marking:
            run_nft(node.netns, POLICY)
        yield
    finally:
        for node in marking:
            with contextlib.suppress(Exception):
                run_nft(node.netns, "delete table inet marking\n")


def packets_marked(node: NodePlan) -> int:
    """Return how many packets of a node the policy has marked."""
    program = nft_path()
    assert program is not None
    command = ["ip", "netns", "exec", node.netns, program, "-j", "list", "table", "inet", "marking"]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    rules = [entry["rule"]["expr"] for entry in answer["nftables"] if "rule" in entry]
    return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


def _wire_octets(bed: Testbed) -> int:
    return sum(wire.tx_octets for wire in bed.wire_counters())
