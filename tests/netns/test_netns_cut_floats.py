"""Writes that cut floats: no value is torn by NICs that start again without any option."""

import asyncio
import contextlib
import itertools
import random
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, connected, gradient
from tests.shared.beds import built, nics_by_hand
from tests.shared.quick_cases import by_day

pytestmark = pytest.mark.slow

PORTS = itertools.count(6900)
LARGE_WRITES = (64, 300, 1447, 1449, 4001, 9000)


@dataclass
class Transfer:
    """One connection: what one end writes and when, what the other end has, and how it ended."""

    near: socket.socket
    far: socket.socket
    octets: bytes
    writes: Sequence[int]
    pause_s: float
    got: bytearray = field(default_factory=bytearray)
    outcome: str = "hung"

    async def carry(self, limit_s: float) -> None:
        """Write and read until the stream ends or an end fails, or for ``limit_s`` seconds."""
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as both:
                both.create_task(self._write())
                both.create_task(self._read())
            self.outcome = "finished"
        except* TimeoutError:
            pass
        except* OSError:
            self.outcome = "reset"

    async def _write(self) -> None:
        loop, at = asyncio.get_running_loop(), 0
        for size in self.writes:
            await loop.sock_sendall(self.near, self.octets[at : at + size])
            at += size
            await asyncio.sleep(self.pause_s)
        self.near.shutdown(socket.SHUT_WR)

    async def _read(self) -> None:
        while octets := await asyncio.get_running_loop().sock_recv(self.far, 262_144):
            self.got += octets

    def torn_values(self) -> int:
        """Return how many values that arrived are neither what was sent nor what the codec makes of it."""
        got = np.frombuffer(self.got[: len(self.got) & ~3], np.uint32)
        sent = np.frombuffer(self.octets, np.uint32)[: got.size]
        wanted = get("inceptionn").round_trip(sent.view(np.float32), 10).view(np.uint32)
        return int(((got != sent) & (got != wanted)).sum())


@contextlib.contextmanager
def transfer(bed: Testbed, octets: int, seed: int, pause_s: float, is_back: bool) -> Iterator[Transfer]:
    """A connection whose writes have 1 to 7 octets for the most part; the others carry nearly all octets."""
    draw = random.Random(seed)
    writes = [4096]  # the kilobyte that the NIC judges comes whole
    while sum(writes) < octets:
        size = draw.randint(1, 7) if draw.random() < 0.6 else draw.choice(LARGE_WRITES)
        writes.append(min(size, octets - sum(writes)))
    with connected(bed, next(PORTS), (TAGGED, TAGGED)) as (near, far):
        ends = (far, near) if is_back else (near, far)
        for sock in ends:
            sock.setblocking(False)
        yield Transfer(*ends, gradient(octets // 4, seed).tobytes(), writes, pause_s)


async def carry_all(transfers: Sequence[Transfer], limit_s: float) -> None:
    await asyncio.gather(*(one.carry(limit_s) for one in transfers))


RESTARTS = [
    (number, nodes, count)
    for count, several in ((20, ((0,), (0, 1))), (100, ((0,),)))
    for number in (signal.SIGTERM, signal.SIGKILL)
    for nodes in several
]
RESTARTS_BY_DAY = [(signal.SIGTERM, (0,), 20), (signal.SIGKILL, (0, 1), 20)]


@pytest.mark.parametrize(("number", "nodes", "count"), by_day(RESTARTS, RESTARTS_BY_DAY))
def test_none_is_torn_and_nothing_hangs_after_a_restart(
    number: signal.Signals, nodes: tuple[int, ...], count: int, tmp_path: Path
) -> None:
    with built() as bed, nics_by_hand(bed, tmp_path) as nics, contextlib.ExitStack() as stack:
        transfers = [stack.enter_context(transfer(bed, 60_000, seed, 0.08, seed % 2 == 1)) for seed in range(count)]

        async def restart() -> None:
            await asyncio.sleep(1.5)
            for node in nodes:
                nics[node].end(number)
            for node in nodes:
                await asyncio.to_thread(nics[node].start)

        async def carry_meanwhile() -> None:
            await asyncio.gather(carry_all(transfers, 60), restart())

        asyncio.run(carry_meanwhile())
    assert [one.torn_values() for one in transfers] == [0] * count
    assert Counter(one.outcome for one in transfers).keys() <= {"finished", "reset"}
    assert all(len(one.got) == len(one.octets) for one in transfers if one.outcome == "finished")
