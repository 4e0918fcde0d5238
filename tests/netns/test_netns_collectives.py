"""Collectives between nodes whose NICs compress: right values, the NICs' accounts, and NICs and links that fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload import control
from netoffload.errors import RunError
from netoffload.netlink import Namespace
from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan, run_ranks
from netoffload.transport import nearby
from netoffload_mpi.verify.failures import FAMILIES

pytestmark = [pytest.mark.netns, pytest.mark.mpi]

ALL = """
import numpy as np
from netoffload.collectives import reference
from netoffload_mpi import MPI, CompComm

COUNT = 300_000
comm = CompComm(MPI.COMM_WORLD, require=True)
rank, size = comm.rank, comm.size
rounded = comm.precision().quantiser()

def values_of(rank, count=COUNT):
    return np.random.default_rng(rank).normal(0, 0.01, count).astype(np.float32)

def one_hop(got, sent):
    after = sent.copy()
    rounded(after)
    assert (got == after).all()

def identical(values):
    assert len(set(comm.allgather(values.tobytes()))) == 1

vectors = [values_of(each) for each in range(size)]
exact = np.sum(vectors, axis=0, dtype=np.float64)
for algorithm in ("ring", "hierarchical", "wa"):
    total = vectors[rank].copy()
    comm.Allreduce_comp(MPI.IN_PLACE, total, algorithm=algorithm)
    identical(total)
    assert np.abs(total - exact).max() < size * 2.0**-7
    if algorithm != "wa" or rank != 0:  # the aggregator's answer goes down untagged
        nic = comm.last_info.nic
        assert nic.ratio > 2, (algorithm, nic)
        assert nic.fallbacks == 0 and nic.frames > 0
        assert abs(sum(nic.class_shares.values()) - 1) < 1e-9
block = COUNT // size
received = np.zeros(COUNT, np.float32)
comm.Allgather_comp(values_of(rank, block), received)
identical(received)
one_hop(received, np.concatenate([values_of(each, block) for each in range(size)]))
comm.Bcast_comp(received, 2)
identical(received)
received[:] = vectors[1]
comm.Bcast_comp(received, 1)
identical(received)
one_hop(received, vectors[1])
comm.Gather_comp(values_of(rank, block), received if rank == 0 else None)
if rank == 0:  # whose own block stayed where it was
    one_hop(received[block:], np.concatenate([values_of(each, block) for each in range(1, size)]))
mine = np.zeros(block, np.float32)
comm.Scatter_comp(vectors[3] if rank == 3 else None, mine, 3)
if rank != 3:
    one_hop(mine, vectors[3][rank * block : (rank + 1) * block])
comm.Alltoall_comp(vectors[rank], received)
for each in range(size):
    if each != rank:
        one_hop(received[each * block : (each + 1) * block], vectors[each][rank * block : (rank + 1) * block])
comm.Reduce_comp(vectors[rank], received, root=1)
if rank == 1:
    assert np.abs(received - exact).max() < size * 2.0**-7
comm.Reduce_scatter_block_comp(vectors[rank], mine)
assert np.abs(mine - exact[rank * block : (rank + 1) * block]).max() < size * 2.0**-7
comm.Sendrecv_comp(vectors[rank], (rank + 1) % size, 0, received, (rank - 1) % size, 0)
one_hop(received, vectors[(rank - 1) % size])
comm.Barrier()  # everybody has received everything, so all of it has passed the NICs
totals = comm.totals()
assert totals.calls == 12, totals
untagged = (size - 1) * 4 * COUNT if rank == 0 else 0  # what the aggregator of "wa" answered
tagged = totals.raw_octets - untagged
# What is sent again counts twice, short segments not at all.
assert totals.nic.raw_octets >= 0.9 * tagged > 0, (totals, tagged)
assert totals.nic.fallbacks == 0
print(f"rank {rank} ok", flush=True)
comm.close()
"""


def test_all_collectives_through_nics(nic_bed: Testbed, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(ALL)
    result = run_ranks(nic_bed, range(4), ["python", str(program)], timeout_s=90, capture_stdout=True)
    assert sorted(result.stdout.split("\n")[:4]) == [f"rank {rank} ok" for rank in range(4)]


def test_every_call_through_nics_is_the_codecs_arithmetic(nic_bed: Testbed) -> None:
    program = ["python", "-m", "netoffload_mpi.verify", "--ranks", "4", "--size", "3001", "--json"]
    record = json.loads(run_ranks(nic_bed, range(4), program, timeout_s=100, capture_stdout=True).stdout)
    assert record["mismatch"] is None
    assert record["has_nic"]
    assert record["cases"] > 300


def test_compression_that_is_required_and_missing_is_an_error(plain_bed: Testbed, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "import numpy as np\n"
        "from netoffload.errors import CollectiveError\n"
        "from netoffload_mpi import MPI, CompComm\n"
        "comm = CompComm(MPI.COMM_WORLD)\n"
        "try:\n"
        "    comm.Allreduce_comp(MPI.IN_PLACE, np.zeros(9, np.float32))\n"
        "except CollectiveError as error:\n"
        "    print(error, flush=True)\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    result = run_ranks(
        plain_bed,
        range(2),
        ["python", str(program)],
        env={"NETOFFLOAD_REQUIRE": "1"},
        timeout_s=60,
        capture_stdout=True,
    )
    assert result.stdout.count("compression is required, but this rank has no NIC") == 2


def kill_nic(bed: Testbed) -> None:
    os.kill(control.request(str(bed.plan.nodes[1].control_path), "info")["pid"], signal.SIGKILL)


def cut_link(bed: Testbed) -> None:
    node = bed.plan.nodes[1]
    subprocess.run(["ip", "-n", node.wire_netns, "link", "set", node.wire_device, "down"], check=True)


@pytest.mark.parametrize(
    ("strike", "calls"), [(kill_nic, ["allreduce, ring", "allreduce, wa", "send and receive"]), (cut_link, [*FAMILIES])]
)
def test_every_rank_names_the_node_that_is_cut_off_in_every_call(
    strike: Callable[[Testbed], None], calls: list[str], run_id: str, tmp_path: Path
) -> None:
    program = ["python", "-m", "netoffload_mpi.verify.failures", "--timeout", "4", "--out", str(tmp_path)]
    program += [word for call in calls for word in ("--family", call)]
    with Testbed(make_plan(TestbedSettings(3, nic=NicSettings()), run_id), check_rate=False) as bed:

        def launch() -> None:
            with contextlib.suppress(RunError):  # what ranks leave behind is looked at, not how mpiexec ends
                run_ranks(bed, range(3), program, timeout_s=90)

        ranks = threading.Thread(target=launch)
        ranks.start()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("ready.*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        strike(bed)
        ranks.join()
    told = {rank: json.loads((tmp_path / f"told.{rank}").read_text()) for rank in range(3)}
    cut_off = "rank 1 has heard no other rank for 4 s: its link or its NIC is down"
    for call in calls:
        for rank, said in ((0, "rank 1 was silent for 4 s"), (1, cut_off), (2, "rank 1 was silent for 4 s")):
            assert told[rank][call]["error"].startswith(f"PeerLostError: {said}"), (call, rank)


def test_ranks_of_another_namespace_are_not_nearby() -> None:
    token = os.urandom(16)
    with nearby.listen(token), Namespace.anonymous() as elsewhere:
        assert elsewhere.call(lambda: nearby.connect(token)) is None
        assert nearby.connect(token) is not None
