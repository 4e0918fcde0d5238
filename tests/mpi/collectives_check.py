"""Every collective against plain MPI on 1 to 8 ranks, in one launch of 8; what test_mpi_comm runs.

Plain loopback changes no value on the way, so with a codec only the owners' own rounding is in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from netoffload.collectives import Float32Array
from netoffload.collectives.schedule import consecutive
from netoffload_mpi import MPI, CompComm

COUNTS = (0, 1, 7, 1024, 30_003)
OPS = (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD)
LARGE = 1_000_003

Buffers = tuple[Float32Array, ...]
Arguments = Callable[..., tuple[Any, ...]]


def whole_numbers(rank: int, count: int) -> Float32Array:
    """Values whose sums and products are exact in float32 in any order."""
    return np.random.default_rng([2, rank]).choice(np.array([-2, -1, 1, 3], np.float32), count)


def uneven(count: int, size: int) -> list[int]:
    return [count * rank // max(size - 1, 1) for rank in range(size)]


def check_collectives(comm: CompComm) -> None:
    """Compare all collectives with mpi4py's own; the values are such that codecs keep them."""
    plain: Any = MPI.Intracomm(comm)  # the same handle, mpi4py's methods
    for count in COUNTS:
        for name, arguments, buffers in cases(comm.rank, comm.size, count):
            expected = run(getattr(plain, name), arguments, buffers)
            got = run(getattr(comm, f"{name}_comp"), arguments, buffers)
            compare(name, count, got, expected)
            if count == 1024:
                compare(name, count, run(started(comm, name), arguments, buffers), expected)


def started(comm: CompComm, name: str) -> Callable[..., None]:
    """The non-blocking variant, waited for."""

    def call(*arguments: Any) -> None:
        getattr(comm, f"I{name.lower()}_comp")(*arguments).Wait()

    return call


def compare(name: str, count: int, got: Buffers, expected: Buffers) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes(), (name, count, ours[:9], theirs[:9])


def run(call: Callable[..., Any], arguments: Arguments, buffers: Buffers) -> Buffers:
    copies = tuple(buffer.copy() for buffer in buffers)
    call(*arguments(*copies))
    return copies


def cases(rank: int, size: int, count: int) -> Iterator[tuple[str, Arguments, Buffers]]:
    """Yield a method's name, its arguments made from buffers, and the buffers."""
    own, wide = whole_numbers(rank, count), whole_numbers(rank, count * size)
    target, wide_target = np.zeros(count, np.float32), np.zeros(count * size, np.float32)
    parts = uneven(count, size)
    displs = [span.start + place for place, span in enumerate(consecutive(parts))]
    room = np.zeros(sum(parts) + size, np.float32)  # with a gap after each block
    mine, root = parts[rank], size // 2

    def spec(buffer: Float32Array) -> list[Any]:
        return [buffer, parts, displs, MPI.FLOAT]

    for op in OPS:
        yield "Allreduce", lambda s, r, op=op: (s, r, op), (own, target)
    yield "Allreduce", lambda r: (MPI.IN_PLACE, r), (own,)
    yield "Reduce", lambda s, r: (s, r if rank == root else None, MPI.MAX, root), (own, target)
    yield "Reduce", lambda r: (MPI.IN_PLACE, r, MPI.SUM, 0) if rank == 0 else (r, None, MPI.SUM, 0), (own,)
    yield "Reduce_scatter_block", lambda s, r: (s, r), (wide, target)
    yield "Reduce_scatter", lambda s, r: (s, r, parts), (whole_numbers(rank, sum(parts)), np.zeros(mine, np.float32))
    yield "Bcast", lambda b: (b, root), (own,)
    yield "Bcast", lambda b: ([b, MPI.FLOAT],), (own,)
    yield "Gather", lambda s, r: (s, r if rank == root else None, root), (own, wide_target)
    yield "Gather", lambda s, r: (MPI.IN_PLACE, r) if rank == 0 else (s, None), (own, wide)
    yield "Gatherv", lambda s, r: ([s, mine, MPI.FLOAT], spec(r) if rank == root else None, root), (own, room)
    yield "Scatter", lambda s, r: (s if rank == root else None, r, root), (wide, target)
    yield "Scatter", lambda s, r: (s, MPI.IN_PLACE) if rank == 0 else (None, r), (wide, target)
    yield "Scatterv", lambda s, r: (spec(s) if rank == root else None, r, root), (wide_room(rank, room), own[:mine])
    yield "Allgather", lambda s, r: (s, r), (own, wide_target)
    yield "Allgather", lambda r: (MPI.IN_PLACE, r), (wide,)
    yield "Allgatherv", lambda s, r: ([s, mine, MPI.FLOAT], spec(r)), (own, room)
    yield "Alltoall", lambda s, r: (s, r), (wide, wide_target)
    yield "Alltoall", lambda r: (MPI.IN_PLACE, r), (wide,)
    yield (
        "Alltoallv",
        lambda s, r: (spec(s), [r, [mine] * size, MPI.FLOAT]),
        (wide_room(rank, room), np.zeros(mine * size, np.float32)),
    )


