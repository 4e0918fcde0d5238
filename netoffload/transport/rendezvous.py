"""How ranks find each other before there is a connection between them: allgathers of small values.

A rendezvous knows this rank and the number of ranks, and gathers one JSON value from each. This module has two: one
over a key-value store, such as ``torch.distributed.Store``, and one over a list of addresses. MPI's is in
``netoffload_mpi``. All have a time limit, and their errors name the missing ranks. From the first connection on, the
watch knows which ranks live.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

from netoffload.errors import CollectiveError, PeerLostError, UsageError

MAX_OCTETS: Final = 1024 * 1024
"""Longest frame of :class:`AddressRendezvous`; a longer one comes from a stranger."""

PAUSE_S: Final = 0.05
"""Pause between two attempts to connect to the first rank, which may start later."""

GRACE_S: Final = 2.0
"""How much longer the other ranks wait than rank 0, whose error names the missing ranks."""

_LENGTH: Final = struct.Struct("!I")


class Rendezvous(Protocol):
    """A way to gather values from all ranks."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def group(self) -> Hashable | None:
        """Name of this set of ranks: set-ups of the same group share connections; None: this one shares none."""
        ...

    def __call__(self, value: Any) -> Sequence[Any]:
        """Return every rank's value, in rank order; collective.

        Raises:
            PeerLostError: a rank did not come in time; the message names it.
        """
        ...


