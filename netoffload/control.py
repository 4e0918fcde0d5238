"""The control socket: one JSON object per line, asked and answered.

A NIC and a testbed's meter each listen on a Unix stream socket. A request is ``{"command": NAME, ...}`` and one
newline; the answer is ``{"ok": true, ...}`` or ``{"ok": false, "error": TEXT}`` and one newline. A connection may carry
any number of requests. File system sockets cross network namespaces, so a rank in ``n0`` reaches its NIC whatever
namespace that lives in.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from netoffload.errors import ControlError, NetOffloadError

MAX_REQUEST_OCTETS: Final = 64 * 1024
"""A request is a few words; more is a mistake or an attack, and closes the connection."""

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

    def __enter__(self) -> ControlServer:
        """Listen and start answering.

        Raises:
            ControlError: the path cannot be bound, or somebody answers there already.
        """
        if self.path.exists():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(str(self.path))
                raise ControlError(f"control socket {self.path} is in use by another process")
            if not self.path.is_socket():
                raise ControlError(
                    f"{self.path} exists and is not a socket: choose another path for the control socket"
                )
            self.path.unlink(missing_ok=True)
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        except OSError as error:
            raise ControlError(f"cannot listen on control socket {self.path}: {error}") from error
        finally:
            os.umask(old_mask)
        self._listener.listen(16)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop accepting and remove the socket file."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._thread.join(timeout=2)
        with contextlib.suppress(PermissionError):  # a NIC is nobody by now; the next one replaces what nobody answers
            self.path.unlink(missing_ok=True)

    def _accept_forever(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return  # closed by __exit__
            threading.Thread(target=self._serve, args=(conn,), name="control-conn", daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        with conn, conn.makefile("rb") as lines, contextlib.suppress(OSError):
            while line := lines.readline(MAX_REQUEST_OCTETS + 1):
                if len(line) > MAX_REQUEST_OCTETS:
                    conn.sendall(_encode_error(f"request longer than {MAX_REQUEST_OCTETS} octets"))
                    return
                conn.sendall(self._answer(line))

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


def _encode_error(text: str) -> bytes:
    return json.dumps({"ok": False, "error": text}).encode() + b"\n"
