"""Filters with which the kernel carries unchanged frames between the host's device and the wire, past the process.

A TAP and a wire (each line is a filter, and ``►`` points to where it sends frames)::

    host's namespace                                       wire's namespace
      TAP  egress   ──program──► egress of END  ═══ veth ═══  END ingress ──all──► egress of the wire
      TAP's ingress ◄──all──── ingress of END   ═══ pair ═══  END egress  ◄──program── ingress of the wire

The pair is needed for two reasons. A filter reaches only links of its own namespace. And the kernel decides by the
hardware address of the link whether an arriving frame is for this host; so the pair's end at the host has the TAP's
address. If the NIC's end of a veth pair is in the wire's namespace, no pair is needed.
:mod:`netoffload.engine.bypass` defines which frames the program accepts. The same program keeps these frames from the
packet sockets, which would hear them a second time. Both directions are counted where frames arrive in the wire's
namespace, so both counts mean the same.

**Removal.** The process gives up root before its first frame, so usually it cannot remove the filters; it tries when it
ends. Filters that stay are harmless. A TAP without a process has no carrier, so nothing crosses to it. On a veth pair
untagged frames go on crossing, except TCP segments with SYN, FIN or RST. The next start makes the filters anew or
removes them. They also end with their links and namespaces.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from netoffload.compiled.arrays import Int64Array
from netoffload.devices.netns import is_same_netns
from netoffload.engine.bypass import redirect_program
from netoffload.engine.counters import Counter
from netoffload.errors import NetlinkRefusedError
from netoffload.netlink import Namespace
from netoffload.netlink.redirect import (
    EVERYTHING,
    Hook,
    Redirect,
    add_redirect,
    index_and_address,
    redirected,
    remove_link,
    remove_redirects,
    set_silent,
)
from netoffload.nic_options import NicProcess

PAIR_MTU: Final = 65535
"""At least the MTU of the links that the pair joins."""
OWN_NETNS: Final = "/proc/self/ns/net"

Ways = list[tuple[Redirect, Counter, Counter]]
"""Redirects, each with the counters of its frames and octets."""


@contextlib.contextmanager
def kernel_bypass(settings: NicProcess) -> Iterator[Callable[[Int64Array], None]]:
    """Join the devices, and yield a function that sets the counters ``KERNEL_...`` to the filters' counts.

    First it removes filters and pairs that an earlier process left on these devices; unless the kernel is to carry
    frames, that is all. In the end it removes its own, if this is still permitted: enter it before rights are given up.
    Where the kernel refuses (:class:`NetlinkRefusedError`), nothing is left behind.
    """
    paths = [path or OWN_NETNS for path in (settings.host_netns, settings.wire_netns)]
    with Namespace.open(paths[0]) as host, Namespace.open(paths[1]) as wire:
        near = f"no-host{index_and_address(host, settings.host_name)[0]}"
        far = f"no-wire{index_and_address(wire, settings.wire)[0]}"
        ways: Ways = []

        def remove() -> None:
            remove_redirects(host, settings.host_name)
            remove_redirects(wire, settings.wire)
            # A device that was made anew has another index, so only one end of an old pair may be known.
            remove_link(host, near)
            remove_link(wire, far)

        def read_into(counters: Int64Array) -> None:
            for redirect, frames, octets in ways:
                with contextlib.suppress(NetlinkRefusedError):  # the filter is gone: its counters stay unchanged
                    moved = redirected(wire, redirect)
                    # The kernel counts frames in 32 bits, and octets in 64.
                    counters[frames] += (moved.frames - counters[frames]) & 0xFFFFFFFF
                    counters[octets] = moved.octets

        try:
            remove()
            if settings.bypass == "kernel":
                ways += _join(settings, host, wire, near, far)
            yield read_into
        finally:
            with contextlib.suppress(NetlinkRefusedError):
                remove()


def _join(settings: NicProcess, host_netns: Namespace, wire_netns: Namespace, near: str, far: str) -> Ways:
    """Make the filters, and the pair ``near`` and ``far`` where it is needed."""
    host, wire = settings.host_name, settings.wire
    # The host's frames leave through a TAP, but arrive at the NIC's end of a veth pair.
    sent: Hook = "ingress" if settings.host_is_veth else "egress"
    received: Hook = "egress" if settings.host_is_veth else "ingress"
    named = redirect_program(settings.tag_tos)
    if settings.host_is_veth and is_same_netns(settings.host_netns, settings.wire_netns):
        tx, rx = Redirect(host, sent, wire, "egress"), Redirect(wire, "ingress", host, received)
        add_redirect(wire_netns, tx, named)
    else:
        tx, rx = Redirect(far, "ingress", wire, "egress"), Redirect(wire, "ingress", far, "egress")
        host_netns.add_veth(near, far, settings.wire_netns or OWN_NETNS, PAIR_MTU)
        # The filters come before the ends are up, so neither namespace's stack sees a frame on them.
        add_redirect(host_netns, Redirect(near, "ingress", host, received), EVERYTHING)
        add_redirect(wire_netns, tx, EVERYTHING)
        set_silent(host_netns, near, index_and_address(host_netns, host)[1])
        set_silent(wire_netns, far)
        add_redirect(host_netns, Redirect(host, sent, near, "egress"), named)
    add_redirect(wire_netns, rx, named)
    return [
        (tx, Counter.KERNEL_TX_FRAMES, Counter.KERNEL_TX_OCTETS),
        (rx, Counter.KERNEL_RX_FRAMES, Counter.KERNEL_RX_OCTETS),
    ]
