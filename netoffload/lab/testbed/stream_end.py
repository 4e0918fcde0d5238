"""One end of a TCP connection between two nodes: a stream of float32 of which every value is judged, or a ping-pong.

A node runs this file by its name (``python -I stream_end.py OPTIONS``; OPTIONS is one JSON object), so it imports only
the standard library and, if it judges, NumPy::

    owner (End) ── stdin: "go", "stop" ──►  connect ══ stream ══► listen  ── stdout: lines of JSON ──► owner (End)

Each direction repeats a file of float32, from its own position. A value that arrives is *rounded* (the codec's round
trip), *exact* (as it was sent), *same* (both at once) or *wrong* (neither). The octets behind the last whole float must
arrive as they were sent; where a stream breaks off, they may also begin a rounded one. Values are compared straight
after they were received, when they are still in the cache.

The program reads words on standard input: ``go`` starts the streams of one that ``waits``, ``stop`` lets the writer end
its stream, and the end of the input ends the program. It writes lines: ``ready`` when it listens (or waits), progress
five times a second, and ``result`` or ``error`` at its end. Times are of the monotonic clock, which all namespaces
share.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

PROGRESS_S: Final = 0.2
RETRY_S: Final = 0.02
CONNECT_S: Final = 120
"""Time limit of a connect, whose path may be down for seconds, several times, or not yet up."""
TCP_MD5SIG: Final = 14  # linux/tcp.h
READ_OCTETS: Final = 512 * 1024
"""Largest read: it fits in the cache beside the octets that it is compared with."""
NOISE_OCTETS: Final = 256 * 1024
"""A probe's octets. No codec makes noise shorter, so a probe measures the wire, also if NICs compress any octets."""
WARM_UP_ROUND_TRIPS: Final = 200

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Judge:
    """Takes the octets of one direction into the memory of one block, and compares them as they arrive."""

    def __init__(self, sent: np.ndarray, rounded: np.ndarray, rotation: int = 0) -> None:
        """Judge a stream that repeats uint32[n] ``sent`` and begins with ``sent[rotation]``."""
        import numpy as np  # here, because a probe has no time for it

        self._np = np
        self._sent, self._rounded = np.roll(sent, -rotation), np.roll(rounded, -rotation)
        self._got = np.zeros_like(self._sent)
        self._room = self._got.view(np.uint8).data
        self._got_at, self._rounded_at = self._got.ctypes.data, self._rounded.ctypes.data
        self._differ_before = np.concatenate(([0], np.cumsum(self._sent != self._rounded)))
        self.received_octets = self.values = 0
        self.rounded = self.exact = self.exact_after_begun = self.wrong = 0
        self.first_wrong = -1
        self.examples: list[tuple[int, str, str, str]] = []

    def room(self, octets: int) -> memoryview:
        """Return the memory for at most so many octets that arrive next."""
        start = self.received_octets % len(self._room)
        return self._room[start : start + octets]

    def took(self, count: int) -> None:
        """Judge the floats that the next octets, now in their room, complete."""
        self.received_octets += count
        if more := self.received_octets // 4 - self.values:
            start = self.values % self._got.size
            self._judge(start, start + more)
            self.values += more

    def _judge(self, start: int, end: int) -> None:
        first = 4 * start
        if _libc.memcmp(self._got_at + first, self._rounded_at + first, 4 * end - first) == 0:
            self.rounded += int(self._differ_before[end] - self._differ_before[start])
            return
        got, rounded = self._got[start:end], self._rounded[start:end]
        np, sent = self._np, self._sent[start:end]
        as_rounded, as_sent = got == rounded, got == sent
        only_rounded, only_sent = as_rounded & ~as_sent, as_sent & ~as_rounded
        if exact := int(np.count_nonzero(only_sent)):
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

    def close(self, *, has_end: bool) -> dict[str, Any]:
        """Judge the odd octets at the end and return all findings; ``has_end``: the sender ended the stream."""
        start, odd = self.values % self._got.size, self.received_octets % 4
        sent, rounded, got = (one[start : start + 1].tobytes()[:odd] for one in (self._sent, self._rounded, self._got))
        # No codec rounds a part of a float. But where a stream broke off, the rest of a rounded one is still to come.
        tail_wrong = got != sent and (has_end or got != rounded)
        names = ("received_octets", "values", "rounded", "exact", "exact_after_begun", "wrong", "first_wrong")
        findings = {name: getattr(self, name) for name in names}
        return {**findings, "examples": self.examples, "tail_wrong": int(tail_wrong)}


