"""Intruders send frames while tagged flows live: they add no octet, take no flow's slot, and make no flow raw."""

import contextlib
import itertools
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed
from netoffload.netlink import Namespace
from netoffload.wire.encapsulation import UDP_PORT
from netoffload.wire.offload import PROTO_IPCOMP
from netoffload.wire.udp import PROTO_UDP
from tests.netns.programs.both_ways import TAGGED, connected, exchange
from tests.netns.programs.intruder import (
    ETHERTYPE_IPV4,
    OWN_MAC,
    capture_blocks,
    forged_blocks,
    mac_of,
    send_frames,
    syn_frames,
    wire_of,
)
from tests.shared.beds import built, flows
from tests.shared.formats import (
    Ethernet,
    Ipv4,
    Udp,
    emit_entries,
    emit_ethernet,
    emit_ipv4,
    emit_udp,
    parse_tcp,
    src_port,
)
from tests.shared.quick_cases import by_day
from tests.soak.damage import nft_path, run_nft
from tests.soak.events import kill_nic
from tests.soak.flows import Flow, await_progress
from tests.soak.options import Direction, FlowOptions, Values

pytestmark = pytest.mark.skipif(
    nft_path() is None, reason="nft is not installed: what reaches a host cannot be counted"
)

SYNS = 100_000
N0, N1 = "10.98.1.1", "10.98.1.2"
LIVE_PORT, IDLE_PORT, SSH_PORT = 7400, 7500, 2222
STREAM = FlowOptions(
    listener=1,
    connector=0,
    directions=(Direction(octets=1 << 40, rate_octets_per_s=2e6), Direction(octets=0)),
)
SEGMENT_OCTETS = 1_000_000
"""What a flow must carry between two looks at it."""

SEND_DATAGRAMS = str(Path(__file__).with_name("programs") / "send_datagrams.py")

PROTOCOLS = (PROTO_UDP, PROTO_IPCOMP)
WRONG = 123_456_789
"""Added to the sequence numbers of forged blocks."""
FORGED = list(itertools.product(PROTOCOLS, (0, WRONG)))


class Scene:
    """Two nodes with NICs, one without, and what flows between the two."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.values = Values(folder, "inceptionn", 10, seed=9)
        self.n0, self.n1, self.n2 = bed.plan.nodes
        self.mac1 = mac_of(self.n1)
        self._ports = iter(range(100))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[tuple[int, int]]:
        """Let a live and an idle flow be there, give their ports of n1, and hold them to their word afterwards."""
        number = next(self._ports)
        live_port, idle_port = LIVE_PORT + number, IDLE_PORT + number
        with Namespace.open(self.n1.netns) as namespace:
            listener = namespace.call(partial(socket.create_server, (N1, SSH_PORT)))
        with (
            listener,
            connected(self.bed, idle_port, (TAGGED, TAGGED)) as idle,
            Flow(self.bed, STREAM, self.values, live_port) as live,
        ):
            exchange(*idle, seed=1)
            await_progress(live, SEGMENT_OCTETS, timeout_s=20)
            before = self.segments_for_ssh()
            yield live_port, idle_port
            assert self.segments_for_ssh() == before, "a block became a segment for a port of the host"
            live.read()
            await_progress(live, live.received_octets + 1, timeout_s=20)  # a number that is new
            received, compressed = live.received_octets, self.compressed_octets(live_port)
            await_progress(live, received + 2 * SEGMENT_OCTETS, timeout_s=20)
            assert live.wrong == 0
            assert self.compressed_octets(live_port) - compressed > 0.8 * (live.received_octets - received)
            compressed = self.compressed_octets(idle_port)
            octets = exchange(*idle, seed=2)
            assert self.compressed_octets(idle_port) - compressed > 0.8 * octets
            live.stop()
            found = live.finish(timeout_s=20)[0]
        assert (found.wrong, found.exact_after_begun) == (0, 0)
        assert found.received_octets == found.sent_octets

    def compressed_octets(self, port: int) -> int:
        """Octets of the flow to a port of n1 that n0's NIC compressed; the flow must be in its table."""
        rows = [row for row in flows(self.bed) if (row["direction"], row["dst"], row["dport"]) == ("tx", N1, port)]
        assert len(rows) == 1, f"the flow to port {port} is not in the table"
        return int(rows[0]["raw_octets"])

    def client_port(self, port: int) -> int:
        """The port of n0 at the other end of the flow to a port of n1."""
        return next(int(row["sport"]) for row in flows(self.bed) if (row["direction"], row["dport"]) == ("tx", port))

    def watch_ssh(self) -> None:
        """Count the segments without SYN that reach n1's port 2222."""
        run_nft(
            self.n1.netns,
            "add table netdev watch\n"
            f'add chain netdev watch c {{ type filter hook ingress device "{self.n1.device}" priority 0; }}\n'
            f"add rule netdev watch c tcp dport {SSH_PORT} tcp flags & syn == 0 counter",
        )

    def segments_for_ssh(self) -> int:
        command = ["ip", "netns", "exec", self.n1.netns, str(nft_path()), "list", "table", "netdev", "watch"]
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        return int(re.findall(r"packets (\d+)", listed)[0])

    def datagrams(self, node: int, address: str, port: int, payloads: list[tuple[int, bytes]]) -> None:
        """Send datagrams to the NICs' port from a port of a node, as a user without rights.

        Each is cut into datagrams of the size before it, octets; 0 leaves it whole.
        """
        words = [sys.executable, SEND_DATAGRAMS, address, str(port)]
        with self.bed.popen(node, words, stdin=subprocess.PIPE, text=True) as user:
            user.communicate("\n".join(f"{size} {payload.hex()}" for size, payload in payloads), timeout=30)
            assert user.returncode == 0


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with built(3) as bed:
        kill_nic(bed, bed.plan.nodes[2])
        made = Scene(bed, tmp_path_factory.mktemp("values"))
        made.watch_ssh()
        yield made


