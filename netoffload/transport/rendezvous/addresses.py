"""Allgathers between ranks that know a list of addresses: rank 0 listens at its address and collects the values.

A gather has three steps, so that all ranks agree whether it succeeded::

    rank r                                        rank 0
    connects; [r, size, attempt, value]  ──────►  knows the source address before it reads
    {"values": [...]}                    ◄──────  when all values are there
    {"have": true}                       ──────►
    {"go": true}                         ◄──────  when all ranks have the values: only now a gather returns

A connection that has not said which rank it comes from may be a stranger's: rank 0 keeps the newest ``STRANGERS_MAX``.
A rank whose connection ends before an answer connects again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from netoffload.errors import CollectiveError, MalformedError, PeerLostError, UsageError
from netoffload.transport.rendezvous import GRACE_S, MAX_OCTETS, missing, parse
from netoffload.transport.rendezvous.launchers import Attempt

PAUSE_S: Final = 0.05  # pause between two attempts to connect to the first rank, which may start later

STRANGERS_MAX: Final = 64  # most connections that have not said which rank they come from

BACKLOG: Final = 1024
RECV_OCTETS: Final = 64 * 1024

_LENGTH: Final = struct.Struct("!I")
_VALUES, _HAVE, _GO, _ERROR, _ATTEMPT = "values", "have", "go", "error", "attempt"


class Address(NamedTuple):
    """Where a rank is, or where it listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as users write it."""
        return f"{self.host}:{self.port}"


def parse_addresses(lines: Sequence[str]) -> list[Address]:
    """Return the addresses of all ranks, from one ``host:port`` per line; skip empty lines and ``#`` comments."""
    addresses = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError(f"line {number}: {text!r} is not an address: give host:port")
        addresses.append(Address(host, int(port)))
    return addresses


