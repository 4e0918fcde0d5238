"""Moving frames from one link to another inside the kernel: tc filters with the action mirred (tc-mirred(8)).

A link has two *hooks* where filters see its frames: ``ingress``, behind the packet sockets that listen, and ``egress``,
before its queueing discipline. A redirected frame leaves through another link of the same namespace (``egress``), or
goes on as if it had arrived there (``ingress``)::

    hook of a link ──filter: does the program accept the frame?── yes ──► target's egress or ingress
                                    └─ no ──► on its normal way

These filters have one priority that no other filter uses, and nothing else on a link is changed.
"""

import contextlib
import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins, sched_bpf
from pyroute2.netlink.rtnl.tcmsg.common_act import get_tca_action

from netoffload.errors import NetlinkRefusedError
from netoffload.netlink import ETH_P_ALL, Namespace, index_of, translated

Hook = Literal["ingress", "egress"]

EVERYTHING: Final = struct.pack("=HBBI", 0x06, 0, 0, 0xFFFF_FFFF)
"""The program that accepts every frame: "return 2**32 - 1"."""

_PARENTS: Final[dict[Hook, int]] = {"ingress": 0xFFFF_FFF2, "egress": 0xFFFF_FFF3}  # TC_H_CLSACT, linux/pkt_sched.h
_PRIORITY: Final = 0x6E6F
"""The priority of these filters; other filters have other priorities."""
_NONE: Final = (errno.ENOENT, errno.EINVAL)
"""The kernel's errors if a filter, or the qdisc for it, does not exist."""

_IFF_NOARP: Final = 0x80  # linux/if.h

_INSTRUCTION_LEN: Final = 8


class _ClassicBpf(sched_bpf.options):  # type: ignore[misc]
    """TCA_OPTIONS of a filter (linux/pkt_cls.h) of classic BPF; pyroute2's own class knows only eBPF (tc-bpf(8))."""

    nla_map = (
        ("TCA_BPF_UNSPEC", "none"),
        ("TCA_BPF_ACT", "bpf_act"),
        ("TCA_BPF_POLICE", "hex"),
        ("TCA_BPF_CLASSID", "uint32"),
        ("TCA_BPF_OPS_LEN", "uint16"),
        ("TCA_BPF_OPS", "cdata"),
        ("TCA_BPF_FD", "uint32"),
        ("TCA_BPF_NAME", "asciiz"),
        ("TCA_BPF_FLAGS", "uint32"),
        ("TCA_BPF_FLAGS_GEN", "uint32"),
    )


def _bpf_parameters(asked: dict[str, Any]) -> dict[str, Any]:
    """Return TCA_OPTIONS for ``action`` and ``program`` (``struct sock_filter[]``); empty to delete a filter."""
    program = asked.get("program")
    if program is None:
        return {"attrs": []}
    length = len(program) // _INSTRUCTION_LEN
    return {"attrs": [["TCA_BPF_ACT", get_tca_action(asked)], ["TCA_BPF_OPS_LEN", length], ["TCA_BPF_OPS", program]]}


plugins["bpf"] = SimpleNamespace(
    parent=sched_bpf.parent, fix_request=sched_bpf.fix_request, options=_ClassicBpf, get_parameters=_bpf_parameters
)


@dataclass(frozen=True)
class Redirect:
    """A redirection of frames from one link's hook to another link."""

    link: str
    hook: Hook
    target: str
    target_hook: Hook
    """``egress``: they leave through the target; ``ingress``: they go on as if they had arrived there."""


@dataclass(frozen=True)
class Redirected:
    """Frames and octets that a redirect has moved; each segment of a GSO frame counts as a frame.

    At an ingress the kernel counts octets behind the Ethernet header, and the headers of a GSO frame once. At an egress
    it counts all headers of all segments.
    """

    frames: int
    octets: int


def add_redirect(namespace: Namespace, redirect: Redirect, program: bytes) -> None:
    """Redirect the frames for which ``program`` returns 2**32 - 1.

    It is classic BPF, ``struct sock_filter[]``, on a frame from its Ethernet header on.
    """

    def add(links: Any) -> None:
        index, target = (index_of(links, name) for name in (redirect.link, redirect.target))
        with _unless(errno.EEXIST):
            links.tc("add", "clsact", index)
        action = {"kind": "mirred", "action": "redirect", "direction": redirect.target_hook, "ifindex": target}
        where = {"parent": _PARENTS[redirect.hook], "protocol": ETH_P_ALL, "prio": _PRIORITY}
        links.tc("add-filter", "bpf", index, action=action, program=program, **where)

    what = f"redirect {redirect.hook} of {redirect.link} to {redirect.target} (needs clsact, cls_bpf and act_mirred)"
    namespace.request(what, add)


def remove_redirects(namespace: Namespace, link: str) -> None:
    """Remove these filters from both hooks of a link, and its clsact if nothing else uses the clsact."""

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


def has_clsact(link: str) -> bool:
    """Say whether a link of this thread's namespace has a clsact, to which filters are attached; needs no rights."""

    def read() -> bool:
        with IPRoute() as links, _unless(errno.EOPNOTSUPP):  # a kernel without qdiscs
            return any(found.get_attr("TCA_KIND") == "clsact" for found in links.get_qdiscs(index_of(links, link)))
        return False

    return translated(f"read the qdiscs of {link}", read)


def redirected(namespace: Namespace, redirect: Redirect) -> Redirected:
    """Return the frames and octets that a redirect has moved since it was made; needs no rights."""

    def read(links: Any) -> Redirected:
        index = index_of(links, redirect.link)
        for found in links.get_filters(index=index, parent=_PARENTS[redirect.hook]):
            options = found.get_attr("TCA_OPTIONS")
            if found["info"] >> 16 == _PRIORITY and options is not None:
                action = options.get_attr("TCA_BPF_ACT").get_attr("TCA_ACT_PRIO_1")
                basic = action.get_attr("TCA_ACT_STATS").get_attr("TCA_STATS_BASIC")
                return Redirected(frames=int(basic["packets"]), octets=int(basic["bytes"]))
        raise OSError(errno.ENOENT, "its filter is gone")

    return namespace.request(f"read what {redirect.link} redirects", read)


def set_silent(namespace: Namespace, link: str, address: str | None = None) -> None:
    """Set a link up that sends nothing by itself: no ARP, no IPv6. ``address`` is a new hardware address."""
    with contextlib.suppress(NetlinkRefusedError):  # a kernel without IPv6
        namespace.set_sysctl(f"net.ipv6.conf.{link}.disable_ipv6", "1")

    def up(links: Any) -> None:
        index = index_of(links, link)
        if address is not None:
            links.link("set", index=index, address=address)
        links.link("set", index=index, flags=_IFF_NOARP, mask=_IFF_NOARP)
        links.link("set", index=index, state="up")

    namespace.request(f"set {link} up", up)


def index_and_address(namespace: Namespace, link: str) -> tuple[int, str]:
    """Return a link's index and hardware address."""

    def read(links: Any) -> tuple[int, str]:
        [found] = links.get_links(index_of(links, link))
        return int(found["index"]), str(found.get_attr("IFLA_ADDRESS"))

    return namespace.request(f"look at {link}", read)


def remove_link(namespace: Namespace, link: str) -> bool:
    """Remove a link, and for a veth pair both ends; return False if the link does not exist."""

    def remove(links: Any) -> bool:
        found = links.link_lookup(ifname=link)
        if found:
            links.link("del", index=found[0])
        return bool(found)

    return namespace.request(f"remove {link}", remove)


@contextlib.contextmanager
def _unless(*codes: int) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        if error.code not in codes:
            raise
