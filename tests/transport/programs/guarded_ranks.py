"""Three ranks as threads at one address, ``guarded_ranks.py ADDRESS FILES``: they meet, wait for a line, and work on.

Prints a line of JSON when they wait (ports and names of rank 0's listeners), and one with what they did. FILES is the
limit of open files.
"""

import json
import resource
import sys
import threading
from typing import Any

import numpy as np

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.transport.local_ranks import run_tcp
from netoffload.transport.rounds.exchange import TcpExchange

SIZE = 3
TAG = 5


def body(exchange: TcpExchange) -> dict[str, Any]:
    barrier(exchange)
    if exchange.rank == 0:
        doors = exchange.watch._links._joiner._listeners
        ports = [door.getsockname()[1] for door in doors[:2]]
        print(json.dumps({"ports": ports, "name": doors[2].getsockname()[1:].decode()}), flush=True)
        sys.stdin.readline()
    barrier(exchange)
    into = np.zeros(4, np.float32)
    if exchange.rank == 0:
        exchange.watch.receive(2, TAG, octets_of(into)).wait(30)
    if exchange.rank == 2:
        exchange.watch.send(0, TAG, octets_of(np.full(4, 7, np.float32))).wait(30)
    values = np.full(1000, exchange.rank, np.float32)
    ring_allreduce(exchange, values, tagged=True)
    return {"received": into.tolist(), "sum": float(values[999])}


def main() -> None:
    address, files = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    results = run_tcp(SIZE, body, addresses=[address] * SIZE, timeout_s=20.0, late_s=90.0)
    threads = [one.name for one in threading.enumerate() if one.name.startswith("watch")]
    print(json.dumps({"results": results, "threads": threads}, default=str), flush=True)


main()
