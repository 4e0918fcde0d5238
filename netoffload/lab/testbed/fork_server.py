"""A process that imports once what all ranks and NICs need, and forks into each of them.

A rank of ``netoffload train`` needs seconds to import torch and load kernels. This process does it once per command,
while the testbed is built. A rank is then a fork of it and starts in some ten milliseconds. Every rank is still its own
process, in which only imports have run::

    mpiexec ── <enter n0> fork_client ┐                                 ┌── rank 0
            ── <enter n1> fork_client ┴── socket ── fork_server ── fork ┴── rank 1

A launcher starts ``fork_client`` where it would start Python. The client hands over its program,
environment, working directory, standard streams, the launcher's descriptor and its namespaces. The fork takes them on
and runs the program. The client ends as the fork ends. A client that gets SIGTERM closes its writing side, and the
server sends the fork SIGTERM. If the client is gone, the server kills the fork.

``/proc/PID/environ`` shows the environment with which a process was started. A fork writes its own one there, because a
testbed finds its processes by it.

Run as a program: ``python -P fork_server.py LISTENER FOLDER MODULE...``, with an inherited listening socket, the folder
to remove at the end, and the modules to import. ``MODULE:FUNCTION`` also calls a function of the module. The server and
all forks end when its standard input closes, because then its owner has ended. The server itself imports only the
standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
"""The length in front of a request, in octets."""
STATUS: Final = struct.Struct("!i")
"""The answer: the fork's wait status (waitpid(2))."""
ERROR_FILE: Final = "error.txt"
"""File in the folder: why the imports failed."""
REQUEST_S: Final = 1.0
"""Time limit for a client's request, which a client sends at once."""
FDS_MAX: Final = 16
HIGH_FD: Final = 256
"""Descriptors are moved to numbers from here on, above all numbers of a launcher's descriptors."""
STANDARD: Final = 3
"""Standard input, output and error come first among a request's descriptors."""
PLACES: Final = 2
"""Then come the root directory, which differs from the server's in a chroot, and the working directory."""
PR_SET_PDEATHSIG: Final = 1
ENVIRONMENT: Final = slice(47, 49)
"""Fields of /proc/PID/stat behind the name: where the first environment starts and ends (proc(5))."""


@dataclass(frozen=True)
class Request:
    """What a fork needs to become a rank.

    Attributes:
        argv: the program: ``-m MODULE ARGUMENT...``, as for ``python``.
        env: the program's whole environment.
        folder: the program's working directory.
        namespaces: kinds of the namespaces whose descriptors follow those of the directories.
        kept: numbers that the program expects for the launcher's descriptors, which come last.
        fds: the descriptors, in this order.
    """

    argv: list[str]
    env: dict[str, str]
    folder: str
    namespaces: list[str]
    kept: list[int]
    fds: list[int] = field(repr=False)


@dataclass
class Fork:
    """A rank that runs: its pid, and its client."""

    pid: int
    pidfd: int
    client: socket.socket


class Server:
    """Clients on one side, forks on the other."""

    def __init__(self, listener: socket.socket, owner_fd: int) -> None:
        """Serve a listening socket until ``owner_fd`` ends."""
        self._listener = listener
        self._owner_fd = owner_fd
        self._forks: list[Fork] = []
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)
        self._poller.register(owner_fd, select.POLLIN)

    def serve(self) -> Request | None:
        """Return the request in each fork, and None in the server after its owner has ended."""
        while True:
            ready = dict(self._poller.poll())
            if self._owner_fd in ready:
                return None
            for fork in [one for one in self._forks if one.client.fileno() in ready]:
                self._heard(fork, ready[fork.client.fileno()])
            for fork in [one for one in self._forks if one.pidfd in ready]:
                self._bury(fork)
            if self._listener.fileno() in ready and (request := self._accept()) is not None:
                return request

    def end(self) -> None:
        """Kill every fork that is left."""
        for fork in self._forks:
            signal.pidfd_send_signal(fork.pidfd, signal.SIGKILL)
            os.waitpid(fork.pid, 0)

    def _accept(self) -> Request | None:
        client = self._listener.accept()[0]
        client.settimeout(REQUEST_S)  # one that says nothing must not keep the others waiting
        try:
            request = received(client)
            client.settimeout(None)
        except (OSError, ValueError, struct.error):  # it is gone, or no client of ours
            client.close()
            return None
        server_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._close()
            client.close()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server_pid:  # it ended meanwhile
                os._exit(1)
            return request
        for fd in request.fds:
            os.close(fd)
        fork = Fork(pid, os.pidfd_open(pid), client)
        self._forks.append(fork)
        self._poller.register(fork.pidfd, select.POLLIN)
        self._poller.register(client, select.POLLIN)
        return None

    def _heard(self, fork: Fork, events: int) -> None:
        """End a fork if its client has closed its writing side, or is gone."""
        is_gone = events & (select.POLLHUP | select.POLLERR)
        self._poller.unregister(fork.client)
        signal.pidfd_send_signal(fork.pidfd, signal.SIGKILL if is_gone else signal.SIGTERM)
        if not is_gone:
            self._poller.register(fork.client, 0)  # poll(2) reports a hang-up even with an empty mask

    def _bury(self, fork: Fork) -> None:
        _, status = os.waitpid(fork.pid, 0)
        self._poller.unregister(fork.pidfd)
        try:
            self._poller.unregister(fork.client)
            fork.client.send(STATUS.pack(status), socket.MSG_NOSIGNAL)
        except (KeyError, OSError):
            pass  # the client is gone, so nobody waits for the status
        os.close(fork.pidfd)
        fork.client.close()
        self._forks.remove(fork)

    def _close(self) -> None:
        """Close the descriptors that a fork must not keep."""
        self._listener.close()
        for fork in self._forks:
            os.close(fork.pidfd)
            fork.client.close()


