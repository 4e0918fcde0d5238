"""Two routers in place of a testbed's switch, with a narrower link between them.

::

    n0 ── NIC ── wire0 ── p0 [router: the switch's namespace] mid0 ══ mtu ══ mid1 [router: no-<run>-r1] p1 ── NIC ── n1

The nodes keep their addresses, and reach each other through the routers. Both routers answer a datagram that does not
fit with ICMP "fragmentation needed" (RFC 792, RFC 1191) or ICMPv6 "packet too big" (RFC 4443), or, where ICMP is
dropped, not at all: a black hole (RFC 2923).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from netoffload.control import request
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.journal import Journal
from netoffload.lab.testbed.plan import NodePlan
from netoffload.netlink import Namespace
from tests.soak.damage import run_nft
from tests.soak.events import add_ipv6, ip
from tests.soak.flows import carry, ipv6_address
from tests.soak.options import Direction, FlowOptions, Values

PORT: Final = 7300
TIMEOUT_S: Final = 20.0
DROP_ICMP: Final = """
add table inet soak
add chain inet soak o { type filter hook output priority 0; }
add rule inet soak o icmp type destination-unreachable counter drop
add rule inet soak o icmpv6 type packet-too-big counter drop
"""


@dataclass(frozen=True)
class PathResult:
    """One stream over a path, tagged and untagged: octets of each, and seconds from the open connection to its end.

    ``compressed_octets`` are those of the tagged stream that the sending NIC compressed; wrong values are of both.
    """

    octets: int
    tagged_s: float
    untagged_s: float
    compressed_octets: int
    wrong: int


@contextlib.contextmanager
def routed(bed: Testbed, mtu: int, *, icmp: bool = True) -> Iterator[None]:
    """Turn the switch of a testbed of two nodes into routers; they go when the testbed is taken down.

    The MTU is that of the link between them. Without ``icmp`` nft keeps them silent about datagrams that do not fit.
    """
    plan = bed.plan
    second = f"no-{plan.run_id}-r1"
    Journal(plan.state_dir).append("netns", name=second)
    with Namespace.create(second), Namespace.open(plan.switch_netns) as first:
        first.add_veth("mid0", "mid1", second, mtu)
    add_ipv6(bed)
    ip("-n", plan.switch_netns, "link", "set", plan.nodes[1].port, "nomaster", "netns", second)
    ip("-n", plan.switch_netns, "link", "set", plan.nodes[0].port, "nomaster")
    routers = (plan.switch_netns, second)
    for index, node in enumerate(plan.nodes):
        _make_router(routers[index], node, f"mid{index}", plan.nodes[1 - index])
        for router_address, far in zip(_router_addresses(index), _addresses(plan.nodes[1 - index]), strict=True):
            ip("-n", node.netns, "route", "replace", far, "via", router_address, "dev", node.device, "onlink")
    if not icmp:
        for router in routers:
            run_nft(router, DROP_ICMP)
    yield


def measure_path(bed: Testbed, values: Values, octets: int, *, ipv6: bool, black_hole: bool = False) -> PathResult:
    """Send one tagged stream from n0 to n1, then an untagged one over the same path; n0 forgets the path before either.

    Over a ``black_hole`` the untagged stream probes the path's MTU (RFC 4821); else it would never end.
    """
    n0 = bed.plan.nodes[0]
    direction = Direction(octets=octets)
    options = FlowOptions(1, 0, (direction, replace(direction, octets=0)), is_ipv6=ipv6)
    before = _compressed_octets(n0)
    _forget_path(bed)
    tagged = carry(bed, [options], values, TIMEOUT_S, PORT)[0]
    compressed_octets = _compressed_octets(n0) - before
    _forget_path(bed)
    with Namespace.open(n0.netns) as namespace:
        namespace.set_sysctl("net.ipv4.tcp_mtu_probing", str(int(black_hole)))
        untagged = carry(bed, [replace(options, tos=0)], values, TIMEOUT_S, PORT + 1)[0]
        namespace.set_sysctl("net.ipv4.tcp_mtu_probing", "0")
    wrong = tagged.wrong + untagged.wrong + untagged.rounded
    return PathResult(octets, tagged.elapsed_s, untagged.elapsed_s, compressed_octets, wrong)


def _make_router(netns: str, node: NodePlan, middle: str, far: NodePlan) -> None:
    with Namespace.open(netns) as router:
        for device in (node.port, middle):
            for key, value in (("disable_ipv6", "0"), ("accept_dad", "0"), ("forwarding", "1")):
                router.set_sysctl(f"net.ipv6.conf.{device}.{key}", value)
            router.set_up(device)
        router.set_sysctl("net.ipv4.ip_forward", "1")
        router.set_sysctl("net.ipv6.conf.all.forwarding", "1")
    for address, near, beyond in zip(_router_addresses(node.index), _addresses(node), _addresses(far), strict=True):
        options = [] if ":" not in address else ["nodad"]
        for device in (node.port, middle):
            ip("-n", netns, "addr", "add", address, "dev", device, *options)
        ip("-n", netns, "route", "add", near, "dev", node.port)
        peer = _router_addresses(far.index)[":" in address]
        ip("-n", netns, "route", "add", beyond, "via", peer, "dev", middle, "onlink")


def _router_addresses(index: int) -> tuple[str, str]:
    """Return the IPv4 and the IPv6 address of the router beside node ``index``."""
    return f"10.98.9.{index + 1}", f"fd99::{index + 1}"


def _addresses(node: NodePlan) -> tuple[str, str]:
    return node.address, ipv6_address(node.index)


def _forget_path(bed: Testbed) -> None:
    """Make the nodes forget what ICMP said about their paths."""
    for node in bed.plan.nodes:
        for family in ("-4", "-6"):
            ip("-n", node.netns, family, "route", "flush", "cache")


def _compressed_octets(node: NodePlan) -> int:
    return int(request(str(node.control_path), "counters")["counters"]["tx_raw_octets"])