class Store(Protocol):
    """What a rendezvous needs of a key-value store; ``torch.distributed.Store`` has it."""

    def set(self, key: str, value: str, /) -> object:
        """Set a value."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return a value that is there."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> object:
        """Return when all keys are there; raise RuntimeError, TimeoutError or OSError if they do not come in time."""
        ...


class StoreRendezvous:
    """Allgathers over a key-value store that all ranks share.

    Args:
        store: the store.
        rank: this rank.
        size: number of ranks.
        limit_s: how long a gather may take.
        prefix: prefix of the keys; each rendezvous over the same store needs another one.
        group: name of this set of ranks, if later set-ups of the same ranks shall share connections.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        limit_s: float,
        prefix: str = "netoffload",
        group: Hashable | None = None,
    ) -> None:
        """Gather nothing yet."""
        self.rank = rank
        self.size = size
        self.group = group
        self._store = store
        self._limit_s = limit_s
        self._prefix = prefix
        self._gathers = 0

    def __call__(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order.

        Raises:
            PeerLostError: a rank did not come.
            CollectiveError: the store failed.
        """
        keys = [f"{self._prefix}/{self._gathers}/{rank}" for rank in range(self.size)]
        self._gathers += 1
        deadline_s = time.monotonic() + self._limit_s
        try:
            self._store.set(keys[self.rank], json.dumps(value))
            missing = [rank for rank, key in enumerate(keys) if not self._comes(key, deadline_s)]
            if missing:
                raise _missing(missing, self._limit_s)
            return [json.loads(self._store.get(key)) for key in keys]
        except (RuntimeError, OSError) as error:
            raise CollectiveError(f"the store of the rendezvous does not work: {error}") from error

    def _comes(self, key: str, deadline_s: float) -> bool:
        """Return whether ``key`` comes before the deadline; a key that is there already counts even after it."""
        left_s = max(deadline_s - time.monotonic(), 0.01)
        try:
            self._store.wait([key], timedelta(seconds=left_s))
        except (RuntimeError, OSError):  # TimeoutError is an OSError
            if time.monotonic() < deadline_s - PAUSE_S:  # HashStore times out a little early
                raise
            return False
        return True


class Address(NamedTuple):
    """Where a rank is, or where it listens."""

    host: str
    port: int


def parse_addresses(lines: Sequence[str]) -> list[Address]:
    """Return the addresses of all ranks, from one ``host:port`` per line; empty lines and ``#`` comments are skipped.

    Raises:
        UsageError: a line is not an address.
    """
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
    """Return the addresses in a file; see :func:`parse_addresses`.

    Raises:
        UsageError: the file cannot be read, or a line is not an address.
    """
    try:
        return parse_addresses(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


class AddressRendezvous:
    """Allgathers between ranks that know a list of addresses: rank 0 listens at its address and collects the values.

    Rank 0 knows from the list how many ranks there are, and takes connections only from these addresses.

    Args:
        addresses: the addresses of all ranks, in rank order.
        rank: this rank.
        limit_s: how long a gather may take.

    Raises:
        UsageError: the list has no such rank, or rank 0 cannot listen at its address.
    """

    def __init__(self, addresses: Sequence[Address], rank: int, limit_s: float) -> None:
        """Listen, on the first rank; make no connection yet."""
        if not 0 <= rank < len(addresses):
            raise UsageError(f"rank {rank} is not in the list of {len(addresses)} addresses, counted from 0")
        self.rank = rank
        self.size = len(addresses)
        self.group: Hashable | None = tuple(addresses)
        self._addresses = addresses
        self._limit_s = limit_s
        self._conns: dict[int, socket.socket] = {}
        self._listener: socket.socket | None = None
        if rank == 0 and self.size > 1:
            try:
                self._listener = socket.create_server(addresses[0], backlog=self.size)
            except OSError as error:
                raise UsageError(f"cannot listen at {_name(addresses[0])}: {error.strerror or error}") from error

    @property
    def host(self) -> str:
        """This rank's host, as the others know it."""
        return self._addresses[self.rank].host

    def __call__(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order.

        Raises:
            PeerLostError: a rank did not come, or ended; on all ranks that came.
        """
        if self.size == 1:
            return [value]
        deadline_s = time.monotonic() + self._limit_s
        return self._collect(value, deadline_s) if self.rank == 0 else self._ask(value, deadline_s)

    def close(self) -> None:
        """End the connections to rank 0; those of the data plane stay."""
        for conn in self._conns.values():
            conn.close()
        self._conns.clear()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connections."""
        self.close()

    def _ask(self, value: Any, deadline_s: float) -> list[Any]:
        """Send this rank's value to rank 0, and return the values of all ranks."""
        first = self._addresses[0]
        try:
            if 0 not in self._conns:
                self._conns[0] = _connect(first, self.host, deadline_s)
            conn = self._conns[0]
            conn.settimeout(max(deadline_s - time.monotonic(), 0.0) + GRACE_S)
            _send(conn, [self.rank, self.size, value])
            answer = _receive(conn)
        except (OSError, ValueError) as error:
            raise PeerLostError(
                f"rank 0 at {_name(first)} did not answer in the set-up: {getattr(error, 'strerror', None) or error}"
            ) from error
        if "error" in answer:
            raise PeerLostError(answer["error"])
        return list(answer["values"])

    def _collect(self, value: Any, deadline_s: float) -> list[Any]:
        """Receive a value from every rank, and send all values to all ranks."""
        values: dict[int, Any] = {0: value}
        try:
            while len(values) < self.size:
                self._hear(values, deadline_s)
        except PeerLostError as error:
            self._tell({"error": str(error)})
            raise
        gathered = [values[rank] for rank in range(self.size)]
        self._tell({"values": gathered})
        return gathered

    def _hear(self, values: dict[int, Any], deadline_s: float) -> None:
        """Take what is ready next: a new connection, or the value of a rank that has one."""
        assert self._listener is not None
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        waiting = {conn.fileno(): rank for rank, conn in self._conns.items() if rank not in values}
        for descriptor in waiting:
            poller.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poller.poll(max(deadline_s - time.monotonic(), 0) * 1000)]
        if not ready:
            raise _missing([rank for rank in range(self.size) if rank not in values], self._limit_s)
        for descriptor in ready:
            if descriptor == self._listener.fileno():
                self._accept(values)
                continue
            rank = waiting[descriptor]
            try:
                values[rank] = _receive(self._conns[rank])[2]
            except (OSError, ValueError, LookupError) as error:
                raise PeerLostError(f"rank {rank} ended during the set-up: {error}") from error

    def _accept(self, values: dict[int, Any]) -> None:
        """Take a connection with its first value; close one that comes from no rank."""
        assert self._listener is not None
        conn, (source, _port) = self._listener.accept()
        conn.settimeout(min(self._limit_s, GRACE_S))
        try:
            rank, size, value = _receive(conn)
            is_new = size == self.size and rank in range(1, size) and rank not in self._conns
            if is_new and source == socket.gethostbyname(self._addresses[rank].host):
                self._conns[rank], values[rank] = conn, value
                return
        except (OSError, ValueError, TypeError):
            pass
        conn.close()

    def _tell(self, what: dict[str, Any]) -> None:
        for conn in self._conns.values():
            with contextlib.suppress(OSError):  # it notices by itself
                _send(conn, what)


def _missing(ranks: Sequence[int], limit_s: float) -> PeerLostError:
    names = ", ".join(map(str, ranks))
    return PeerLostError(
        f"rank {names} did not come to the set-up within {limit_s:g} s: its process is stopped, or its host or link is "
        "down"
    )


def _name(address: Address) -> str:
    return f"{address.host}:{address.port}"


def _connect(to: Address, host: str, deadline_s: float) -> socket.socket:
    """Connect from ``host``, and try until the deadline, because rank 0 may start later."""
    while True:
        try:
            return socket.create_connection(to, max(deadline_s - time.monotonic(), PAUSE_S), (host, 0))
        except OSError:
            if time.monotonic() + PAUSE_S > deadline_s:
                raise
            time.sleep(PAUSE_S)


def _send(conn: socket.socket, what: Any) -> None:
    octets = json.dumps(what).encode()
    conn.sendall(_LENGTH.pack(len(octets)) + octets)


def _receive(conn: socket.socket) -> Any:
    """Return what the other end sent.

    Raises:
        ValueError: it is not a frame.
    """
    (length,) = _LENGTH.unpack(_octets(conn.recv, _LENGTH.size))
    if length > MAX_OCTETS:
        raise ValueError(f"a frame of {length} octets")
    return json.loads(_octets(conn.recv, length))


def _octets(receive: Callable[[int], bytes], count: int) -> bytes:
    octets = b""
    while len(octets) < count:
        if not (more := receive(count - len(octets))):
            raise ConnectionResetError("it closed the connection")
        octets += more
    return octets