def read_addresses(path: Path) -> list[Address]:
    """Return the addresses in a file; see :func:`parse_addresses`."""
    try:
        return parse_addresses(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text in UTF-8: give a line `HOST:PORT` for each rank") from error


class AddressRendezvous:
    """Allgathers between the ranks of a list. ``attempt`` None: as the environment says."""

    # Rank 0 knows from the list how many ranks there are, and takes connections only from these addresses.

    def __init__(self, addresses: Sequence[Address], rank: int, limit_s: float, attempt: Attempt | None = None) -> None:
        if not 0 <= rank < len(addresses):
            raise UsageError(f"rank {rank} is not in the list of {len(addresses)} addresses, counted from 0")
        self.rank = rank
        self.size = len(addresses)
        self.group: Hashable | None = tuple(addresses)
        self._addresses = addresses
        self._limit_s = limit_s
        self._attempt = attempt or Attempt.of_environment()
        self._lines: dict[int, _Line] = {}  # by rank: to rank 0, or on rank 0 from the others
        self._listener = _Listener(addresses) if rank == 0 and self.size > 1 else None

    @property
    def host(self) -> str:
        """This rank's host, as the others know it."""
        return self._addresses[self.rank].host

    def __call__(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order. If a rank does not come, all ranks that came raise."""
        if self.size == 1:
            return [value]
        deadline_s = time.monotonic() + self._limit_s
        try:
            return self._collect(value, deadline_s) if self.rank == 0 else self._ask(value, deadline_s)
        except BaseException:
            self._close_lines()  # the next gather would take what this one left in them
            raise

    def close(self) -> None:
        """End the connections to rank 0; those of the data plane stay."""
        self._close_lines()
        if self._listener is not None:
            self._listener.close()

    def _close_lines(self) -> None:
        for line in self._lines.values():
            line.conn.close()
        self._lines.clear()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connections."""
        self.close()

    def _ask(self, value: Any, deadline_s: float) -> list[Any]:
        """Send this rank's value to rank 0, and return the values of all ranks."""
        try:
            answer = self._answer([self.rank, self.size, self._attempt, value], deadline_s)
            if _VALUES in answer:
                self._lines[0].send({_HAVE: True}, deadline_s)
                answer |= self._lines[0].receive(deadline_s + GRACE_S)
        except (OSError, TypeError) as error:
            raise PeerLostError(
                f"rank 0 at {self._addresses[0]} did not answer in the set-up: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
        if _ERROR in answer:
            raise PeerLostError(str(answer[_ERROR]))
        values = answer.get(_VALUES)
        if not isinstance(values, list) or len(values) != self.size or _GO not in answer:
            raise MalformedError("rank 0 sent no list of values in the set-up: install the same version everywhere")
        return values

    def _answer(self, words: list[Any], deadline_s: float) -> dict[str, Any]:
        """Send ``words`` to rank 0, and return its answer; connect until one comes, if there is no connection yet."""
        while True:
            is_new = 0 not in self._lines
            if is_new:
                self._lines[0] = _Line(_connect(self._addresses[0], self.host, deadline_s))
            try:
                self._lines[0].send(words, deadline_s)
                answer = self._lines[0].receive(deadline_s + GRACE_S)
                if not isinstance(answer, dict):
                    raise MalformedError("rank 0 sent no answer of this version: install the same one everywhere")
                number = answer.get(_ATTEMPT, self._attempt.number)
                if not isinstance(number, int) or number >= self._attempt.number:
                    return answer  # else a rank 0 that the launcher is about to end still listens
            except ConnectionError:  # it may have taken this rank for one of too many strangers
                if not is_new or time.monotonic() > deadline_s:
                    raise
            self._lines.pop(0).conn.close()
            time.sleep(PAUSE_S)

    def _collect(self, value: Any, deadline_s: float) -> list[Any]:
        """Receive a value from every rank, send all values to all ranks, and return when all have them."""
        values: dict[int, Any] = {0: value}
        have: dict[int, Any] = {0: True}
        try:
            self._receive_all(values, deadline_s)
            gathered = [values[rank] for rank in range(self.size)]
            self._send_all({_VALUES: gathered}, deadline_s)
            self._receive_all(have, deadline_s)
        except CollectiveError as error:
            self._send_all({_ERROR: str(error)}, time.monotonic() + GRACE_S)
            raise
        self._send_all({_GO: True}, deadline_s)
        return gathered

    def _receive_all(self, words: dict[int, Any], deadline_s: float) -> None:
        """Take words from ranks and new connections until there are words of every rank."""
        assert self._listener is not None
        while absent := [rank for rank in range(self.size) if rank not in words]:
            lines = {line.conn.fileno(): rank for rank, line in self._lines.items()}
            poller = select.poll()
            for descriptor in (*lines, *self._listener.descriptors()):
                poller.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poller.poll(max(deadline_s - time.monotonic(), 0) * 1000)]
            if time.monotonic() > deadline_s:
                raise missing(absent, self._limit_s, self._listener.remark)
            for rank in (lines[descriptor] for descriptor in ready if descriptor in lines):
                self._receive_from(rank, words)
            for line, frame in self._listener.open(ready):
                self._identify(line, frame, words)

    def _receive_from(self, rank: int, words: dict[int, Any]) -> None:
        """Take what a known rank sends: one value per gather, then its receipt."""
        try:
            for frame in self._lines[rank].take():
                if rank in words:
                    raise MalformedError(f"rank {rank} sent more than one value in the set-up")
                words[rank] = frame[3] if isinstance(frame, list) and len(frame) == 4 else frame
        except OSError as error:
            raise PeerLostError(f"rank {rank} ended during the set-up: {error.strerror or error}") from error
        except MalformedError as error:
            raise MalformedError(f"rank {rank} in the set-up: {error}") from error

    def _identify(self, line: _Line, frame: Any, words: dict[int, Any]) -> None:
        """Take the first words of a connection; close it if it comes from no rank that is still missing."""
        assert self._listener is not None
        try:
            rank, size, (run, counter, number), value = frame
            is_awaited = size == self.size and rank not in words and rank not in self._lines
            attempt = Attempt(str(run), str(counter), int(number))
        except (TypeError, ValueError, OverflowError):
            is_awaited = False
        if not is_awaited or not self._listener.comes_from(line, rank):
            line.conn.close()
        elif attempt.is_other_than(self._attempt):
            self._listener.remark = f"; rank {rank}'s offer is from {attempt}; this is {self._attempt}"
            with contextlib.suppress(OSError):
                line.send(
                    {_ERROR: self._listener.remark[2:], _ATTEMPT: self._attempt.number}, time.monotonic() + PAUSE_S
                )
            line.conn.close()
        else:
            self._lines[rank], words[rank] = line, value

    def _send_all(self, words: dict[str, Any], deadline_s: float) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):  # it notices by itself
                line.send(words, deadline_s)


class _Line:
    """A connection of frames: a length, and a JSON value of as many octets."""

    def __init__(self, conn: socket.socket, source: str = "") -> None:
        self.conn = conn
        self.source = source
        self._octets = bytearray()
        self._frames: deque[Any] = deque()

    def send(self, words: Any, deadline_s: float) -> None:
        octets = json.dumps(words).encode()
        self.conn.settimeout(max(deadline_s - time.monotonic(), PAUSE_S))
        self.conn.sendall(_LENGTH.pack(len(octets)) + octets)

    def receive(self, deadline_s: float) -> Any:
        """Return the next frame; raise TimeoutError after the deadline, or as :meth:`take`."""
        while not self._frames:
            if time.monotonic() > deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
            self.conn.settimeout(max(deadline_s - time.monotonic(), 0.001))
            self._frames += self.take(0)
        return self._frames.popleft()

    def take(self, flags: int = socket.MSG_DONTWAIT) -> list[Any]:
        """Read once, and return the frames that are whole; raise OSError if the connection ended."""
        try:
            octets = self.conn.recv(RECV_OCTETS, flags)
        except BlockingIOError:
            return []
        if not octets:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        self._octets += octets
        frames = []
        while len(self._octets) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._octets)
            if length > MAX_OCTETS:
                raise MalformedError(f"a frame of {length} octets: no rank of this version sends that")
            end = _LENGTH.size + length
            if len(self._octets) < end:
                break
            frames.append(parse(bytes(self._octets[_LENGTH.size : end]), "a frame"))
            del self._octets[:end]
        return frames


