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

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from netoffload.compiled.arrays import Int64Array
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


class KernelBypass:
    """The filters and the pair of one NIC; a context manager, to be made before rights are given up."""

    def __init__(self, settings: NicProcess) -> None:
        """Prepare for the devices of ``settings``; nothing is made before the context is entered."""
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._ways: list[tuple[Redirect, Counter, Counter]] = []

    def __enter__(self) -> KernelBypass:
        """Remove filters and pairs that an earlier process left on these devices, and join the devices.

        Where the kernel refuses (:class:`NetlinkRefusedError`), nothing is left behind.
        """
        self._open()
        try:
            self._remove()
            if self._settings.bypass == "kernel":
                self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the filters and the pair, if this is still permitted."""
        with contextlib.suppress(NetlinkRefusedError):
            self._remove()
        self._stack.close()

    def read_into(self, counters: Int64Array) -> None:
        """Set the counters ``KERNEL_...`` to the filters' counts; if a filter is gone, its counters stay unchanged."""
        for redirect, frames, octets in self._ways:
            with contextlib.suppress(NetlinkRefusedError):
                moved = redirected(self._wire, redirect)
                # The kernel counts frames in 32 bits, and octets in 64.
                counters[frames] += (moved.frames - counters[frames]) & 0xFFFFFFFF
                counters[octets] = moved.octets

    def _open(self) -> None:
        paths = [path or OWN_NETNS for path in (self._settings.host_netns, self._settings.wire_netns)]
        self._host, self._wire = (self._stack.enter_context(Namespace.open(path)) for path in paths)
        self._is_one_netns = Path(paths[0]).stat().st_ino == Path(paths[1]).stat().st_ino
        self._near = f"no-host{index_and_address(self._host, self._settings.host_name)[0]}"
        self._far = f"no-wire{index_and_address(self._wire, self._settings.wire)[0]}"

    def _remove(self) -> None:
        remove_redirects(self._host, self._settings.host_name)
        remove_redirects(self._wire, self._settings.wire)
        # A device that was made anew has another index, so only one end of an old pair may be known.
        remove_link(self._host, self._near)
        remove_link(self._wire, self._far)

    def _join(self) -> None:
        host, wire = self._settings.host_name, self._settings.wire
        # The host's frames leave through a TAP, but arrive at the NIC's end of a veth pair.
        sent: Hook = "ingress" if self._settings.host_is_veth else "egress"
        received: Hook = "egress" if self._settings.host_is_veth else "ingress"
        named = redirect_program(self._settings.tag_tos)
        if self._settings.host_is_veth and self._is_one_netns:
            tx, rx = Redirect(host, sent, wire, "egress"), Redirect(wire, "ingress", host, received)
            add_redirect(self._wire, tx, named)
        else:
            near, far = self._near, self._far
            tx, rx = Redirect(far, "ingress", wire, "egress"), Redirect(wire, "ingress", far, "egress")
            self._host.add_veth(near, far, self._settings.wire_netns or OWN_NETNS, PAIR_MTU)
            # The filters come before the ends are up, so neither namespace's stack sees a frame on them.
            add_redirect(self._host, Redirect(near, "ingress", host, received), EVERYTHING)
            add_redirect(self._wire, tx, EVERYTHING)
            set_silent(self._host, near, index_and_address(self._host, host)[1])
            set_silent(self._wire, far)
            add_redirect(self._host, Redirect(host, sent, near, "egress"), named)
        add_redirect(self._wire, rx, named)
        self._ways = [
            (tx, Counter.KERNEL_TX_FRAMES, Counter.KERNEL_TX_OCTETS),
            (rx, Counter.KERNEL_RX_FRAMES, Counter.KERNEL_RX_OCTETS),
        ]
