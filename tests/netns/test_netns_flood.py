"""An unprivileged user fills a NIC's flow table with tagged connections: flows live on, and new ones are compressed."""

import contextlib
import itertools
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.devices.netns import in_netns
from netoffload.engine.flows import SLOTS
from netoffload.lab.testbed import Testbed
from netoffload.netlink import netns_path
from tests.netns.programs.both_ways import TAGGED, connected, exchange, mark
from tests.netns.programs.third_host import HOST_ADDRESS, SILENT_ADDRESS, third_host
from tests.shared.beds import built
from tests.shared.quick_cases import NIGHT
from tests.soak.damage import nft_path, run_nft

pytestmark = pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing drops at the switch")

WORKER = str(Path(__file__).with_name("programs") / "flood_worker.py")
COUNT = 20_000 if NIGHT else SLOTS + SLOTS // 2
SECONDS = 60 if NIGHT else 8
BATCH = 2000
KEPT = 5000
PORTS = itertools.count(7000)
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
DROP_FROM_PORT = """
add table bridge flood
add chain bridge flood f {{ type filter hook forward priority 0; }}
add rule bridge flood f ip protocol tcp tcp sport {port} counter drop
"""


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[Testbed, str]]:
    """Two nodes with NICs, and the namespace of a host without one."""
    with built() as bed, third_host(bed) as plain_netns:
        yield bed, plain_netns


@contextlib.contextmanager
def listening(netns: str, address: str, port: int, *, resets: bool) -> Iterator[None]:
    """Let a host take connections, and reset each at once or in the end."""

    def reset_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                connection.close()

    with in_netns(str(netns_path(netns))):
        server = socket.socket()
    with server:
        mark(server, TAGGED)
        server.bind((address, port))
        server.listen(4096)
        thread = threading.Thread(target=reset_all)
        if resets:
            thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        if resets:
            thread.join()


@contextlib.contextmanager
def worker(bed: Testbed, *words: object) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with bed.popen(0, [sys.executable, WORKER, *map(str, words)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check_that_new_connections_are_compressed(bed: Testbed) -> None:
    for seed in range(5):
        with connected(bed, next(PORTS), (TAGGED, TAGGED)) as ends:
            exchange(*ends, seed)


@pytest.mark.parametrize("has_nic", [True, False], ids=["nic", "no nic"])
@pytest.mark.parametrize(("kind", "error"), [("reset", "ECONNRESET"), ("expire", "ETIMEDOUT")])
def test_connections_that_are_gone_leave_room(scene: tuple[Testbed, str], kind: str, error: str, has_nic: bool) -> None:
    bed, plain_netns = scene
    netns, address = (bed.plan.nodes[1].netns, bed.plan.nodes[1].address) if has_nic else (plain_netns, HOST_ADDRESS)
    outcomes = Counter[str]()
    for first in range(0, COUNT, BATCH):
        port, count = next(PORTS), min(BATCH, COUNT - first)
        with (
            listening(netns, address, port, resets=kind == "reset"),
            worker(bed, kind, address, port, count, "-") as user,
        ):
            assert user.stdin is not None
            assert user.stdout is not None
            if kind == "expire":
                assert user.stdout.readline() == "ready\n"
                run_nft(bed.plan.switch_netns, DROP_FROM_PORT.format(port=port))
                user.stdin.write("go\n")
                user.stdin.flush()
            outcomes.update(json.loads(user.stdout.readline()))
            if kind == "expire":
                run_nft(bed.plan.switch_netns, "delete table bridge flood\n")
    assert outcomes == {error: COUNT}
    check_that_new_connections_are_compressed(bed)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_flood_changes_no_established_flow_and_leaves_room(scene: tuple[Testbed, str]) -> None:
    bed, (sink, port) = scene[0], (scene[0].plan.nodes[1], next(PORTS))
    looks, until_s = 0, time.monotonic() + SECONDS
    with (
        listening(sink.netns, sink.address, port, resets=True),
        worker(bed, "spray", sink.address, port, KEPT, SILENT_ADDRESS) as user,
        connected(bed, next(PORTS), (TAGGED, TAGGED)) as ends,
    ):
        while time.monotonic() < until_s or looks <= SECONDS:
            exchange(*ends, looks)
            looks += 1
        found = json.loads(user.communicate()[0])
    assert found["begun"] > 1000 * SECONDS
    check_that_new_connections_are_compressed(bed)