def received(client: socket.socket) -> Request:
    """Return the request of a client.

    Raises:
        OSError: the client is gone.
        ValueError: the client sent something else.
    """
    head, fds, _flags, _address = socket.recv_fds(client, LENGTH.size, FDS_MAX)
    left, said = LENGTH.unpack(head)[0], b""
    while len(said) < left:
        if not (more := client.recv(left - len(said))):
            raise OSError("the client is gone")
        said += more
    return Request(**json.loads(said), fds=fds)


def become(request: Request) -> None:
    """Take on everything in a request except the program.

    Raises:
        OSError: a namespace or a directory cannot be entered.
    """
    root, folder = request.fds[STANDARD : STANDARD + PLACES]
    others = request.fds[STANDARD + PLACES :]
    namespaces = dict(zip(request.namespaces, others, strict=False))
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, fd in namespaces.items():
        # Only root may enter a namespace, even the one in which a process already is.
        if not os.path.sameopenfile(fd, own := os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)):
            if libc.setns(fd, 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace")
            if kind == "mnt":  # this led to the namespace's own root: out of a chroot
                os.fchdir(root)
                os.chroot(".")
        os.close(own)
        os.close(fd)
    os.fchdir(folder)
    os.close(root)
    os.close(folder)
    for number, fd in enumerate(request.fds[:STANDARD]):
        os.dup2(fd, number)
        os.close(fd)
    # A wanted number may be that of another descriptor in the request: so all are moved up first.
    high = [_moved_up(fd) for fd in others[len(namespaces) :]]
    for number, fd in zip(request.kept, high, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()  # nothing points into the memory of the first environment any more
    os.environ.update(request.env)
    _show_environment(request.env)


def _show_environment(env: dict[str, str]) -> None:
    """Let ``/proc/PID/environ`` show an environment, our own variables first; what finds no room is left out."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[ENVIRONMENT])
    shown = b""
    for name in sorted(env, key=lambda name: not name.startswith("NETOFFLOAD_")):
        entry = os.fsencode(f"{name}={env[name]}") + b"\0"
        shown += entry if len(shown) + len(entry) <= end - start else b""
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _moved_up(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(fd)
    return moved


def main(arguments: list[str]) -> None:
    """Serve; in a fork, run the program that was asked for."""
    listener = socket.socket(fileno=int(arguments[0]))
    try:
        for wanted in arguments[2:]:
            name, _, function = wanted.partition(":")
            module = importlib.import_module(name)
            if function:
                getattr(module, function)()
    except Exception:
        # Clients read this; without a client a failed import is no error.
        with open(os.path.join(arguments[1], ERROR_FILE), "w", encoding="utf-8") as file:
            file.write(traceback.format_exc())
        sys.exit(1)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    server = Server(listener, sys.stdin.fileno())
    request: Any = server.serve()
    if request is None:
        server.end()
        shutil.rmtree(arguments[1], ignore_errors=True)
        return
    become(request)
    _, module, *arguments = request.argv
    sys.argv = [module, *arguments]
    sys.path.insert(0, request.folder)  # as Python does for -m
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
