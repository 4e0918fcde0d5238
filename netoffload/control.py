"""The control socket: requests and answers of one JSON object per line.

A NIC and a testbed's meter each listen on a Unix stream socket. A request is ``{"command": NAME, ...}`` and one
newline; the answer is ``{"ok": true, ...}`` or ``{"ok": false, "error": TEXT}`` and one newline. Sockets in the file
system cross network namespaces, so a rank in ``n0`` reaches its NIC in any namespace.

A connection may carry any number of requests, one after the other. At most :data:`MAX_CONNECTIONS` connections are
served at a time. A connection that sends no whole request for :data:`IDLE_TIMEOUT_S` is closed, so that idle clients do
not use up a NIC's threads. A line that is not a request gets one line with the error, and the server goes on.

:func:`request` is the client, :func:`serve_control` the server; :func:`serve_connections` serves Prometheus too. The
modules that answer define the commands (``netoffload_daemon.control``, ``netoffload.lab.testbed.build``).
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload import log
from netoffload.errors import ControlError, NetOffloadError, SystemRefusedError

MAX_REQUEST_OCTETS: Final = 64 * 1024
"""A request is a few words; more is a mistake or an attack, and closes the connection."""

MAX_CONNECTIONS: Final = 32
"""Connections that are served at a time, each by a thread. Clients are a testbed, a rank and one or two people."""

IDLE_TIMEOUT_S: Final = 30.0
"""Time for a whole request to arrive, and for the client to take its answer."""

ANSWER_TIMEOUT_S: Final = 1.0
"""Time that answers under way have once the server ends: the request may be what ends it."""

_ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a connection could not be accepted (no descriptors left), so that the thread does not spin."""

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class NicControl:
    """The control socket of one NIC."""

    name: str
    """``RUN/NODE``, or the path that the user gave."""
    path: Path