class Writer:
    """Sends one direction's octets with the writes, pauses and options that its options name.

    Options: ``sent`` (file; None: noise), ``octets`` (None: for ever), ``rotation``; ``write_octets`` (smallest,
    largest, step; default: the whole file), ``rate_octets_per_s``, ``more``, ``cork``, ``whole`` (ends with a float).
    """

    def __init__(self, options: dict[str, Any], stopped: threading.Event) -> None:
        """Send as ``options`` say, to their end or until ``stopped`` is set."""
        path, first = options.get("sent"), 4 * options.get("rotation", 0)
        octets = random.Random(0).randbytes(NOISE_OCTETS) if path is None else Path(path).read_bytes()
        self._block = len(octets)
        self._view = memoryview(octets[first:] + octets + octets[:first])
        self._options, self._stopped = options, stopped
        self._random = random.Random(options.get("seed"))
        self.sent_octets = 0
        self.start_s = 0.0

    def run(self, stream: socket.socket) -> None:
        """Send everything and end the stream."""
        options, draw = self._options, self._random
        octets = sys.maxsize if options.get("octets") is None else options["octets"]
        rate = options.get("rate_octets_per_s") or math.inf
        low, high, step = options.get("write_octets") or (self._block, self._block, 1)
        started_s = self.start_s = time.monotonic()
        writes = 0
        while (left := octets - self.sent_octets) > 0 and not self._stopped.is_set():
            size = min(draw.randrange(low, high + 1, step), left)
            start = self.sent_octets % self._block
            more = socket.MSG_MORE if options.get("more") and draw.random() < 0.5 else 0
            self.sent_octets += stream.send(self._view[start : start + size], more)
            writes += 1
            if options.get("cork") and writes % 16 == 0:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, writes // 16 % 2)
            ahead_s = self.sent_octets / rate - (time.monotonic() - started_s)
            if ahead_s > 0.005:
                self._stopped.wait(ahead_s)
            elif ahead_s < -1:  # after an outage the writer returns to its rate, without a burst to catch up
                started_s = time.monotonic() - self.sent_octets / rate
        while options.get("whole") and self.sent_octets % 4:  # a short count of send(2) may have cut a float
            start = self.sent_octets % self._block
            self.sent_octets += stream.send(self._view[start : start + 4 - self.sent_octets % 4])
        stream.shutdown(socket.SHUT_WR)


class Program:
    """The program: a connection, with its writer in a thread and its reader in the main thread.

    Options: ``role`` (``listen`` or ``connect``), ``address``, ``port``, ``tos``; socket options by name; ``send``, as
    for :class:`Writer`; ``receive``: ``sent``, ``rounded``, ``rotation`` (without files, nothing is judged),
    ``read_octets``, ``pause_share``, ``pause_s``; ``pings``: a ping-pong instead.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._stopped, self._ended, self._go = threading.Event(), threading.Event(), threading.Event()
        self._has_end = False
        self._judge: Judge | None = None
        if (receive := options.get("receive") or {}).get("sent"):
            import numpy as np

            sent, rounded = (np.fromfile(receive[name], "<u4") for name in ("sent", "rounded"))
            self._judge = Judge(sent, rounded, receive.get("rotation", 0))
        self._writer = Writer(options["send"], self._stopped) if options.get("send") is not None else None
        self._error: str | None = None
        self._result: dict[str, Any] = {"elapsed_s": 0.0, "end_s": 0.0}

    def run(self) -> None:
        """Open the connection, carry the streams and write the result."""
        threading.Thread(target=self._obey, daemon=True).start()
        maxseg = 0
        try:
            with self._open() as stream:
                if self._options.get("waits"):
                    say(ready=True)
                    self._go.wait()
                self._carry(stream)
                maxseg = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        except BlockingIOError:
            self._error = self._error or f"nothing came for {self._options['silence_s']} s"
        except OSError as error:
            self._error = self._error or f"{type(error).__name__}: {error}"
        self._ended.set()
        if self._writer is not None:
            self._result |= {"sent_octets": self._writer.sent_octets, "start_s": self._writer.start_s}
        if self._judge is not None:
            self._result |= self._judge.close(has_end=self._has_end)
        if self._error is not None:
            say(error=self._error, result=self._result)
            sys.exit(1)
        say(result=self._result, maxseg=maxseg)

    def _carry(self, stream: socket.socket) -> None:
        if count := self._options.get("pings"):
            self._result["rtt_us"] = self._pass_octet(stream, count)
            return
        opened_s = time.monotonic()
        threads = [threading.Thread(target=self._tell, daemon=True)]
        if self._writer is not None:
            threads.append(threading.Thread(target=self._write, args=(self._writer, stream), daemon=True))
        for thread in threads:
            thread.start()
        if (receive := self._options.get("receive")) is not None:
            self._read(stream, receive)
            self._result["elapsed_s"] = time.monotonic() - opened_s
        for thread in threads[1:]:
            thread.join()

    def _read(self, stream: socket.socket, options: dict[str, Any]) -> None:
        draw, judge = random.Random(options.get("seed")), self._judge
        low, high = options.get("read_octets") or (READ_OCTETS, READ_OCTETS)
        pause_s = options.get("pause_s")
        nowhere = memoryview(bytearray(high if judge is None else 0))
        while True:
            most = high if low == high else draw.randint(low, high)
            if not (count := stream.recv_into(nowhere if judge is None else judge.room(most))):
                self._has_end = self._error is None  # else our writer has shut the connection down
                return
            if judge is not None:
                judge.took(count)
            self._result["end_s"] = time.monotonic()
            if pause_s and draw.random() < options["pause_share"] and not self._stopped.is_set():
                self._stopped.wait(draw.uniform(0, pause_s))

    def _write(self, writer: Writer, stream: socket.socket) -> None:
        try:
            writer.run(stream)
        except OSError as error:
            self._error = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def _pass_octet(self, stream: socket.socket, count: int) -> list[float]:
        """Pass one octet to and fro; return the connector's round-trip times in microseconds."""
        octet, times_ns, connects = bytearray(1), [], self._options["role"] == "connect"
        for _ in range(count + WARM_UP_ROUND_TRIPS):
            start_ns = time.monotonic_ns()
            if connects:
                stream.send(octet)
            if not stream.recv_into(octet):
                raise ConnectionResetError("the other end closed the connection")
            if not connects:
                stream.send(octet)
            times_ns.append(time.monotonic_ns() - start_ns)
        return [time_ns / 1e3 for time_ns in times_ns[WARM_UP_ROUND_TRIPS:]]

    def _open(self) -> socket.socket:
        options = self._options
        address, port = options["address"], options["port"]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if options["role"] == "listen":
            with self._prepare(socket.socket(family)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(1)
                say(ready=True)
                return self._prepare_stream(listener.accept()[0])
        deadline = time.monotonic() + CONNECT_S
        while True:
            sock = self._prepare(socket.socket(family))
            try:
                sock.connect((address, port))
                return self._prepare_stream(sock)
            except OSError:
                sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def _prepare(self, sock: socket.socket) -> socket.socket:
        """Set what must be set before the handshake, on both ends."""
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
            if options.get(key):
                sock.setsockopt(level, name, options[key])
        if options.get("congestion_control"):  # routes through a tunnel do not set it as the testbed's do
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options["congestion_control"].encode())
        if options.get("md5_peer"):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, bytes.fromhex(options["md5_peer"]))
        if options.get("silence_s"):  # the kernel's own time limits: Python's would cost a poll per call
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", options["silence_s"], 0))
        return sock

    def _prepare_stream(self, stream: socket.socket) -> socket.socket:
        if self._options.get("nodelay"):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._options.get("drops_unsent"):  # the link is then free again at once
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self._options.get("silence_s"):  # not of the listener, whose peer may take its time to come
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", self._options["silence_s"], 0))
        return stream

    def _tell(self) -> None:
        while not self._ended.wait(PROGRESS_S):
            judge, sent_octets = self._judge, 0 if self._writer is None else self._writer.sent_octets
            judged = (0, 0, 0) if judge is None else (judge.received_octets, judge.rounded, judge.wrong)
            say(progress=[sent_octets, *judged])

    def _obey(self) -> None:
        for line in sys.stdin:
            {"go": self._go, "stop": self._stopped}[line.strip()].set()
        os._exit(2)  # the process that started this one has ended


