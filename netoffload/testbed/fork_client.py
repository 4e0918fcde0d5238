"""Asks a fork server for a rank, and ends as the rank ends: ``python -I -S fork_client.py SOCKET ARGUMENT...``.

The arguments are those of ``python -m mpi4py``. It needs nothing but the standard library, and starts in some
milliseconds. See :mod:`~netoffload.testbed.fork_server`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Final

NAMESPACES: Final = ("ipc", "uts", "net", "mnt")
"""Those in which a testbed's ranks are by themselves."""
LAUNCHER_FDS: Final = ("PMI_FD",)
"""Variables that hold the number of an inherited descriptor: MPICH's process manager is at its other end."""
ASKED_TO_END: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LENGTH: Final = struct.Struct("!I")
STATUS: Final = struct.Struct("!i")


def ask(server: socket.socket, argv: list[str], env: Mapping[str, str]) -> None:
    """Ask for a rank that is all that this process is."""
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES]
    kept = [int(env[name]) for name in LAUNCHER_FDS if name in env]
    said = {"argv": argv, "env": dict(env), "folder": os.getcwd(), "namespaces": NAMESPACES, "kept": kept}
    request = json.dumps(said).encode()
    socket.send_fds(server, [LENGTH.pack(len(request))], [0, 1, 2, *namespaces, *kept])
    server.sendall(request)
    for fd in (*namespaces, *kept):
        os.close(fd)


def answer(server: socket.socket) -> int:
    """Return how the rank ended, as waitpid(2) says it; a server that ended first is exit code 1."""
    said = server.recv(STATUS.size, socket.MSG_WAITALL)
    return STATUS.unpack(said)[0] if len(said) == STATUS.size else 1 << 8


def end_as(status: int) -> None:
    """End this process as another one ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(path: str, argv: list[str]) -> None:
    """Ask, and wait."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        ask(server, argv, os.environ)
        for number in ASKED_TO_END:
            signal.signal(number, lambda *_: server.shutdown(socket.SHUT_WR))
        status = answer(server)
    end_as(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
