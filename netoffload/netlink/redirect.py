"""Moving frames from one link to another inside the kernel: tc filters with the action mirred (tc-mirred(8)).

A link has two *hooks* where filters look at its frames: ``ingress``, behind the packet sockets that listen, and
``egress``, before its queueing discipline. A redirected frame goes on as one that leaves through (``egress``) or that
has arrived at (``ingress``) another link of the same namespace::

    hook of a link ──filter: does the program name the frame?── yes ──► target's egress or ingress
                                    └─ no ──► on its normal way

Filters of ours have a priority of their own, and nothing else on a link is touched.
"""

from __future__ import annotations

import contextlib
import errno
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins

from netoffload.errors import NetlinkRefusedError
from netoffload.netlink import ETH_P_ALL, Namespace, cls_bpf

plugins["bpf"] = sys.modules[cls_bpf.__name__]

Hook = Literal["ingress", "egress"]

EVERYTHING: Final = struct.pack("=HBBI", 0x06, 0, 0, 0xFFFF_FFFF)
"""The program that names every frame: "return 2**32 - 1"."""

_PARENTS: Final[dict[Hook, int]] = {"ingress": 0xFFFF_FFF2, "egress": 0xFFFF_FFF3}  # TC_H_CLSACT, linux/pkt_sched.h
_PRIORITY: Final = 0x6E6F
"""Of our filters; others keep theirs."""
_NONE: Final = (errno.ENOENT, errno.EINVAL)
"""What the kernel says where there is no such filter, or no qdisc for it."""

_IFF_NOARP: Final = 0x80  # linux/if.h


@dataclass(frozen=True)
class Redirect:
    """From one link's hook to another link.

    Attributes:
        link: whose frames are looked at.
        hook: where.
        target: the link that gets them, in the same namespace.
        target_hook: ``egress`` to let them leave through it, ``ingress`` to let them have arrived at it.
    """

    link: str
    hook: Hook
    target: str
    target_hook: Hook


@dataclass(frozen=True)
class Redirected:
    """What a redirect has moved: frames, each segment of a GSO frame counting, and octets.

    At an ingress the kernel counts octets behind the Ethernet header, and the headers of a GSO frame once; at an egress
    all headers of all segments.
    """

    frames: int
    octets: int


def add_redirect(namespace: Namespace, redirect: Redirect, program: bytes) -> None:
    """Redirect the frames for which ``program`` returns 2**32 - 1.

    Args:
        namespace: of both links.
        redirect: from where to where.
        program: classic BPF, ``struct sock_filter[]``, on a frame from its Ethernet header on.

    Raises:
        NetlinkRefusedError: no such link, or a kernel without clsact, cls_bpf or act_mirred.
    """

    def add(links: Any) -> None:
        index, target = (_index(links, name) for name in (redirect.link, redirect.target))
        with _unless(errno.EEXIST):
            links.tc("add", "clsact", index)
        action = {"kind": "mirred", "action": "redirect", "direction": redirect.target_hook, "ifindex": target}
        where = {"parent": _PARENTS[redirect.hook], "protocol": ETH_P_ALL, "prio": _PRIORITY}
        links.tc("add-filter", "bpf", index, action=action, program=program, **where)

    what = f"redirect {redirect.hook} of {redirect.link} to {redirect.target} (needs clsact, cls_bpf and act_mirred)"
    namespace.request(what, add)


def remove_redirects(namespace: Namespace, link: str) -> None:
    """Remove our filters from both hooks of a link, and its clsact if nothing else uses that.

    Raises:
        NetlinkRefusedError: not permitted.
    """

    def remove(links: Any) -> None:
        found = links.link_lookup(ifname=link)
        if not found:
            return
        index, left = found[0], 0
        for parent in _PARENTS.values():
            with _unless(*_NONE):
                links.tc("del-filter", "bpf", index, parent=parent, protocol=ETH_P_ALL, prio=_PRIORITY)
            left += len(list(links.get_filters(index=index, parent=parent)))
        kinds = [qdisc.get_attr("TCA_KIND") for qdisc in links.get_qdiscs(index)]
        if "clsact" in kinds and not left:
            links.tc("del", "clsact", index)

    namespace.request(f"remove the redirects of {link}", remove)


def redirected(namespace: Namespace, redirect: Redirect) -> Redirected:
    """Return what a redirect has moved since it was made; needs no rights.

    Raises:
        NetlinkRefusedError: it is gone.
    """

    def read(links: Any) -> Redirected:
        index = _index(links, redirect.link)
        for found in links.get_filters(index=index, parent=_PARENTS[redirect.hook]):
            options = found.get_attr("TCA_OPTIONS")
            if found["info"] >> 16 == _PRIORITY and options is not None:
                action = options.get_attr("TCA_BPF_ACT").get_attr("TCA_ACT_PRIO_1")
                basic = action.get_attr("TCA_ACT_STATS").get_attr("TCA_STATS_BASIC")
                return Redirected(frames=int(basic["packets"]), octets=int(basic["bytes"]))
        raise OSError(errno.ENOENT, "its filter is gone")

    return namespace.request(f"read what {redirect.link} redirects", read)


def set_silent(namespace: Namespace, link: str, address: str | None = None) -> None:
    """Set a link up that says nothing by itself: no ARP, no IPv6.

    Args:
        namespace: of the link.
        link: its name, without dots.
        address: its hardware address, ``02:...``; None leaves what it has.

    Raises:
        NetlinkRefusedError: the kernel refused.
    """
    with contextlib.suppress(NetlinkRefusedError):  # a kernel without IPv6
        namespace.set_sysctl(f"net.ipv6.conf.{link}.disable_ipv6", "1")

    def up(links: Any) -> None:
        index = _index(links, link)
        if address is not None:
            links.link("set", index=index, address=address)
        links.link("set", index=index, flags=_IFF_NOARP, mask=_IFF_NOARP)
        links.link("set", index=index, state="up")

    namespace.request(f"set {link} up", up)


def index_and_address(namespace: Namespace, link: str) -> tuple[int, str]:
    """Return a link's index and hardware address.

    Raises:
        NetlinkRefusedError: there is none.
    """

    def read(links: Any) -> tuple[int, str]:
        [found] = links.get_links(_index(links, link))
        return int(found["index"]), str(found.get_attr("IFLA_ADDRESS"))

    return namespace.request(f"look at {link}", read)


def remove_link(namespace: Namespace, link: str) -> bool:
    """Remove a link, of a pair both ends; False where there is none.

    Raises:
        NetlinkRefusedError: not permitted.
    """

    def remove(links: Any) -> bool:
        found = links.link_lookup(ifname=link)
        if found:
            links.link("del", index=found[0])
        return bool(found)

    return namespace.request(f"remove {link}", remove)


def _index(links: Any, name: str) -> int:
    found = links.link_lookup(ifname=name)
    if not found:
        raise OSError(errno.ENODEV, "no such device", name)
    return int(found[0])


@contextlib.contextmanager
def _unless(*codes: int) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.code not in codes:
            raise
