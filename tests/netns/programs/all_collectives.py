"""Every collective through NICs, on four ranks: right values, each rounded once per hop, and what the NICs counted."""

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload_mpi import MPI, CompComm

COUNT = 300_000
comm = CompComm(MPI.COMM_WORLD, require=True)
rank, size = comm.rank, comm.size
precision = comm.precision()
assert precision is not None
rounded = precision.quantiser()


def values_of(rank: int, count: int = COUNT) -> Float32Array:
    return np.random.default_rng(rank).normal(0, 0.01, count).astype(np.float32)


def one_hop(got: Float32Array, sent: Float32Array) -> None:
    after = sent.copy()
    rounded(after)
    assert (got == after).all()


def identical(values: Float32Array) -> None:
    assert len(set(comm.allgather(values.tobytes()))) == 1


vectors = [values_of(each) for each in range(size)]
exact = np.add.reduce(vectors, dtype=np.float64)
for algorithm in ("ring", "hierarchical", "wa"):
    total = vectors[rank].copy()
    comm.Allreduce_comp(MPI.IN_PLACE, total, algorithm=algorithm)
    identical(total)
    assert np.abs(total - exact).max() < size * 2.0**-7
    if algorithm != "wa" or rank != 0:  # the aggregator's answer goes down untagged
        nic = comm.last_info.nic
        assert nic is not None
        assert nic.ratio > 2, (algorithm, nic)
        assert nic.fallbacks == 0
        assert nic.frames > 0
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
assert totals.nic is not None
# What is sent again counts twice, short segments not at all.
assert totals.nic.raw_octets >= 0.9 * tagged > 0, (totals, tagged)
assert totals.nic.fallbacks == 0
print(f"rank {rank} ok", flush=True)
comm.close()
