"""Devices in trouble: down for a while, or deleted.

The loop counts a frame that a device does not take, and goes on. This module decides whether the device still exists:
only a deleted device ends the loop.
"""

from __future__ import annotations

from errno import EAGAIN, EBADFD, EINTR
from typing import Final

from netoffload.compiled import syscalls
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload_daemon import libc
from netoffload_daemon.port import ENDED, SUSPECT, Port

STOPPED: Final = 0
"""In ``Port.state[ENDED]``: no device was deleted. As the loop's result: stopped as asked, both directions empty."""
HOST_GONE: Final = 1
"""The host's device was deleted."""
WIRE_GONE: Final = 2
"""The wire was deleted."""

BACK_OFF_NS: Final = 100_000_000
"""Pause after a device that is down, so that the loop does not spin on it."""
_LOOKS: Final = 50
"""How often to check whether a device that is down was deleted: the kernel first reports "down", and unbinds the socket
a moment later without a report."""


@kernel
def read_failed(port: Port) -> None:
    """Find out why a device gave no frame; pause if it is down, so that the loop does not spin on it."""
    number = syscalls.errno()
    if number in (EAGAIN, EINTR):
        return
    if number == EBADFD:
        port.state[ENDED] = HOST_GONE
        return
    suspect(port)
    if port.state[ENDED] == STOPPED:
        syscalls.wait(port.polled, 0, BACK_OFF_NS, port.clock)


@kernel
def suspect(port: Port) -> None:
    """Check whether a device that is down was deleted, at once and in the following rounds."""
    port.state[SUSPECT] = _LOOKS
    _look(port)


@inline_kernel
def look_again(port: Port) -> None:
    """Check once more, if a device may have been deleted."""
    if port.state[SUSPECT]:
        port.state[SUSPECT] -= 1
        _look(port)


@kernel
def _look(port: Port) -> None:
    """End the loop if the interface of a packet socket was deleted."""
    if libc.is_interface_gone(port.host, port.address):
        port.state[ENDED] = HOST_GONE
    elif libc.is_interface_gone(port.wire, port.address):
        port.state[ENDED] = WIRE_GONE
