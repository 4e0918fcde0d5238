"""Connections of an unprivileged user: ``flood_worker.py KIND ADDRESS PORT COUNT SECONDS SILENT``.

========== =======================================================================
listen     accept, and reset each connection
hold       accept, and keep each connection open until standard input ends
reset      connect, and wait for the peer's reset
expire     connect; after a line from standard input write, and wait for the time-out
spray      connect to open, closed and silent ports until standard input ends
========== =======================================================================

All sockets bear the tag. It prints ``ready`` when it listens or is connected, and a JSON line with what it did.
"""

import contextlib
import errno
import json
import os
import resource
import select
import selectors
import socket
import struct
import sys
import time

TOS = 0x28
UID = 12_345
BATCH = 500
LINGER = struct.pack("ii", 1, 0)
TCP_USER_TIMEOUT = 18
EXPIRE_MS = 700


def make_socket() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def listen(address: str, port: int, *, resets: bool) -> dict[str, object]:
    """Accept until standard input ends; reset every connection, or keep it open."""
    accepted = 0
    kept: list[socket.socket] = []
    with make_socket() as listening:
        listening.bind((address, port))
        listening.listen(4096)
        listening.setblocking(False)
        print("ready", flush=True)
        while True:
            ready = select.select([listening, sys.stdin], [], [])[0]
            if sys.stdin in ready:
                break
            with contextlib.suppress(BlockingIOError):
                for _ in range(BATCH):
                    connection = listening.accept()[0]
                    accepted += 1
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
                    if resets:
                        connection.close()
                    else:
                        kept.append(connection)
    for connection in kept:
        connection.close()  # by a reset
    return {"accepted": accepted}


def connect(address: str, port: int, count: int, seconds: float) -> list[socket.socket]:
    """Return connections whose handshakes are complete."""
    until_s = time.monotonic() + seconds
    made = []
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            sock = make_socket()
            sock.setblocking(False)
            sock.connect_ex((address, port))
            made.append(sock)
            selector.register(sock, selectors.EVENT_WRITE)
        while selector.get_map() and time.monotonic() < until_s:
            for key, _ in selector.select(0.1):
                selector.unregister(key.fileobj)
        if selector.get_map():
            raise TimeoutError(f"{len(selector.get_map())} of {count} connections are not open after {seconds} s")
    return made


def be_reset(address: str, port: int, count: int, seconds: float) -> dict[str, object]:
    """Open connections in batches and wait until the peer has reset each of them."""
    outcomes: dict[str, int] = {}
    for first in range(0, count, BATCH):
        for sock in connect(address, port, min(BATCH, count - first), seconds):
            outcome = wait_for_end(sock, seconds)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {"outcomes": outcomes}


def wait_for_end(sock: socket.socket, seconds: float) -> str:
    """Return the name of the error with which a connection ends, and close it."""
    with sock:
        sock.settimeout(seconds)
        try:
            return "end" if sock.recv(1) == b"" else "octets"
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "timeout")


def expire(address: str, port: int, count: int, seconds: float) -> dict[str, object]:
    """Open connections, write into each after a line from standard input, and wait until all have timed out."""
    made = connect(address, port, count, seconds)
    print("ready", flush=True)
    sys.stdin.readline()
    for sock in made:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, EXPIRE_MS)
        sock.send(b"\0" * 2000)
    outcomes: dict[str, int] = {}
    for sock in made:
        outcome = wait_for_end(sock, seconds)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {"outcomes": outcomes}


def spray(address: str, port: int, count: int, silent_address: str) -> dict[str, object]:
    """Begin connections to an open port, closed ports and a silent host, as fast as it goes; keep ``count`` sockets."""
    kept: list[socket.socket] = []
    begun = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for target in ((address, port), (address, 2 + begun % 1000), (silent_address, 9)):
            sock = make_socket()
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.connect_ex(target)
            kept.append(sock)
            begun += 1
        while len(kept) > count:
            kept.pop(0).close()
    return {"begun": begun}


def main() -> None:
    kind, address, port, count, seconds, silent_address = sys.argv[1:7]
    number = (int(port), int(count), float(seconds))
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65_536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    if kind in ("listen", "hold"):
        found = listen(address, number[0], resets=kind == "listen")
    elif kind == "spray":
        found = spray(address, number[0], number[1], silent_address)
    else:
        found = {"reset": be_reset, "expire": expire}[kind](address, *number)
    print(json.dumps({"kind": kind, "uid": os.getuid(), **found}), flush=True)


main()
