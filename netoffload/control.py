"""The control socket: one JSON object per line, asked and answered.

A NIC and a testbed's meter each listen on a Unix stream socket. A request is ``{"command": NAME, ...}`` and one
newline; the answer is ``{"ok": true, ...}`` or ``{"ok": false, "error": TEXT}`` and one newline. File system sockets
cross network namespaces, so a rank in ``n0`` reaches its NIC whatever namespace that lives in.

A connection may carry any number of requests, one after the other. :data:`MAX_CONNECTIONS` connections are served at a
time, and one that sends no whole request for :data:`IDLE_TIMEOUT_S` is closed: nobody holds a NIC's threads. A line
that is no request gets one line with the error, and the server goes on.

This module holds both halves of the framing: :func:`request` for whoever asks, :class:`ControlServer` for whoever
answers. What the commands mean is said where they are answered (``netoffload_daemon.control``,
``netoffload.testbed.meter``).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from netoffload import log
from netoffload.errors import ControlError, NetOffloadError, SystemRefusedError

MAX_REQUEST_OCTETS: Final = 64 * 1024
"""A request is a few words; more is a mistake or an attack, and closes the connection."""

MAX_CONNECTIONS: Final = 32
"""Served at a time; each has a thread. A NIC is asked by its testbed, a rank and a person or two."""

IDLE_TIMEOUT_S: Final = 30.0
"""For a whole request to arrive, and for its answer to be taken."""

_ACCEPT_PAUSE_S: Final = 0.1
"""After a connection could not be accepted (no descriptors left), so that the thread does not spin."""

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def request(path: str | Path, command: str, timeout_s: float = 5.0, **arguments: Any) -> dict[str, Any]:
    """Ask the socket at ``path`` and return its answer without the ``ok`` field.

    Raises:
        ControlError: nobody listens there, the answer is late or unreadable, or it is an error.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
            conn.settimeout(timeout_s)
            conn.connect(str(path))
            with contextlib.suppress(BrokenPipeError):  # refused unread: the reason is there to be read
                conn.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with conn.makefile("rb") as lines:
                answer = json.loads(lines.readline() or b"null")
    except (OSError, ValueError) as error:
        raise ControlError(f"control socket {path} did not answer {command!r}: {error}") from error
    if not isinstance(answer, dict) or not answer.pop("ok", False):
        reason = answer.get("error", "no answer") if isinstance(answer, dict) else "no answer"
        raise ControlError(f"control socket {path} refused {command!r}: {reason}")
    return answer


class ControlServer:
    """Answers requests on a Unix socket from a thread of its own; a context manager that removes the socket file.

    Args:
        path: where to listen; made with mode 0600. A leftover file of a dead process is replaced.
        handlers: command name -> function from the request to the answer. A raised
            :class:`~netoffload.errors.NetOffloadError` becomes an error answer; the server goes on.
    """

    def __init__(self, path: str | Path, handlers: Mapping[str, Handler]) -> None:
        self.path = Path(path)
        self._handlers = dict(handlers)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._accept_forever, name="control", daemon=True)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closing = threading.Event()

    def __enter__(self) -> ControlServer:
        """Listen and start answering.

        Raises:
            SystemRefusedError: the path cannot be bound, or somebody answers there already.
        """
        if self.path.exists():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(str(self.path))
                raise SystemRefusedError(f"control socket {self.path} is in use by another process")
            if not self.path.is_socket():
                raise SystemRefusedError(
                    f"{self.path} exists and is not a socket: choose another path for the control socket"
                )
            self.path.unlink(missing_ok=True)
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            raise SystemRefusedError(f"cannot listen on control socket {self.path}: {error}") from error
        finally:
            os.umask(old_mask)
        self._listener.listen(16)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop accepting and remove the socket file; connections that are open end by themselves."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._thread.join(timeout=2)
        with contextlib.suppress(PermissionError):  # a NIC is nobody by now; the next one replaces what nobody answers
            self.path.unlink(missing_ok=True)

    def _accept_forever(self) -> None:
        while not self._closing.is_set():
            try:
                conn, _ = self._listener.accept()
            except OSError:
                self._closing.wait(_ACCEPT_PAUSE_S)
                continue
            if not self._free.acquire(blocking=False):
                _refuse(conn, f"{MAX_CONNECTIONS} connections are open already: come again later")
                continue
            try:
                threading.Thread(target=self._serve, args=(conn,), name="control-conn", daemon=True).start()
            except RuntimeError:  # the system gives no more threads
                self._free.release()
                _refuse(conn, "the system gives no more threads: come again later")

    def _serve(self, conn: socket.socket) -> None:
        try:
            with conn, contextlib.suppress(OSError):  # gone, or too slow
                for line in _lines(conn):
                    conn.settimeout(IDLE_TIMEOUT_S)
                    if len(line) > MAX_REQUEST_OCTETS:
                        conn.sendall(_encode_error(f"request longer than {MAX_REQUEST_OCTETS} octets"))
                        return
                    conn.sendall(self._answer(line))
        finally:
            self._free.release()

    def _answer(self, line: bytes) -> bytes:
        try:
            asked = json.loads(line)
        except (ValueError, RecursionError):
            return _encode_error("not a JSON object on one line")
        if not isinstance(asked, dict) or not isinstance(asked.get("command"), str):
            return _encode_error('no "command" in the request')
        handler = self._handlers.get(asked["command"])
        if handler is None:
            return _encode_error(f"unknown command {asked['command']!r}: one of {', '.join(sorted(self._handlers))}")
        try:
            return json.dumps({"ok": True, **handler(asked)}).encode() + b"\n"
        except NetOffloadError as error:
            return _encode_error(str(error))
        except Exception as error:  # a bug, or an argument of a type nobody thought of: one line to the client as well
            log.failed("request_failed", error)
            return _encode_error(f"{asked['command']} failed: {type(error).__name__}: {error}")


def _lines(conn: socket.socket) -> Iterator[bytes]:
    """Yield requests; one that is too long is yielded as far as it was read, and is the last.

    Raises:
        OSError: the connection broke, or a request was not whole in time.
    """
    received = b""
    while True:
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while b"\n" not in received and len(received) <= MAX_REQUEST_OCTETS:
            conn.settimeout(max(0.001, deadline - time.monotonic()))
            octets = conn.recv(MAX_REQUEST_OCTETS)
            if not octets:
                return  # what came without its newline was cut short, and asks for nothing
            received += octets
        line, _, received = received.partition(b"\n")
        yield line


def _refuse(conn: socket.socket, text: str) -> None:
    with conn, contextlib.suppress(OSError):
        conn.setblocking(False)
        conn.sendall(_encode_error(text))


def _encode_error(text: str) -> bytes:
    return json.dumps({"ok": False, "error": text}).encode() + b"\n"
