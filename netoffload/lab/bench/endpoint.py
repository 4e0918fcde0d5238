"""The programs at the two ends of a measured connection: a stream whose octets are checked, and a ping-pong.

A node runs this file by its name, not as a module of the package (``python -I endpoint.py ROLE ARGUMENTS``), so it
imports only the standard library and NumPy. Roles::

    receive PORT TOS OCTETS SENT EXPECTED         echo PORT COUNT
    send    ADDRESS PORT TOS OCTETS SENT          ping ADDRESS PORT COUNT

A stream repeats the file SENT until OCTETS have gone. The receiver expects the file EXPECTED, repeated likewise. If
EXPECTED differs from SENT (a lossy codec is on the way), a float32 may also arrive as it was sent: a NIC does not
change a float that a segment's end cuts, nor a segment that would not shrink. Every octet is compared, a few hundred
KiB at a time, straight after they were received, when they are still in the cache.

The programs write lines of JSON to standard output: ``{"ready": true}`` when a listener listens or a sender is
connected, then the result. A sender starts when a line arrives on its standard input. Times are of the monotonic clock,
which all namespaces share. A program ends after half a minute of silence.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SILENCE_S = 30
READ_OCTETS = 512 * 1024
"""Largest read: it fits in the cache beside the octets that it is compared with."""
RETRY_S = 0.02
WARM_UP_ROUND_TRIPS = 200
CONGESTION_CONTROL = b"cubic"
"""Congestion control, set on the socket because routes through a tunnel do not set it as the testbed's do."""

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class WrongContentError(Exception):
    """Octets arrived that are neither the sent ones nor the codec's round trip of them."""


class Checker:
    """Receives a stream into the memory of one block and compares it with what must come.

    Attributes:
        raw_floats: number of floats that arrived as sent, although the codec would change them.
    """

    def __init__(self, sent: np.ndarray, expected: np.ndarray) -> None:
        """Check against uint8[n] ``sent`` and ``expected``; n is a multiple of four."""
        self.raw_floats = 0
        self._sent, self._expected = sent, expected
        self._lossy = not np.array_equal(sent, expected)
        self._got = np.zeros_like(sent)
        self._view = self._got.data
        self._position = 0
        self._odd = False

    def receive(self, stream: socket.socket, left_octets: int) -> int:
        """Read once and compare; return how many octets came (0: the end).

        Raises:
            WrongContentError: a float is neither the sent one nor the codec's round trip of it.
        """
        start = self._position
        room = min(READ_OCTETS, self._got.size - start, left_octets)
        count = stream.recv_into(self._view[start : start + room])
        if _libc.memcmp(self._got.ctypes.data + start, self._expected.ctypes.data + start, count):
            self._odd = True
        self._position += count
        if self._position == self._got.size or count == left_octets or count == 0:
            self._close_block()
        return count

    def _close_block(self) -> None:
        if self._odd:
            end = self._position // 4 * 4
            got, sent, expected = (octets[:end].view("<u4") for octets in (self._got, self._sent, self._expected))
            changed = got != expected
            if not self._lossy or not np.array_equal(got[changed], sent[changed]):
                raise WrongContentError(f"{np.count_nonzero(changed & (got != sent))} float32 arrived wrong")
            self.raw_floats += int(np.count_nonzero(changed))
        self._position, self._odd = 0, False


def receive(port: str, tos: str, octets: str, sent: str, expected: str) -> dict[str, Any]:
    """Receive and check a stream; return when its last octet came, and how many floats came uncompressed."""
    checker = Checker(_read(sent), _read(expected))
    with _accept(int(port), int(tos)) as stream:
        left = int(octets)
        while left and (count := checker.receive(stream, left)):
            left -= count
        end_s = time.monotonic()
        if left:
            raise WrongContentError(f"the stream ended {left} octets early")
        if stream.recv(1):
            raise WrongContentError("more octets arrived than were sent")
    return {"end_s": end_s, "raw_floats": checker.raw_floats}


def send(address: str, port: str, tos: str, octets: str, sent: str) -> dict[str, Any]:
    """Send a stream when a line arrives on standard input; return the time of its first octet."""
    block = _read(sent).data
    with _connect(address, int(port), int(tos)) as stream:
        _say({"ready": True})
        sys.stdin.readline()
        start_s = time.monotonic()
        left = int(octets)
        while left:
            part = block[: min(left, len(block))]
            stream.sendall(part)
            left -= len(part)
    return {"start_s": start_s}


def echo(port: str, count: str) -> dict[str, Any]:
    """Send back ``count`` single octets."""
    octet = bytearray(1)
    with _accept(int(port), 0) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(count) + WARM_UP_ROUND_TRIPS):
            if not stream.recv_into(octet):
                break
            stream.send(octet)
    return {}


def ping(address: str, port: str, count: str) -> dict[str, Any]:
    """Send single octets, each after the previous one came back; return all round-trip times in microseconds."""
    octet = bytearray(1)
    times_ns = []
    with _connect(address, int(port), 0) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _say({"ready": True})
        sys.stdin.readline()
        for _ in range(int(count) + WARM_UP_ROUND_TRIPS):
            start_ns = time.monotonic_ns()
            stream.send(octet)
            if not stream.recv_into(octet):
                raise WrongContentError("the other end closed the connection")
            times_ns.append(time.monotonic_ns() - start_ns)
    return {"rtt_us": [time_ns / 1e3 for time_ns in times_ns[WARM_UP_ROUND_TRIPS:]]}


def _read(path: str) -> np.ndarray:
    return np.frombuffer(Path(path).read_bytes(), np.uint8).copy()


def _prepare(sock: socket.socket, tos: int) -> None:
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)  # before the handshake, on both ends
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    # The kernel's own time limits: Python's would cost a poll per call.
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SILENCE_S, 0))


def _accept(port: int, tos: int) -> socket.socket:
    with socket.socket() as listener:
        _prepare(listener, tos)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))  # a tunnel's address may not be there yet
        listener.listen(1)
        _say({"ready": True})
        stream = listener.accept()[0]
    _prepare(stream, tos)
    return stream


def _connect(address: str, port: int, tos: int) -> socket.socket:
    deadline = time.monotonic() + SILENCE_S
    while True:
        sock = socket.socket()
        _prepare(sock, tos)
        try:
            sock.connect((address, port))
            return sock
        except OSError:  # the tunnel is not up yet: there is no route, or no answer
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


def main(role: str, *arguments: str) -> None:
    """Play one role and print its result."""
    roles: dict[str, Callable[..., dict[str, Any]]] = {"receive": receive, "send": send, "echo": echo, "ping": ping}
    try:
        result = roles[role](*arguments)
    except (WrongContentError, OSError) as error:
        why = "nothing came for half a minute" if isinstance(error, BlockingIOError) else str(error)
        sys.exit(f"{role}: {why}")
    _say(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
