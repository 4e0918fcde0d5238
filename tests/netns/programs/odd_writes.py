"""Connections whose writes cut floats: a schedule of writes, and both ends of many connections in one thread each.

Every value that arrives is compared with what was sent, and with what the codec makes of it.
"""

import contextlib
import heapq
import random
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from netoffload.codec import get

LARGE_WRITES: Final = (64, 300, 1447, 1449, 4001, 9000)
SLICE_S: Final = 0.05


def draw_writes(octets: int, draw: random.Random, longest: int = LARGE_WRITES[-1]) -> list[int]:
    """Return lengths of writes: most have 1 to 7 octets, the others carry nearly all octets."""
    large_writes = [size for size in LARGE_WRITES if size <= longest]
    writes: list[int] = []
    left = octets
    while left:
        size = min(draw.randint(1, 7) if draw.random() < 0.6 else draw.choice(large_writes), left)
        writes.append(size)
        left -= size
    return writes


@dataclass
class Transfer:
    """One connection: what one end writes, when, and what the other end has.

    ``done_s`` is when the reader saw the end of the stream, or the first error came; 0: not yet.
    """

    near: socket.socket
    far: socket.socket
    octets: bytes
    writes: list[int]
    pause_s: float
    got: bytearray = field(default_factory=bytearray)
    error: str = ""
    done_s: float = 0.0
    at: int = 0
    next_write: int = 0
    begun_s: float = 0.0

    def outcome(self) -> str:
        """Return ``finished``, ``reset`` or ``hung``."""
        if self.error:
            return "reset"
        return "finished" if self.done_s else "hung"

    def torn_values(self, codec: str, bound_k: int) -> int:
        """Return how many values that arrived are neither what was sent nor what the codec makes of it."""
        sent = np.frombuffer(self.octets, np.uint32)
        got = np.frombuffer(bytes(self.got[: len(self.got) & ~3]), np.uint32)
        wanted = get(codec).round_trip(sent.view(np.float32), bound_k).view(np.uint32)
        if got.size > sent.size:
            return int(got.size)
        return int(((got != sent[: got.size]) & (got != wanted[: got.size])).sum())

    def rounded_share(self, codec: str, bound_k: int) -> float:
        """Return the share of values that arrived as the codec makes them, of those that it changes."""
        sent = np.frombuffer(self.octets, np.uint32)
        got = np.frombuffer(bytes(self.got[: len(self.got) & ~3]), np.uint32)
        wanted = get(codec).round_trip(sent.view(np.float32), bound_k).view(np.uint32)[: got.size]
        changed = wanted != sent[: got.size]
        return float((got == wanted)[changed].mean()) if changed.any() else 0.0


class Writer(threading.Thread):
    """Writes on schedule for many transfers, in one thread, and never waits for one of them."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        super().__init__(name="writer")
        self._transfers = transfers
        self.stop = threading.Event()

    def run(self) -> None:
        """Write until every transfer has ended, or :attr:`stop` is set."""
        due = []
        for number, transfer in enumerate(self._transfers):
            transfer.near.setblocking(False)
            transfer.begun_s = time.monotonic()
            due.append((transfer.begun_s + transfer.pause_s * number / len(self._transfers), number))
        heapq.heapify(due)
        while due and not self.stop.is_set():
            at_s, number = heapq.heappop(due)
            wait_s = at_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            transfer = self._transfers[number]
            if transfer.error:
                continue
            if (pause_s := self._write(transfer)) >= 0:
                heapq.heappush(due, (time.monotonic() + pause_s, number))

    def _write(self, transfer: Transfer) -> float:
        """Write once; return the pause before the next write, -1 after the last."""
        try:
            if transfer.next_write == len(transfer.writes):
                transfer.near.shutdown(socket.SHUT_WR)
                return -1
            size = transfer.writes[transfer.next_write]
            sent = transfer.near.send(transfer.octets[transfer.at : transfer.at + size])
        except BlockingIOError:
            return SLICE_S
        except OSError as error:
            _note_error(transfer, f"write: {error}")
            return -1
        transfer.at += sent
        if sent < size:
            transfer.writes[transfer.next_write] = size - sent
            return SLICE_S
        transfer.next_write += 1
        return transfer.pause_s


def read_all(transfers: Sequence[Transfer], limit_s: float) -> None:
    """Read until every transfer has ended, or for ``limit_s`` seconds."""
    until_s = time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        for transfer in transfers:
            transfer.far.setblocking(False)
            selector.register(transfer.far, selectors.EVENT_READ, transfer)
        while selector.get_map() and time.monotonic() < until_s:
            for key, _ in selector.select(SLICE_S):
                transfer = key.data
                try:
                    octets = transfer.far.recv(262_144)
                except OSError as error:
                    _note_error(transfer, f"read: {error}")
                    octets = b""
                transfer.got += octets
                if not octets:
                    transfer.done_s = transfer.done_s or time.monotonic()
                    selector.unregister(transfer.far)
            for key in [key for key in selector.get_map().values() if key.data.error]:
                selector.unregister(key.fileobj)


def run_transfers(transfers: Sequence[Transfer], limit_s: float) -> None:
    """Write and read until every transfer has ended, or for ``limit_s`` seconds."""
    writer = Writer(transfers)
    writer.start()
    try:
        read_all(transfers, limit_s)
    finally:
        writer.stop.set()
        writer.join()


def close_all(transfers: Sequence[Transfer]) -> None:
    """Close both ends of every transfer."""
    for transfer in transfers:
        for sock in (transfer.near, transfer.far):
            with contextlib.suppress(OSError):
                sock.close()


def _note_error(transfer: Transfer, error: str) -> None:
    transfer.error = transfer.error or error
    transfer.done_s = transfer.done_s or time.monotonic()
