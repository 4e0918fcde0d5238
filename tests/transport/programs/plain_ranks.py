"""Ranks without MPI: ``plain_ranks.py VICTIM ADDRESS...``; each prints a line of JSON, and the victim kills itself.

They are forked from one process, which has loaded everything once.
"""

import json
import os
import signal
import sys

import numpy as np

from netoffload.collectives import barrier, ring_allreduce
from netoffload.collectives.transfer import octets_of
from netoffload.errors import PeerLostError
from netoffload.transport import (
    Address,
    AddressRendezvous,
    Calls,
    DataPlane,
    Lane,
    Settings,
    parse_addresses,
    set_up,
    wait_all,
)
from netoffload.transport.rounds.driver import prepare

COUNT = 100_003


def take_part(rank: int, victim: int, addresses: list[Address]) -> None:
    with AddressRendezvous(addresses, rank, limit_s=60.0) as rendezvous:
        plane = set_up(rendezvous, rendezvous.host, Settings("inceptionn", 10, timeout_s=5.0), DataPlane)
    calls, exchange, size = Calls(plane), plane.exchange, len(addresses)
    values = np.full(COUNT, rank + 1, np.float32)
    calls.run(lambda _: ring_allreduce(exchange, values, tagged=False), [Lane.UNTAGGED])
    in_background = np.full(COUNT, rank + 1, np.float32)
    calls.start(lambda _: ring_allreduce(exchange, in_background, tagged=True), [Lane.TAGGED]).wait()
    barrier(exchange)
    into = np.zeros(3, np.float32)
    coming = exchange.watch.receive((rank - 1) % size, 7, octets_of(into))
    wait_all([exchange.watch.send((rank + 1) % size, 7, octets_of(np.full(3, rank, np.float32))), coming])
    barrier(exchange)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    told = ""
    try:
        while True:
            barrier(exchange)
    except PeerLostError as error:
        told = str(error)
    found = {
        "rank": rank,
        "sums": [float(values.min()), float(values.max()), float(in_background.max())],
        "message": into.tolist(),
        "calls": calls.totals.calls,
        "told": told,
        "has_mpi": "mpi4py" in sys.modules,
    }
    calls.close()
    os.write(1, f"{json.dumps(found)}\n".encode())  # at once: the others print as well


def main(victim: int, lines: list[str]) -> int:
    addresses = parse_addresses(lines)
    prepare()
    pids = []
    for rank in range(len(addresses)):
        if (pid := os.fork()) == 0:
            take_part(rank, victim, addresses)
            os._exit(0)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return int(statuses != [-signal.SIGKILL if rank == victim else 0 for rank in range(len(addresses))])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
