"""Long allreduces and a message through NICs on four ranks: the same bits everywhere, and what the NICs counted."""

import numpy as np

from netoffload_mpi import MPI, CompComm

COUNT = 300_000
comm = CompComm(MPI.COMM_WORLD, require=True)
rank, size = comm.rank, comm.size
vectors = [np.random.default_rng(each).normal(0, 0.01, COUNT).astype(np.float32) for each in range(size)]
for algorithm in ("ring", "hierarchical", "wa"):
    total = vectors[rank].copy()
    comm.Allreduce_comp(MPI.IN_PLACE, total, algorithm=algorithm)
    assert len(set(comm.allgather(total.tobytes()))) == 1
    assert np.abs(total - np.add.reduce(vectors, dtype=np.float64)).max() < size * 2.0**-7
    if algorithm != "wa" or rank != 0:  # the aggregator's answer goes down untagged
        nic = comm.last_info.nic
        assert nic is not None
        assert nic.ratio > 2, (algorithm, nic)
        assert nic.fallbacks == 0
        assert nic.frames > 0
        assert abs(sum(nic.class_shares.values()) - 1) < 1e-9
received = np.zeros(COUNT, np.float32)
comm.Sendrecv_comp(vectors[rank], (rank + 1) % size, 0, received, (rank - 1) % size, 0)
comm.Barrier()  # everybody has received everything, so all of it has passed the NICs
totals = comm.totals()
assert totals.calls == 4, totals
untagged = (size - 1) * 4 * COUNT if rank == 0 else 0  # what the aggregator of "wa" answered
tagged = totals.raw_octets - untagged
assert totals.nic is not None
# What is sent again counts twice, short segments not at all.
assert totals.nic.raw_octets >= 0.9 * tagged > 0, (totals, tagged)
assert totals.nic.fallbacks == 0
print(f"rank {rank} ok", flush=True)
comm.close()
