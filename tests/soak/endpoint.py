"""One end of a connection that carries float32 both ways and judges every value that arrives.

A node runs this file by its name (``python -I endpoint.py OPTIONS``), so it imports only the standard library and
NumPy. OPTIONS is one JSON object, as :class:`tests.soak.flows.Flow` writes it.

Each direction of the connection repeats a file of float32, from its own position. A value that arrives is *rounded*
(the codec's round trip), *exact* (as it was sent), *same* (both at once) or *wrong* (neither). The octets behind the
last whole float must arrive as they were sent.

The program reads words on standard input: ``stop`` lets the writer end its stream, and the end of the input ends the
program. It writes JSON lines to standard output: ``ready`` when the listener listens, ``progress`` five times a second,
and ``result`` or ``error`` at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

PROGRESS_S = 0.2
RETRY_S = 0.2
CONNECT_S = 120
"""Time limit of a connect, whose path may be down for seconds, several times."""
TCP_MD5SIG = 14  # linux/tcp.h


class Judge:
    """Compares the octets of one direction with what was sent and with the codec's round trip, as they arrive."""

    def __init__(self, sent: np.ndarray, rounded: np.ndarray, rotation: int) -> None:
        """Judge a stream that repeats uint32[n] ``sent`` and begins with ``sent[rotation]``."""
        self._sent, self._rounded = np.roll(sent, -rotation), np.roll(rounded, -rotation)
        self._rest = b""
        self.received_octets = self.values = 0
        self.rounded = self.exact = self.exact_after_begun = self.wrong = 0
        self.first_wrong = -1
        self.examples: list[tuple[int, str, str, str]] = []

    def take(self, octets: bytes | memoryview) -> None:
        """Judge the octets that arrived next."""
        self.received_octets += len(octets)
        joined = self._rest + bytes(octets)
        whole = len(joined) // 4 * 4
        self._rest = joined[whole:]
        got = np.frombuffer(joined[:whole], "<u4")
        while got.size:
            start = self.values % self._sent.size
            count = min(got.size, self._sent.size - start)
            self._judge(got[:count], start)
            got = got[count:]

    def _judge(self, got: np.ndarray, start: int) -> None:
        sent, rounded = self._sent[start : start + got.size], self._rounded[start : start + got.size]
        as_rounded, as_sent = got == rounded, got == sent
        only_rounded, only_sent = as_rounded & ~as_sent, as_sent & ~as_rounded
        exact = int(np.count_nonzero(only_sent))
        if exact:
            begun = 0 if self.rounded else int(np.argmax(only_rounded)) if only_rounded.any() else got.size
            self.exact_after_begun += int(np.count_nonzero(only_sent[begun:]))
        self.exact += exact
        self.rounded += int(np.count_nonzero(only_rounded))
        wrong = np.flatnonzero(~(as_rounded | as_sent))
        if wrong.size:
            self.wrong += wrong.size
            if self.first_wrong < 0:
                self.first_wrong = self.values + int(wrong[0])
            for at in wrong[: 3 - len(self.examples)]:
                bits = [f"{int(array[at]):08x}" for array in (sent, got, rounded)]
                self.examples.append((self.values + int(at), bits[0], bits[1], bits[2]))
        self.values += got.size

    def close(self) -> dict[str, Any]:
        """Judge the odd octets at the end and return all findings."""
        tail = self._sent[self.values % self._sent.size].tobytes()[: len(self._rest)]
        names = ("received_octets", "values", "rounded", "exact", "exact_after_begun", "wrong", "first_wrong")
        return {
            **{name: getattr(self, name) for name in names},
            "examples": self.examples,
            "tail_wrong": int(tail != self._rest),
        }


class Writer:
    """Sends one direction's octets with the writes, pauses and options that its options name."""

    def __init__(self, options: dict[str, Any], stopped: threading.Event) -> None:
        """Send as ``options`` say, to their end or until ``stopped`` is set."""
        values = np.fromfile(options["sent"], "<u4")
        octets = np.roll(values, -options["rotation"]).view(np.uint8)
        self._block, self._view = octets.size, np.concatenate((octets, octets)).data
        self._options, self._stopped = options, stopped
        self._random = random.Random(options["seed"])
        self.sent_octets = 0

    def run(self, stream: socket.socket) -> None:
        """Send everything and end the stream."""
        options, draw = self._options, self._random
        started_s, writes = time.monotonic(), 0
        while (left := options["octets"] - self.sent_octets) > 0 and not self._stopped.is_set():
            low, high, step = options["write_octets"]
            size = min(draw.randrange(low, high + 1, step), left)
            start = self.sent_octets % self._block
            more = socket.MSG_MORE if options["more"] and draw.random() < 0.5 else 0
            self.sent_octets += stream.send(self._view[start : start + size], more)
            writes += 1
            if options["cork"] and writes % 16 == 0:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, writes // 16 % 2)
            ahead_s = self.sent_octets / options["rate_octets_per_s"] - (time.monotonic() - started_s)
            if ahead_s > 0.005:
                self._stopped.wait(ahead_s)
            elif ahead_s < -1:  # after an outage the writer returns to its rate, without a burst to catch up
                started_s = time.monotonic() - self.sent_octets / options["rate_octets_per_s"]
        self._align(stream)
        stream.shutdown(socket.SHUT_WR)

    def _align(self, stream: socket.socket) -> None:
        """End a stream of whole floats at the end of a float, which a short count of send(2) may have cut."""
        while self._options["whole"] and self.sent_octets % 4:
            start = self.sent_octets % self._block
            self.sent_octets += stream.send(self._view[start : start + 4 - self.sent_octets % 4])