class _Listener:
    """Rank 0's listener, and the connections that have not said which rank they come from."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.remark = ""  # what an error about missing ranks adds
        self._addresses = addresses
        self._sources: dict[str, str] = {}
        self._strangers: dict[int, _Line] = {}  # by descriptor, the oldest first
        try:
            self._socket = socket.create_server(addresses[0], backlog=BACKLOG)
        except OSError as error:
            raise UsageError(f"cannot listen at {addresses[0]}: {error.strerror or error}") from error
        self._socket.setblocking(False)

    def close(self) -> None:
        """Stop listening, and close what no rank is known to use."""
        self._socket.close()
        for line in self._strangers.values():
            line.conn.close()
        self._strangers.clear()

    def descriptors(self) -> list[int]:
        return [self._socket.fileno(), *self._strangers]

    def comes_from(self, line: _Line, rank: Any) -> bool:
        """Return whether a connection comes from the address of a rank."""
        is_rank = isinstance(rank, int) and 0 < rank < len(self._addresses)
        return is_rank and line.source == self._source(self._addresses[rank].host)

    def open(self, ready: Iterable[int]) -> list[tuple[_Line, Any]]:
        """Read from the connections that are ready, and take new ones; return those that spoke, with what they said."""
        spoke = []
        for descriptor in ready:
            if (line := self._strangers.get(descriptor)) is None:
                continue
            try:
                frames = line.take()
            except (OSError, MalformedError):
                self._strangers.pop(descriptor).conn.close()
                continue
            if frames:
                spoke.append((self._strangers.pop(descriptor), frames[0]))
        if self._socket.fileno() in ready:
            self._accept()
        return spoke

    def _accept(self) -> None:
        try:
            conn, (source, _port) = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            if not self._strangers:
                raise CollectiveError(f"rank 0 could not take a connection in the set-up: {error.strerror}") from error
            self._drop_oldest()
            return
        if source not in {self._source(each.host) for each in self._addresses[1:]}:
            conn.close()
            return
        self._strangers[conn.fileno()] = _Line(conn, source)
        if len(self._strangers) > STRANGERS_MAX:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._strangers.pop(next(iter(self._strangers))).conn.close()

    def _source(self, host: str) -> str:
        """Return a host's IPv4 address; "" if its name cannot be resolved now."""
        if not self._sources.get(host):
            with contextlib.suppress(OSError):
                self._sources[host] = socket.gethostbyname(host)
        return self._sources.get(host, "")


def _connect(to: Address, host: str, deadline_s: float) -> socket.socket:
    """Connect from ``host``, and try until the deadline, because rank 0 may start later."""
    while True:
        try:
            return socket.create_connection(to, max(deadline_s - time.monotonic(), PAUSE_S), (host, 0))
        except OSError:
            if time.monotonic() + PAUSE_S > deadline_s:
                raise
            time.sleep(PAUSE_S)
