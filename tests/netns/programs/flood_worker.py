"""Tagged connections of an unprivileged user: ``flood_worker.py reset|expire|spray ADDRESS PORT COUNT SILENT``.

========== =======================================================================
reset      connect, and wait for the peer's reset
expire     connect; after a line from standard input write, and wait for the time-out
spray      connect to open, closed and silent ports until standard input ends
========== =======================================================================

It prints ``ready`` when ``expire`` is connected, and at the end a JSON line with the errors or with what it began.
"""

import contextlib
import errno
import json
import os
import resource
import select
import socket
import sys
from collections import Counter

UID = 12_345
LIMIT_S = 60.0
TCP_USER_TIMEOUT = 18
EXPIRE_MS = 700


def begin(address: str, port: int) -> socket.socket:
    """Return a socket that connects."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.connect_ex((address, port))
    return sock


def error_of(sock: socket.socket) -> str:
    """Return the name of the error with which a connection ends, and close it."""
    with sock:
        sock.settimeout(LIMIT_S)
        try:
            return "end" if sock.recv(1) == b"" else "octets"
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "timeout")


def wait_for_ends(kind: str, address: str, port: int, count: int) -> dict[str, int]:
    socks = [begin(address, port) for _ in range(count)]
    for sock in socks:
        opening = select.poll()
        opening.register(sock, select.POLLOUT)
        assert opening.poll(LIMIT_S * 1000), "a connection does not open"
    if kind == "expire":
        print("ready", flush=True)
        sys.stdin.readline()
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, EXPIRE_MS)
            sock.send(b"\0" * 2000)
    return Counter(map(error_of, socks))


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


kind, address, port, count, silent_address = sys.argv[1:]
most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setgroups([])
os.setgid(UID)
os.setuid(UID)
if kind == "spray":
    print(json.dumps(spray(address, int(port), int(count), silent_address)))
else:
    print(json.dumps(wait_for_ends(kind, address, int(port), int(count))))
