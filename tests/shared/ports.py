"""Ports for servers that start later."""

import contextlib
import secrets
import socket
from pathlib import Path

FIRST = 1024
LEAST = 10_000


def free_port() -> int:
    """A free port of loopback, below those that the kernel gives to whoever asks for any one meanwhile."""
    theirs = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    while True:
        port = FIRST + secrets.randbelow(max(theirs - FIRST, LEAST))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
