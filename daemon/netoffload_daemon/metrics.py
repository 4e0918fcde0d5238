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

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from netoffload.control import receive_until, serve_connections
from netoffload.engine.counters import MEANINGS
from netoffload.errors import SystemRefusedError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_HEAD_OCTETS: Final = 8192
DEADLINE_S: Final = 2.0
"""Time for one connection, from its first octet to the last octet of the answer; a scrape takes milliseconds."""
CONNECTIONS_MAX: Final = 8

_OK: Final = "200 OK"
_FAMILIES: Final = {
    "bypass_": ("netoffload_bypass_total", "reason", "frames from the host that were not compressed, by reason"),
    "drop_": ("netoffload_drops_total", "reason", "frames that were dropped, by reason"),
    "fault_": ("netoffload_faults_total", "kind", "faults made on purpose, by kind"),
    "tx_class_": ("netoffload_tx_floats_total", "bits", "floats that were compressed, by the bits they took"),
}
_NANOSECONDS: Final = "_ns"


def exposition(info: Mapping[str, Any], counters: Mapping[str, int], flows: Mapping[str, int]) -> str:
    """Return the metrics of a NIC.

    The MTU in ``info`` (of the control socket) becomes a gauge; all else but the pid are labels of ``netoffload_info``.
    """
    labels = {name: value for name, value in info.items() if name not in ("pid", "mtu")}
    known = [({"direction": name}, count) for name, count in flows.items()]
    lines = [
        *_family("netoffload_info", "gauge", "this NIC: always 1", [(labels, 1)]),
        *_family("netoffload_wire_mtu_octets", "gauge", "the wire's present MTU", [({}, info["mtu"])]),
        *_family("netoffload_flows", "gauge", "flows that carried tagged segments and are in the flow table", known),
    ]
    for name, count in counters.items():
        if name.endswith(_NANOSECONDS):
            metric = f"netoffload_{name.removesuffix(_NANOSECONDS)}_seconds_total"
            lines += _family(metric, "counter", MEANINGS[name].replace("nanoseconds", "seconds"), [({}, count / 1e9)])
        elif not name.startswith(tuple(_FAMILIES)):
            lines += _family(f"netoffload_{name}_total", "counter", MEANINGS[name], [({}, count)])
    for prefix, (metric, label, text) in _FAMILIES.items():
        of_family = {name.removeprefix(prefix): count for name, count in counters.items() if name.startswith(prefix)}
        lines += _family(metric, "counter", text, [({label: name}, count) for name, count in of_family.items()])
    return "\n".join(lines) + "\n"


def _family(metric: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, Any], float]]) -> list[str]:
    lines = [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]
    for labels, value in samples:
        said = ",".join(f'{name}="{_escape(str(label))}"' for name, label in labels.items())
        lines.append(f"{metric}{{{said}}} {value}" if said else f"{metric} {value}")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@contextlib.contextmanager
def serve_metrics(port: int, read: Callable[[], str]) -> Iterator[int]:
    """Serve ``read()`` at http://127.0.0.1:PORT/metrics while the context lasts; yields the port, for 0 a free one.

    Threads of the server call ``read``, once per request, never two at a time.
    """
    one_at_a_time = threading.Lock()

    def serve(conn: socket.socket) -> None:
        head = receive_until(conn, (b"\r\n\r\n", b"\n\n"), b"", MAX_HEAD_OCTETS, DEADLINE_S)
        status = _status(head)
        with one_at_a_time:
            conn.sendall(_response(status, read() if status == _OK else ""))

    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SystemRefusedError(f"cannot serve metrics on 127.0.0.1:{port}: {error.strerror}") from error
    with serve_connections("metrics", listener, serve, CONNECTIONS_MAX, lambda _: _response("503 Busy")):
        yield listener.getsockname()[1]


def _status(head: bytes) -> str:
    """Return the status of the answer to a request (RFC 9110, 15), as far as it was read."""
    method, _, rest = head.partition(b"\n")[0].partition(b" ")
    path, _, version = rest.partition(b" ")
    if not version.startswith(b"HTTP/"):
        return "400 Bad Request"
    if len(head) >= MAX_HEAD_OCTETS:
        return "431 Request Header Fields Too Large"
    if method != b"GET":
        return "501 Not Implemented"
    return _OK if path.partition(b"?")[0] == b"/metrics" else "404 Not Found"


def _response(status: str, text: str = "") -> bytes:
    body = text.encode()
    head = f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n".encode() + body