class Endpoint:
    """The program: a connection, with its writer in a thread and its reader in the main thread."""

    def __init__(self, options: dict[str, Any]) -> None:
        """Prepare an endpoint with these options."""
        self._options = options
        self._stopped, self._ended = threading.Event(), threading.Event()
        receive = options["receive"]
        sent, rounded = (np.fromfile(receive[name], "<u4") for name in ("sent", "rounded"))
        self._judge = Judge(sent, rounded, receive["rotation"])
        self._writer = Writer(options["send"], self._stopped)
        self._error: str | None = None
        self._elapsed_s = 0.0

    def run(self) -> None:
        """Open the connection, carry the streams and write the result."""
        threading.Thread(target=self._obey, daemon=True).start()
        try:
            with self._open() as stream:
                opened_s = time.monotonic()
                threading.Thread(target=self._tell, daemon=True).start()
                writer = threading.Thread(target=self._write, args=(stream,), daemon=True)
                writer.start()
                self._read(stream)
                self._elapsed_s = time.monotonic() - opened_s
                writer.join()
                maxseg = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        except OSError as error:
            self._error = self._error or f"{type(error).__name__}: {error}"
        self._ended.set()
        if self._error is not None:
            say(error=self._error, result=self._result())
            sys.exit(1)
        say(result=self._result(), maxseg=maxseg)

    def _result(self) -> dict[str, Any]:
        return {"sent_octets": self._writer.sent_octets, "elapsed_s": self._elapsed_s, **self._judge.close()}

    def _read(self, stream: socket.socket) -> None:
        options = self._options["receive"]
        draw, room = random.Random(options["seed"]), bytearray(options["read_octets"][1])
        view = memoryview(room)
        while count := stream.recv_into(view[: draw.randint(*options["read_octets"])]):
            self._judge.take(view[:count])
            if options["pause_s"] and draw.random() < options["pause_share"] and not self._stopped.is_set():
                self._stopped.wait(draw.uniform(0, options["pause_s"]))

    def _write(self, stream: socket.socket) -> None:
        try:
            self._writer.run(stream)
        except OSError as error:
            self._error = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def _open(self) -> socket.socket:
        options = self._options
        family = socket.AF_INET6 if ":" in options["address"] else socket.AF_INET
        if options["role"] == "listen":
            with self._prepare(socket.socket(family)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((options["address"], options["port"]))
                listener.listen(1)
                say(ready=True)
                stream = listener.accept()[0]
            return self._prepare_stream(stream)
        deadline = time.monotonic() + CONNECT_S
        while True:
            sock = self._prepare(socket.socket(family))
            try:
                sock.connect((options["address"], options["port"]))
                return self._prepare_stream(sock)
            except OSError:
                sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def _prepare(self, sock: socket.socket) -> socket.socket:
        options = self._options
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, options["tos"])
        else:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, options["tos"])
        for level, name, key in (
            (socket.SOL_SOCKET, socket.SO_RCVBUF, "rcvbuf_octets"),
            (socket.SOL_SOCKET, socket.SO_SNDBUF, "sndbuf_octets"),
            (socket.IPPROTO_TCP, socket.TCP_MAXSEG, "maxseg"),
        ):
            if options[key]:
                sock.setsockopt(level, name, options[key])
        if options["md5_peer"]:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, bytes.fromhex(options["md5_peer"]))
        return sock

    def _prepare_stream(self, stream: socket.socket) -> socket.socket:
        if self._options["nodelay"]:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def _tell(self) -> None:
        while not self._ended.wait(PROGRESS_S):
            judge = self._judge
            say(progress=[self._writer.sent_octets, judge.received_octets, judge.rounded, judge.wrong])

    def _obey(self) -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                self._stopped.set()
        os._exit(2)  # the process that started this one has ended


_say_lock = threading.Lock()


def say(**words: Any) -> None:
    """Print one JSON line."""
    with _say_lock:
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    Endpoint(json.loads(sys.argv[1])).run()
