"""Tagged connections of an unprivileged user to open, closed and silent ports, until standard input ends.

``flood_worker.py ADDRESS PORT KEPT SILENT`` keeps the latest ones open, and prints as JSON how many it began.
"""

import contextlib
import json
import os
import resource
import select
import socket
import sys

UID = 12_345


def begin(address: str, port: int) -> socket.socket:
    """Return a socket that connects."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.connect_ex((address, port))
    return sock


def spray(address: str, port: int, kept_max: int, silent_address: str) -> dict[str, int]:
    """Begin connections to an open port, closed ports and a silent host, as fast as it goes."""
    kept: list[socket.socket] = []
    begun = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for target in ((address, port), (address, 2 + begun % 1000), (silent_address, 9)):
            kept.append(begin(*target))
            begun += 1
        while len(kept) > kept_max:
            kept.pop(0).close()
    return {"begun": begun}


address, port, kept_max, silent_address = sys.argv[1:]
most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setgroups([])
os.setgid(UID)
os.setuid(UID)
print(json.dumps(spray(address, int(port), int(kept_max), silent_address)))
