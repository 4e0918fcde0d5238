"""Many tagged connections at once: none crosses raw."""

import asyncio
import itertools
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, gradient, socket_on
from tests.shared.beds import built

PORTS = itertools.count(7800)
VALUES = gradient(5000)
ROUNDED = get("inceptionn").round_trip(VALUES, 10).view(np.uint32)
LIMIT_S = 60
DESCRIPTORS = 16_384


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, max(DESCRIPTORS, before[1])))
    with built() as made:
        yield made
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def carry(bed: Testbed, count: int, at_a_time: int) -> list[bytes]:
    """Open connections, write the values into each, and return what each of them brought."""
    source, sink = bed.plan.nodes
    loop, opening = asyncio.get_running_loop(), asyncio.Semaphore(at_a_time)

    async def send(near: socket.socket) -> None:
        async with opening:
            await loop.sock_connect(near, listening.getsockname())
        await loop.sock_sendall(near, VALUES.tobytes())
        near.shutdown(socket.SHUT_WR)

    async def receive(far: socket.socket) -> bytes:
        got = bytearray()
        while octets := await loop.sock_recv(far, 262_144):
            got += octets
        return bytes(got)

    with ExitStack() as stack:
        listening = stack.enter_context(socket_on(sink, TAGGED))
        listening.bind((sink.address, next(PORTS)))
        listening.listen(4096)
        nears = [stack.enter_context(socket_on(source, TAGGED)) for _ in range(count)]
        for sock in (listening, *nears):
            sock.setblocking(False)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for near in nears:
                group.create_task(send(near))
            receiving = []
            for _ in nears:
                far = stack.enter_context((await loop.sock_accept(listening))[0])
                receiving.append(group.create_task(receive(far)))
    return [one.result() for one in receiving]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "at_a_time"), [(2000, 2000), (2000, 8)], ids=["at once", "8 at a time"])
def test_no_tagged_connection_of_many_is_raw(bed: Testbed, count: int, at_a_time: int) -> None:
    arrived = [np.frombuffer(got, np.uint32) for got in asyncio.run(carry(bed, count, at_a_time))]
    assert {got.size for got in arrived} == {VALUES.size}
    assert all(((got == VALUES.view(np.uint32)) | (got == ROUNDED)).all() for got in arrived)
    half = VALUES.size // 2
    assert sum(bool((got[half:] == VALUES.view(np.uint32)[half:]).all()) for got in arrived) == 0
