"""The kernel objects of a testbed's network: bridges, TAPs, shaped and counted links."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload.netlink import ETH_P_ALL, Namespace, index_of

TBF_RATE_BPS_MAX: Final = 8 * (2**32 - 1)
"""pyroute2 sends tbf's rate as 32 bits of octets per second (no TCA_TBF_RATE64): 34 Gb/s."""

PFIFO_LIMIT_FRAMES: Final = 10_000


@dataclass(frozen=True)
class QdiscCounters:
    """Octets and frames that left through a qdisc; a GSO frame counts with all headers of all its segments."""

    octets: int
    frames: int


class TestbedNamespace(Namespace):
    """A namespace of a testbed, and the links in it."""

    __test__ = False  # the name starts with "Test", but this is no test class

    def add_bridge(self, name: str, mtu: int) -> None:
        """Make a bridge that forwards from its first frame on: no spanning tree, no delay, no multicast snooping.

        If the kernel shows bridged frames to iptables (br_netfilter), this is switched off in this namespace: it costs
        time per frame, and the host's rules must not apply inside a testbed.
        """
        options = {"br_forward_delay": 0, "br_stp_state": 0, "br_mcast_snooping": 0}

        def add(links: Any) -> None:
            links.link("add", ifname=name, kind="bridge", mtu=mtu, **options)
            for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
                path.write_text("0")

        self.request(f"make bridge {name}", add)

    def add_tap(self, name: str, mtu: int, queue_len_frames: int) -> None:
        """Make a persistent TAP with IFF_NO_PI and IFF_VNET_HDR, to which a program can attach later.

        ``queue_len_frames`` frames (each up to 64 KiB) may wait for the program; the kernel drops others.
        """

        def add(links: Any) -> None:
            flags = {"no_pi": 1, "vnet_hdr": 1}
            links.link("add", ifname=name, kind="tuntap", mode="tap", ifr=flags)
            links.link("set", index=index_of(links, name), mtu=mtu, txqlen=queue_len_frames)

        self.request(f"make TAP {name}", add)

    def add_address(self, name: str, address: str, network: str, congestion_control: str) -> None:
        """Give a link that is up an address, ``10.98.1.1``, and its network, ``10.98.1.0/24``, a route.

        The sysctl of a namespace may only choose a congestion control that the host allows; a route may choose any.
        """
        prefix_len = int(network.partition("/")[2])

        def add(links: Any) -> None:
            index = index_of(links, name)
            links.addr("add", index=index, address=address, prefixlen=prefix_len)
            metrics = {"cc_algo": congestion_control}
            route = {"dst": network, "oif": index, "prefsrc": address, "scope": "link", "proto": "kernel"}
            links.route("replace", metrics=metrics, **route)

        self.request(f"give {name} the address {address}/{prefix_len}", add)

    def add_tbf(self, name: str, rate_bps: int, burst_octets: int, limit_octets: int) -> None:
        """Shape the frames that leave through a link with a token bucket (tc-tbf(8))."""
        options = {"rate": rate_bps // 8, "burst": burst_octets, "limit": limit_octets}
        self._add_qdisc(f"shape {name} with tbf", name, "tbf", options)

    def add_pfifo(self, name: str) -> None:
        """Count the frames that leave through a link, without shaping; a veth's default ``noqueue`` counts nothing."""
        self._add_qdisc(f"put a pfifo on {name}", name, "pfifo", {"limit": PFIFO_LIMIT_FRAMES})

    def _add_qdisc(self, what: str, name: str, kind: str, options: dict[str, int]) -> None:
        self.request(what, lambda links: links.tc("add", kind, index_of(links, name), handle="1:", **options))

    def add_ingress_counter(self, name: str) -> None:
        """Count the frames that arrive at a link: an ``ingress`` qdisc counts while it has a filter, here for all."""

        def add(links: Any) -> None:
            index = index_of(links, name)
            links.tc("add", "ingress", index)
            match_all = {"prio": 1, "protocol": ETH_P_ALL, "target": "1:1", "keys": ["0x0/0x0+0"]}
            links.tc("add-filter", "u32", index, parent="ffff:", **match_all)

        self.request(f"count what arrives at {name} with a u32 filter", add)

    def qdisc_counters(self, kinds: Collection[str] = ("tbf", "pfifo")) -> dict[str, QdiscCounters]:
        """Return the counters of the qdiscs of these kinds, by link name; ``ingress`` is of what arrives."""

        def read(links: Any) -> dict[str, QdiscCounters]:
            names = {link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in links.get_links()}
            counted = {}
            for qdisc in links.get_qdiscs():
                if qdisc.get_attr("TCA_KIND") in kinds and qdisc["index"] in names:
                    basic = qdisc.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")
                    counted[names[qdisc["index"]]] = QdiscCounters(int(basic["bytes"]), int(basic["packets"]))
            return counted

        return self.request("read its qdiscs", read)
