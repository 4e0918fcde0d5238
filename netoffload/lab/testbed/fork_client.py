"""Asks a fork server for a process, and ends as it ends: ``python -I -S fork_client.py SOCKET -m MODULE ARGUMENT...``.

The client imports only the standard library, and starts in some milliseconds. See
:mod:`~netoffload.lab.testbed.fork_server`. If a variable that imports read differs from the server's environment, the
client becomes a new interpreter instead.
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
"""Kinds of namespaces that each rank of a testbed has for itself."""
LAUNCHER_FDS: Final = ("PMI_FD",)
"""Variables with the number of an inherited descriptor, whose other end MPICH's process manager has."""
ASKED_TO_END: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SERVER_FILE: Final = "server.json"
"""File beside the server's socket: the modules that the server imported, and its environment."""
ERROR_FILE: Final = "error.txt"
"""File beside the server's socket: why its imports failed."""
RANK_ENV: Final = {
    "OMP_NUM_THREADS": "1",  # ranks share this machine's cores
    "PYTHONUNBUFFERED": "1",
}
"""Defaults of every rank's environment, and of the server's; the user's own values win."""
READ_BY_IMPORTS: Final = ("MKL_", "NETOFFLOAD_KERNEL", "NUMBA_", "OMP_", "PYTHON", "XDG_CACHE_HOME")
"""Prefixes of the names of the variables that imports read."""
LENGTH: Final = struct.Struct("!I")
STATUS: Final = struct.Struct("!i")


def read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that imports read; a fork, whose imports are done, ignores them."""
    return {name: value for name, value in env.items() if name.startswith(READ_BY_IMPORTS)}


def imports_as_server(path: str, env: Mapping[str, str]) -> bool:
    """Return whether imports with this environment would do the same as those of the server at a socket."""
    with open(os.path.join(os.path.dirname(path), SERVER_FILE), encoding="utf-8") as file:
        return read_by_imports(json.load(file)["environment"]) == read_by_imports(env)


def ask(server: socket.socket, argv: list[str], env: Mapping[str, str]) -> None:
    """Ask for a fork with this process's environment, folder, descriptors and namespaces."""
    places = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in ("/", ".")]
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES]
    kept = [int(env[name]) for name in LAUNCHER_FDS if name in env]
    said = {"argv": argv, "env": dict(env), "folder": os.getcwd(), "namespaces": NAMESPACES, "kept": kept}
    request = json.dumps(said).encode()
    socket.send_fds(server, [LENGTH.pack(len(request))], [0, 1, 2, *places, *namespaces, *kept])
    server.sendall(request)
    for fd in (*places, *namespaces, *kept):
        os.close(fd)


def answer(server: socket.socket) -> int:
    """Return the fork's wait status (waitpid(2)).

    Raises:
        EOFError: the server ended first.
    """
    said = server.recv(STATUS.size, socket.MSG_WAITALL)
    if len(said) < STATUS.size:
        raise EOFError
    status: int = STATUS.unpack(said)[0]
    return status


def why_it_ended(path: str) -> str:
    """Return why the server at a socket has ended, if it wrote that down."""
    try:
        with open(os.path.join(os.path.dirname(path), ERROR_FILE), encoding="utf-8") as file:
            return file.read().rstrip()
    except OSError:
        return "the process that ranks and NICs are forks of has ended"


def end_as(status: int) -> None:
    """End this process with the exit code or signal of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main(path: str, argv: list[str]) -> None:
    """Ask for a fork, wait for its end, and end likewise."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            if not imports_as_server(path, {**RANK_ENV, **os.environ}):
                os.execv(sys.executable, [sys.executable, *argv])
            server.connect(path)
            ask(server, argv, os.environ)
            for number in ASKED_TO_END:
                signal.signal(number, lambda *_: server.shutdown(socket.SHUT_WR))
            status = answer(server)
        except (OSError, EOFError):
            sys.exit(why_it_ended(path))
    end_as(status)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