def wide_room(rank: int, room: Float32Array) -> Float32Array:
    return whole_numbers(rank, room.size)


def check_large(comm: CompComm) -> None:
    """The same for vectors of several chunks, once each."""
    vectors = [whole_numbers(rank, LARGE) for rank in range(comm.size)]
    total = np.sum(vectors, axis=0, dtype=np.float32)
    for algorithm in ("ring", "hierarchical", "wa", "mpi"):
        values = vectors[comm.rank].copy()
        comm.Allreduce_comp(MPI.IN_PLACE, values, algorithm=algorithm)
        assert values.tobytes() == total.tobytes(), algorithm
    values = vectors[comm.rank].copy()
    comm.Allreduce_comp(MPI.IN_PLACE, values, average=True)
    assert values.tobytes() == (total / np.float32(comm.size)).tobytes()
    root = comm.size - 1
    values = vectors[comm.rank].copy()
    comm.Bcast_comp(values, root)
    assert values.tobytes() == vectors[root].tobytes()
    comm.Reduce_comp(vectors[comm.rank], values, root=root)
    assert comm.rank != root or values.tobytes() == total.tobytes()
    everything = np.zeros(LARGE * comm.size, np.float32)
    comm.Allgather_comp(vectors[comm.rank], everything)
    assert everything.tobytes() == np.concatenate(vectors).tobytes()


def check_messages(comm: CompComm) -> None:
    """Point to point: rings, wildcards, PROC_NULL, self."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (*COUNTS, LARGE):
        into, status = np.zeros(count + 1, np.float32), MPI.Status()
        comm.Sendrecv_comp(whole_numbers(rank, count), right, 5, into, left, 5, status)
        assert into[:count].tobytes() == whole_numbers(left, count).tobytes()
        assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (left, 5, count)
    requests = [comm.Irecv_comp(np.zeros(9, np.float32), source, 8) for source in range(size)]
    requests += [comm.Isend_comp(np.ones(9, np.float32), dest, 8) for dest in range(size)]
    type(requests[0]).Waitall(requests)
    comm.Send_comp(np.ones(3, np.float32), MPI.PROC_NULL)
    comm.Recv_comp(np.ones(3, np.float32), MPI.PROC_NULL)
    if rank == 0:
        for _ in range(1, size):
            comm.Recv_comp(np.zeros(2, np.float32), status=status)
            assert status.tag == 40 + status.source
    else:
        comm.Send_comp([np.ones(2, np.float32), 1, MPI.FLOAT], 0, 40 + rank)


def check_order(comm: CompComm) -> None:
    """Calls started together end in order, and a blocking one takes its turn."""
    values = [np.full(200_000, number, np.float32) for number in range(4)]
    requests = [comm.Iallreduce_comp(MPI.IN_PLACE, value) for value in values[:3]]
    comm.Allreduce_comp(MPI.IN_PLACE, values[3])
    assert type(requests[0]).Testall(requests)
    for number, value in enumerate(values):
        assert (value == number * comm.size).all()
    request = comm.Ibcast_comp(values[0])
    request.Cancel()
    assert request.Wait()
    comm.Barrier()
    comm.close()  # some may have cancelled in time and some not: begin anew


def check_rounding(comm: CompComm) -> None:
    """With a codec, what others receive through a NIC is rounded at its owner as well."""
    precision = comm.precision()
    assert precision is not None
    rounded = precision.quantiser()

    def small(rank: int, count: int) -> Float32Array:
        return np.random.default_rng([3, rank]).normal(0.0, 0.05, count).astype(np.float32)

    def after(values: Float32Array) -> Float32Array:
        values = values.copy()
        if comm.size > 1:
            rounded(values)
        return values

    for count in (7, 30_003):
        everything = np.zeros(count * comm.size, np.float32)
        comm.Allgather_comp(small(comm.rank, count), everything)
        own = slice(comm.rank * count, (comm.rank + 1) * count)
        assert everything[own].tobytes() == after(small(comm.rank, count)).tobytes()
        values = small(comm.rank, count)
        comm.Bcast_comp(values, 0)
        assert values.tobytes() == after(small(0, count)).tobytes()
        comm.Allreduce_comp(small(comm.rank, count), values)
        assert len(set(comm.allgather(values.tobytes()))) == 1
        assert values.tobytes() == after(values).tobytes()  # rounding what is rounded changes nothing


def main() -> None:
    world = MPI.COMM_WORLD
    assert world.size == 8
    for first in (1, 2, 3, 4, 8):  # groups of 1 and 7, 2 and 6, 3 and 5, 4 and 4, 8
        with CompComm(world).Split(int(world.rank < first), world.rank) as comm:
            check_collectives(comm)
            check_messages(comm)
            check_order(comm)
            if first in (3, 8):
                check_large(comm)
            comm.Free()
        with CompComm(world, codec="inceptionn", bound_k=10).Split(int(world.rank < first), world.rank) as comm:
            check_rounding(comm)
            comm.Free()
    print(f"rank {world.rank} of {world.size} ok", flush=True)


if __name__ == "__main__":
    main()