_say_lock = threading.Lock()


def say(**words: Any) -> None:
    """Print one JSON line."""
    with _say_lock:
        print(json.dumps(words), flush=True)


class End:
    """An end, for the process that starts it; a context manager that ends it."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]], options: dict[str, Any]) -> None:
        is_light = not (options.get("receive") or {}).get("sent")
        words = [sys.executable, "-I", *(["-S"] if is_light else []), __file__, json.dumps(options)]
        pipe = subprocess.PIPE
        self.process = start(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0)
        self._name = f"the end that {options['role']}s"

    def __enter__(self) -> End:
        """Return the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the program, even if it is still busy."""
        with self.process:
            self.process.kill()

    def go(self) -> None:
        """Let one that waits start."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: read() will say why
            self.process.stdin.write(b"go\n")

    def read(self, timeout_s: float) -> dict[str, Any]:
        """Return the program's next line."""
        from netoffload.errors import RunError

        assert self.process.stdout is not None
        assert self.process.stderr is not None
        # The pipe is unbuffered and the program writes one line at a time, so select() sees every line.
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise RunError(f"{self._name} was silent for {timeout_s:.0f} s")
        if line := self.process.stdout.readline():
            said: dict[str, Any] = json.loads(line)
            if "error" in said:
                raise RunError(f"{self._name}: {said['error']}")
            return said
        words = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        raise RunError(words[-1] if words else f"{self._name} ended without a result")

    def failure(self) -> str | None:
        """Return why the program has ended; None if it runs, or is done."""
        from netoffload.errors import RunError

        if self.process.poll() is not None:
            try:
                self.result(0)
            except RunError as error:
                return str(error)
        return None

    def result(self, timeout_s: float, on_progress: Callable[[list[int]], None] = lambda _: None) -> dict[str, Any]:
        """Wait for the program's end, and return its result; RunError as for :meth:`read`."""
        while "result" not in (said := self.read(timeout_s)):
            if "progress" in said:
                on_progress(said["progress"])
        result: dict[str, Any] = said["result"]
        return result


if __name__ == "__main__":
    Program(json.loads(sys.argv[1])).run()
