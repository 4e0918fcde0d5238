"""Devices in trouble: down for a while, or deleted for good.

A frame that a device does not give or take is counted by the loop, which goes on. Here it is decided whether there is
anything to go on with: only a device that is gone ends the loop.
"""

from __future__ import annotations

import errno as error_numbers
from typing import TYPE_CHECKING, Final

from netoffload.compiled.jit import inline_kernel, kernel
from netoffload_daemon import libc
from netoffload_daemon.port import ENDED, SUSPECT

if TYPE_CHECKING:
    from netoffload_daemon.port import Port

STOPPED: Final = 0
"""``Port.state[ENDED]``: nothing happened. The loop's result: asked to stop, and drained."""
HOST_GONE: Final = 1
"""The host's device was deleted."""
WIRE_GONE: Final = 2
"""The wire was deleted."""

BACK_OFF_NS: Final = 100_000_000
"""Pause after a device that is down, so that the loop does not spin on it."""
_LOOKS: Final = 50
"""How often to look, after a device said that it is down, whether it is gone: the kernel says "down" first, and unbinds
the socket a moment later without another word."""

_EAGAIN: Final = error_numbers.EAGAIN
_EINTR: Final = error_numbers.EINTR
_EBADFD: Final = error_numbers.EBADFD


@kernel
def read_failed(host: int, wire: int, port: Port) -> None:
    """Look at why a device gave no frame; do not spin on one that is down."""
    number = libc.errno()
    if number in (_EAGAIN, _EINTR):
        return
    if number == _EBADFD:
        port.state[ENDED] = HOST_GONE
        return
    suspect(host, wire, port)
    if port.state[ENDED] == STOPPED:
        libc.wait(port.polled, 0, BACK_OFF_NS, port.clock)


@kernel
def suspect(host: int, wire: int, port: Port) -> None:
    """Look whether a device is gone that said it is down, now and in the rounds that follow."""
    port.state[SUSPECT] = _LOOKS
    _look(host, wire, port)


@inline_kernel
def look_again(host: int, wire: int, port: Port) -> None:
    """Look once more, as long as a device is suspected."""
    if port.state[SUSPECT]:
        port.state[SUSPECT] -= 1
        _look(host, wire, port)


@kernel
def _look(host: int, wire: int, port: Port) -> None:
    """End the loop if the interface of a packet socket was deleted."""
    if libc.is_interface_gone(host, port.address):
        port.state[ENDED] = HOST_GONE
    elif libc.is_interface_gone(wire, port.address):
        port.state[ENDED] = WIRE_GONE
