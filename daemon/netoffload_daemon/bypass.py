"""The kernel carries what the NIC would not touch: filters that join the host's device and the wire around the process.

A TAP and a wire (each line a filter, ``►`` where it sends its frames)::

    host's namespace                                       wire's namespace
      TAP  egress   ──program──► egress of END  ═══ veth ═══  END ingress ──all──► egress of the wire
      TAP's ingress ◄──all──── ingress of END   ═══ pair ═══  END egress  ◄──program── ingress of the wire

The pair is needed because a filter reaches links of its own namespace only, and because a frame that arrives is "for
this host" or not by the hardware address of the link it came through; the end at the host has the TAP's. A veth host's
end in the wire's namespace needs no pair. What the program names is in :mod:`netoffload.engine.bypass`; the same
program keeps these frames from the packet sockets, which would hear them a second time. Both directions are counted
where frames arrive in the wire's namespace, so that they are counted alike.

**Who undoes it.** The process that makes all this is nobody before its first frame and may not undo it; it tries when
it ends. What stays is harmless. To a TAP without a process nothing crosses, as ever: it has no carrier, and the filter
drops. On a veth pair untagged frames go on crossing, except TCP's first and last ones. The next start makes everything
anew, or removes it, and it goes with the links and namespaces.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.compiled.arrays import Int64Array
from netoffload.engine.bypass import redirect_program
from netoffload.engine.counters import Counter
from netoffload.errors import NetlinkRefusedError
from netoffload.nic_options import NicProcess

if TYPE_CHECKING:
    from netoffload.netlink.redirect import Hook, Redirect

PAIR_MTU: Final = 65535
"""The links it joins have their own; this one must not be smaller."""
OWN_NETNS: Final = "/proc/self/ns/net"


class KernelBypass:
    """The filters and the pair of one NIC; a context manager.

    Make it before rights are given up. Needs pyroute2, which is loaded only then.
    """

    def __init__(self, settings: NicProcess) -> None:
        """Prepare for the devices of ``settings``; nothing is made before the context is entered."""
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._ways: list[tuple[Redirect, Counter, Counter]] = []

    def __enter__(self) -> KernelBypass:
        """Remove what an earlier process left on these devices and join them.

        Raises:
            NetlinkRefusedError: not permitted, or the kernel lacks a part of it; nothing is left.
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
        """Remove it again where that is still permitted."""
        with contextlib.suppress(NetlinkRefusedError):
            self._remove()
        self._stack.close()

    def read_into(self, counters: Int64Array) -> None:
        """Set the counters ``KERNEL_...`` to what the filters have counted; a filter that is gone counts no more."""
        from netoffload.netlink.redirect import redirected

        for redirect, frames, octets in self._ways:
            with contextlib.suppress(NetlinkRefusedError):
                moved = redirected(self._wire, redirect)
                counters[frames], counters[octets] = moved.frames, moved.octets

    def _open(self) -> None:
        from netoffload.netlink import Namespace
        from netoffload.netlink.redirect import index_and_address

        paths = [path or OWN_NETNS for path in (self._settings.host_netns, self._settings.wire_netns)]
        self._host, self._wire = (self._stack.enter_context(Namespace.open(path)) for path in paths)
        self._is_one_netns = Path(paths[0]).stat().st_ino == Path(paths[1]).stat().st_ino
        self._near = f"no-host{index_and_address(self._host, self._settings.host_name)[0]}"
        self._far = f"no-wire{index_and_address(self._wire, self._settings.wire)[0]}"

    def _remove(self) -> None:
        from netoffload.netlink.redirect import remove_link, remove_redirects

        remove_redirects(self._host, self._settings.host_name)
        remove_redirects(self._wire, self._settings.wire)
        # A device that was made anew has another index, so a pair from before may be known by one of its ends only.
        remove_link(self._host, self._near)
        remove_link(self._wire, self._far)

    def _join(self) -> None:
        from netoffload.netlink.redirect import EVERYTHING, Redirect, add_redirect, index_and_address, set_silent

        host, wire = self._settings.host_name, self._settings.wire
        # What the host sends leaves a TAP, but arrives at the NIC's end of a veth pair.
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
            # Before the ends are up: neither namespace's stack ever sees a frame on them.
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