def request(path: str | Path, command: str, timeout_s: float = 5.0, **arguments: Any) -> dict[str, Any]:
    """Send a request to the socket at ``path`` and return its answer without the ``ok`` field.

    No answer, a late or unreadable one, and an error are a :class:`~netoffload.errors.ControlError`.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as conn:
            conn.settimeout(timeout_s)
            conn.connect(str(path))
            with contextlib.suppress(BrokenPipeError):  # the server refused without reading; it sent the reason
                conn.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with conn.makefile("rb") as lines:
                answer = json.loads(lines.readline() or b"null")
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise ControlError(
            f"control socket {path} did not answer {command!r}: no NIC listens there; start it, or name the path of "
            "its --control"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ControlError(f"control socket {path} did not answer {command!r}: {error}") from error
    if not isinstance(answer, dict) or not answer.pop("ok", False):
        reason = answer.get("error", "no answer") if isinstance(answer, dict) else "no answer"
        raise ControlError(f"control socket {path} refused {command!r}: {reason}")
    return answer


@contextlib.contextmanager
def serve_connections(
    name: str,
    listener: socket.socket,
    serve: Callable[[socket.socket], None],
    connections_max: int,
    refusal: Callable[[str], bytes],
) -> Iterator[None]:
    """Serve the connections to a listening socket, each in a thread; in the end close the listener.

    Open connections end by themselves. An ``OSError`` of ``serve`` says that the client is gone, or too slow. A
    connection beyond ``connections_max`` gets the octets that ``refusal`` makes from the reason.
    """
    free, closing = threading.BoundedSemaphore(connections_max), threading.Event()

    def refuse(conn: socket.socket, reason: str) -> None:
        with conn, contextlib.suppress(OSError):
            conn.setblocking(False)
            conn.sendall(refusal(reason))

    def serve_one(conn: socket.socket) -> None:
        try:
            with conn, contextlib.suppress(OSError):
                serve(conn)
        finally:
            free.release()

    def accept_forever() -> None:
        while not closing.is_set():
            try:
                conn, _ = listener.accept()
            except OSError:
                closing.wait(_ACCEPT_PAUSE_S)
                continue
            if not free.acquire(blocking=False):
                refuse(conn, f"{connections_max} connections are open already: try again later")
                continue
            try:
                threading.Thread(target=serve_one, args=(conn,), name=f"{name}-conn", daemon=True).start()
            except RuntimeError:  # no more threads
                free.release()
                refuse(conn, "the system gives no more threads: try again later")

    listener.listen(16)
    accepting = threading.Thread(target=accept_forever, name=name, daemon=True)
    accepting.start()
    try:
        yield
    finally:
        closing.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        listener.close()
        accepting.join(timeout=2)


@contextlib.contextmanager
def serve_control(path: Path, handlers: Mapping[str, Handler]) -> Iterator[None]:
    """Answer requests on a Unix socket (mode 0600) in separate threads; in the end remove the file.

    Answers under way are given before that, as to the request that ends the process. The socket takes the place of a
    dead process that left its file. ``handlers`` are functions from a request to its answer, by command; their errors
    become answers too.
    """

    answering = threading.Semaphore(MAX_CONNECTIONS)

    def serve(conn: socket.socket) -> None:
        for line in _lines(conn):
            if len(line) > MAX_REQUEST_OCTETS:
                conn.sendall(_encode_error(f"request longer than {MAX_REQUEST_OCTETS} octets"))
                return
            with answering:
                conn.sendall(_answer(line, handlers))

    if path.exists():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
            raise SystemRefusedError(f"control socket {path} is in use by another process")
        if not path.is_socket():
            raise SystemRefusedError(f"{path} exists and is not a socket: choose another path for the control socket")
        path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        old_mask = os.umask(0o177)  # a chmod after bind() would come too late
        try:
            listener.bind(str(path))
        except OSError as error:
            raise SystemRefusedError(f"cannot listen on control socket {path}: {error}") from error
        finally:
            os.umask(old_mask)
        try:
            with serve_connections("control", listener, serve, MAX_CONNECTIONS, _encode_error):
                yield
        finally:
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            for _ in range(MAX_CONNECTIONS):
                answering.acquire(timeout=max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(PermissionError):  # the NIC runs as `nobody` now; the next NIC replaces the file
                path.unlink(missing_ok=True)


def _answer(line: bytes, handlers: Mapping[str, Handler]) -> bytes:
    try:
        wanted = json.loads(line.decode())  # octets might make json look for another encoding, as a file
    except (ValueError, RecursionError):
        return _encode_error("not a JSON object on one line")
    if not isinstance(wanted, dict) or not isinstance(wanted.get("command"), str):
        return _encode_error('no "command" in the request')
    handler = handlers.get(wanted["command"])
    if handler is None:
        return _encode_error(f"unknown command {wanted['command']!r}: one of {', '.join(sorted(handlers))}")
    try:
        return json.dumps({"ok": True, **handler(wanted)}).encode() + b"\n"
    except NetOffloadError as error:
        return _encode_error(str(error))
    except Exception as error:  # a bug, or an argument of an unexpected type: the client gets one line as well
        log.failed("request_failed", error)
        return _encode_error(f"{wanted['command']} failed: {type(error).__name__}: {error}")


def receive_until(conn: socket.socket, ends: tuple[bytes, ...], begun: bytes, most: int, timeout_s: float) -> bytes:
    """Return ``begun`` and what follows, up to one of the ``ends`` or ``most`` octets, or as far as the client sends.

    The client has as long to take its answer. ``OSError``: it went away, or was too slow.
    """
    deadline = time.monotonic() + timeout_s
    while not any(end in begun for end in ends) and len(begun) < most:
        conn.settimeout(max(0.001, deadline - time.monotonic()))
        octets = conn.recv(most)
        if not octets:
            break
        begun += octets
    conn.settimeout(timeout_s)
    return begun


def _lines(conn: socket.socket) -> Iterator[bytes]:
    """Yield requests; a request that is too long is yielded as far as it was read, and is the last one."""
    received = b""
    while True:
        received = receive_until(conn, (b"\n",), received, MAX_REQUEST_OCTETS + 1, IDLE_TIMEOUT_S)
        if b"\n" not in received and len(received) <= MAX_REQUEST_OCTETS:
            return  # a request without its newline is incomplete and gets no answer
        line, _, received = received.partition(b"\n")
        yield line


def _encode_error(text: str) -> bytes:
    return json.dumps({"ok": False, "error": text}).encode() + b"\n"
