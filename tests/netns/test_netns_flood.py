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
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.lab.testbed import NodePlan, Testbed
from tests.netns.programs.both_ways import TAGGED, connected, exchange, socket_on
from tests.shared.beds import built
from tests.shared.quick_cases import NIGHT
from tests.soak.events import ip

WORKER = str(Path(__file__).with_name("programs") / "flood_worker.py")
SECONDS = 60 if NIGHT else 5
KEPT = 5000
SILENT_ADDRESS = "10.98.1.78"
"""An address whose hardware address the node knows, but where no host is."""
PORTS = itertools.count(7000)
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@contextlib.contextmanager
def listening(node: NodePlan, port: int) -> Iterator[None]:
    """Let a host take connections, and reset each at once."""

    def reset_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                connection.close()

    with socket_on(node, TAGGED) as server:
        server.settimeout(None)
        server.bind((node.address, port))
        server.listen(4096)
        thread = threading.Thread(target=reset_all)
        thread.start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def worker(bed: Testbed, *words: object) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with bed.popen(0, [sys.executable, WORKER, *map(str, words)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_flood_changes_no_established_flow_and_leaves_room() -> None:
    with built() as bed:
        (source, sink), port = bed.plan.nodes, next(PORTS)
        neighbour = ("neigh", "replace", SILENT_ADDRESS, "lladdr", "02:00:00:00:00:78", "dev", source.device)
        ip("-n", source.netns, *neighbour)
        looks, until_s = 0, time.monotonic() + SECONDS
        with (
            listening(sink, port),
            worker(bed, sink.address, port, KEPT, SILENT_ADDRESS) as user,
            connected(bed, next(PORTS), (TAGGED, TAGGED)) as ends,
        ):
            while time.monotonic() < until_s or looks <= SECONDS:
                exchange(*ends, looks)
                looks += 1
            found = json.loads(user.communicate()[0])
        assert found["begun"] > 1000 * SECONDS
        for seed in range(5):  # new ones are compressed
            with connected(bed, next(PORTS), (TAGGED, TAGGED)) as ends:
                exchange(*ends, seed)