@pytest.mark.parametrize("tagged", [False, True], ids=["untagged", "tagged"])
def test_random_syns_take_no_flows_place(scene: Scene, tagged: bool) -> None:
    frames = [
        frame
        for node in (scene.n0, scene.n1)
        for frame in syn_frames(SYNS // 2, node.index, mac_of(node), node.address, tagged)
    ]
    with scene.guarded(), wire_of(scene.n2) as wire:
        send_frames(wire, frames)


@pytest.mark.parametrize("tagged", [False, True], ids=["untagged", "tagged"])
def test_syns_with_a_live_flows_addresses_change_nothing(scene: Scene, tagged: bool) -> None:
    with scene.guarded() as ports, wire_of(scene.n2) as wire:
        for port in ports:
            client = scene.client_port(port)
            send_frames(wire, syn_frames(300, 2, scene.mac1, N1, tagged, src=N0, sport=client, dport=port))
            send_frames(wire, syn_frames(300, 3, mac_of(scene.n0), N0, tagged, src=N1, sport=port, dport=client))


def in_frame(scene: Scene, block: bytes, protocol: int) -> bytes:
    """A frame of the third node for n1, with a block that claims to come from n0."""
    payload = block if protocol == PROTO_IPCOMP else emit_udp(Udp(50_000, UDP_PORT), emit_entries([block]))
    header = Ipv4(0x28, 1, 0x4000, 64, protocol, socket.inet_aton(N0), socket.inet_aton(N1))
    return emit_ethernet(Ethernet(scene.mac1, OWN_MAC, ETHERTYPE_IPV4), emit_ipv4(header, payload))


@pytest.mark.parametrize(("protocol", "offset"), by_day(FORGED, [(PROTO_UDP, 0), (PROTO_IPCOMP, WRONG)]))
def test_forged_blocks_of_a_third_node_add_nothing(scene: Scene, protocol: int, offset: int) -> None:
    with scene.guarded() as (live_port, _), wire_of(scene.n1) as tap, wire_of(scene.n2) as wire:
        for _ in range(5):
            _, block = capture_blocks(tap, N0, live_port, 1)[0]
            send_frames(wire, [in_frame(scene, each, protocol) for each in forged_blocks(block, N0, N1, 100, offset)])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_forged_blocks_become_no_segments_for_another_port(scene: Scene, protocol: int) -> None:
    with scene.guarded() as (live_port, _), wire_of(scene.n1) as tap, wire_of(scene.n2) as wire:
        _, block = capture_blocks(tap, N0, live_port, 1)[0]
        made = forged_blocks(block, N0, N1, 20, dport=SSH_PORT)
        send_frames(wire, [in_frame(scene, each, protocol) for each in made])


def test_replayed_blocks_add_nothing(scene: Scene) -> None:
    with scene.guarded() as (live_port, _), wire_of(scene.n1) as tap, wire_of(scene.n2) as wire:
        seen = capture_blocks(tap, N0, live_port, 100)
        for octets, _ in 3 * seen:
            wire.send(octets[:16] + OWN_MAC + octets[22:])  # behind the virtio-net header: to, from


@pytest.mark.parametrize("node", [0, 1], ids=["sending host", "receiving host"])
def test_datagrams_of_a_user_without_rights_add_nothing(scene: Scene, node: int) -> None:
    with scene.guarded() as (live_port, _), wire_of(scene.n1) as tap:
        _, block = capture_blocks(tap, N0, live_port, 1)[0]
        src, dst = (N0, N1) if node == 0 else (N1, N0)
        made = forged_blocks(block, src, dst, 50) + forged_blocks(block, src, dst, 5, dport=SSH_PORT)
        entries = [emit_entries([each]) for each in made]
        whole = [
            bytes(8),
            *entries,
            *(bytes(8) + each for each in entries),
            *(each.ljust(60_000, b"\0") for each in entries[:5] + entries[-5:]),
            *(bytes(8) + each.ljust(20_000, b"\0") for each in entries[:5] + entries[-5:]),
            emit_entries(made[:20], 1400),
        ]
        bundles = [(1400, emit_entries(made[first : first + 20], 1400)) for first in (0, 20, len(made) - 20)]
        bundles += [(1400, bytes(8).ljust(1400, b"\0") + octets) for _, octets in bundles]
        header = parse_tcp(block.tcp_header)[0]
        scene.datagrams(node, dst, src_port(header.sport, header.dport), [*((0, each) for each in whole), *bundles])
