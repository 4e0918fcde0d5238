"""The counters in Prometheus' text format, and an HTTP server for scrapers on this machine.

Format: Prometheus text exposition 0.0.4. A family is one ``# HELP`` line, one ``# TYPE`` line and its samples::

    # HELP netoffload_tx_raw_octets_total octets of payloads that were compressed, before compression
    # TYPE netoffload_tx_raw_octets_total counter
    netoffload_tx_raw_octets_total 274124224

Counters whose names share the prefix ``drop_`` or ``bypass_`` are one family with a label ``reason``; the classes of
floats are one family with a label ``bits``. Nanoseconds become seconds, by convention. All other metrics are named like
their counters.

The server listens only on 127.0.0.1 and answers only ``GET /metrics``. Every connection has a thread, so a slow client
does not delay others. At most :data:`CONNECTIONS_MAX` connections are served at a time; a further one gets 503. A
request may have :data:`MAX_HEAD_OCTETS` octets and take :data:`DEADLINE_S`.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from netoffload.engine.counters import Counter
from netoffload.errors import SystemRefusedError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_HEAD_OCTETS: Final = 8192
DEADLINE_S: Final = 2.0
"""Time for one connection, from its first octet to the last octet of the answer; a scrape takes milliseconds."""
CONNECTIONS_MAX: Final = 8

_BUSY: Final = b"HTTP/1.0 503 too many connections\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_FAMILIES: Final = {
    "drop_": ("netoffload_drops_total", "reason", "frames that were dropped, by reason"),
    "bypass_": ("netoffload_bypass_total", "reason", "frames from the host that were not compressed, by reason"),
    "fault_": ("netoffload_faults_total", "kind", "faults made on purpose, by kind"),
    "tx_class_": ("netoffload_tx_floats_total", "bits", "floats that were compressed, by the bits they took"),
}
_NANOSECONDS: Final = "_ns"


def exposition(info: Mapping[str, Any], counters: Mapping[str, int], flows: Mapping[str, int]) -> str:
    """Return the metrics of a NIC.

    Args:
        info: the control socket's ``info``. The MTU becomes a gauge; all else but the pid becomes labels of
            ``netoffload_info``.
    """
    labels = {name: value for name, value in info.items() if name not in ("pid", "mtu")}
    lines = [*_family("netoffload_info", "gauge", "this NIC: always 1"), _sample("netoffload_info", labels, 1)]
    lines += _family("netoffload_wire_mtu_octets", "gauge", "the wire's present MTU")
    lines.append(_sample("netoffload_wire_mtu_octets", {}, info["mtu"]))
    lines += _family("netoffload_flows", "gauge", "flows that carried tagged segments and are in the flow table")
    lines += [_sample("netoffload_flows", {"direction": name}, count) for name, count in flows.items()]
    begun = set()
    meaning = {counter.name.lower(): counter.meaning for counter in Counter}
    for name, count in sorted(counters.items(), key=lambda pair: _place(pair[0])):
        prefix = _prefix(name)
        if prefix is not None:
            metric, label, text = _FAMILIES[prefix]
            lines += [] if metric in begun else _family(metric, "counter", text)
            begun.add(metric)
            lines.append(_sample(metric, {label: name.removeprefix(prefix)}, count))
        elif name.endswith(_NANOSECONDS):
            metric = f"netoffload_{name.removesuffix(_NANOSECONDS)}_seconds_total"
            text = meaning[name].replace("nanoseconds", "seconds")
            lines += [*_family(metric, "counter", text), _sample(metric, {}, count / 1e9)]
        else:
            metric = f"netoffload_{name}_total"
            lines += [*_family(metric, "counter", meaning[name]), _sample(metric, {}, count)]
    return "\n".join(lines) + "\n"


def _prefix(name: str) -> str | None:
    return next((prefix for prefix in _FAMILIES if name.startswith(prefix)), None)


def _place(name: str) -> str:
    """Return the sort key of a counter, so that samples of a family stand together (the sort is stable)."""
    return _prefix(name) or ""


def _family(metric: str, kind: str, text: str) -> list[str]:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {metric} {escaped}", f"# TYPE {metric} {kind}"]


def _sample(metric: str, labels: Mapping[str, Any], value: float) -> str:
    said = ",".join(f'{name}="{_escape(str(text))}"' for name, text in labels.items())
    return f"{metric}{{{said}}} {value}" if said else f"{metric} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@contextlib.contextmanager
def serve_metrics(port: int, read: Callable[[], str]) -> Iterator[int]:
    """Serve ``read()`` at http://127.0.0.1:PORT/metrics while the context lasts; yields the port.

    Args:
        port: the port to listen on; 0 takes a free one.
        read: makes the text; called in threads of the server, once per request, never by two threads at a time.
    """
    one_at_a_time = threading.Lock()

    def read_alone() -> str:
        with one_at_a_time:
            return read()

    handler = type("_Handler", (_MetricsHandler,), {"read": staticmethod(read_alone)})
    try:
        server = _MetricsServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise SystemRefusedError(f"cannot serve metrics on 127.0.0.1:{port}: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True, kwargs={"poll_interval": 0.2})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _MetricsServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_address = True
    daemon_threads = True  # the server's end does not wait for clients

    def __init__(self, *about: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*about)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one is free; else refuse at once, without waiting for this client."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *about: Any) -> None:
        """Log nothing about a client that went away or was too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*about)


class _MetricsHandler(http.server.BaseHTTPRequestHandler):
    """One connection, one request; the whole head is read before it is parsed."""

    read: Callable[[], str]
    rfile: io.BytesIO
    server_version = "netoffload"
    sys_version = ""

    def setup(self) -> None:
        conn: socket.socket = self.request
        conn.settimeout(DEADLINE_S)
        super().setup()
        self.rfile = io.BytesIO(_read_head(conn))

    def do_GET(self) -> None:
        if len(self.rfile.getbuffer()) >= MAX_HEAD_OCTETS:
            self.send_error(431, f"a request of {MAX_HEAD_OCTETS} octets is too large")
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "ask for /metrics")
            return
        body = self.read().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: scrapes come every few seconds."""


def _read_head(conn: socket.socket) -> bytes:
    """Return a request's octets up to the empty line, the client's end of data, or the limit.

    Raises:
        OSError: the client went away, or was too slow.
    """
    deadline = time.monotonic() + DEADLINE_S
    head = b""
    while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < MAX_HEAD_OCTETS:
        conn.settimeout(max(0.001, deadline - time.monotonic()))
        octets = conn.recv(MAX_HEAD_OCTETS - len(head))
        if not octets:
            break
        head += octets
    conn.settimeout(DEADLINE_S)
    return head
