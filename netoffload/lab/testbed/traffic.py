"""The probe's program: a TCP stream of zeros until standard input closes.

A node runs this file by its name, not as a module of the package (``python -I -S traffic.py receive|send ADDRESS PORT
SEND_BUFFER_OCTETS``), so it imports only the standard library. It ends when its standard input closes (the prober has
seen enough, or is dead), or after ten seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time

LIFETIME_S = 10.0
CHUNK_OCTETS = 256 * 1024
RETRY_S = 0.01


def connect(role: str, address: str, port: int, send_buffer_octets: int) -> socket.socket:
    """Return the connected stream; the receiver listens at ``address``, the sender tries until it does."""
    if role == "receive":
        with socket.create_server((address, port)) as listener:
            listener.settimeout(LIFETIME_S)
            stream = listener.accept()[0]
    else:
        stream = _connect_patiently(address, port)
    stream.settimeout(None)
    if send_buffer_octets > 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_octets)
    # Closing discards unsent octets, so the link is free again at once.
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return stream


def _connect_patiently(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + LIFETIME_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=LIFETIME_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def send_forever(stream: socket.socket) -> None:
    """Send zeros until the stream is closed."""
    chunk = bytes(CHUNK_OCTETS)
    with contextlib.suppress(OSError):
        while True:
            stream.sendall(chunk)


def receive_forever(stream: socket.socket) -> None:
    """Receive and drop octets until the stream is closed."""
    buffer = bytearray(CHUNK_OCTETS)
    with contextlib.suppress(OSError):
        while stream.recv_into(buffer):
            pass


def main(role: str, address: str, port: str, send_buffer_octets: str) -> None:
    """Stream until standard input closes or the lifetime is over."""
    stream = connect(role, address, int(port), int(send_buffer_octets))
    work = send_forever if role == "send" else receive_forever
    threading.Thread(target=work, args=(stream,), daemon=True).start()
    select.select([sys.stdin], [], [], LIFETIME_S)
    stream.close()
    os._exit(0)  # the thread may sit in a system call; nothing is left to flush


if __name__ == "__main__":
    main(*sys.argv[1:])
