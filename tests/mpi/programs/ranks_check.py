"""The program of every rank of test_mpi_ranks; it is no test module. An exception ends the job with a failure."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from netoffload.collectives import Half
from netoffload.collectives.reference import ring_sum
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError, UsageError
from netoffload_mpi import MPI, CompComm


def values_of(rank: int, count: int) -> Float32Array:
    return np.random.default_rng(rank).normal(0.0, 0.05, count).astype(np.float32)


def check_sums(comm: CompComm) -> None:
    """A short and a long sum, whose owners round them; the account of both."""
    precision, before = comm.precision(), comm.totals().calls
    for count in (1024, 100_003):
        own = [values_of(rank, count) for rank in range(comm.size)]
        received = own[comm.rank].copy()
        comm.Allreduce_ring(MPI.IN_PLACE, received, average=True)
        assert received.tobytes() == (ring_sum(own) / np.float32(comm.size)).tobytes()
        received = own[comm.rank].copy()
        comm.Allreduce_comp(MPI.IN_PLACE, received)
        # Plain loopback changes no value on the way: only the owner's rounding is in the result.
        expected = ring_sum(own)
        if precision is not None and comm.size > 1:
            precision.quantiser()(expected)
        assert received.tobytes() == expected.tobytes()
    assert comm.totals().calls == before + 4


def check_halves(world: MPI.Intracomm) -> None:
    """16-bit floats: the float32 sum, rounded once, from half of the octets, whoever compresses."""
    made: list[dict[str, Any]] = [{"offload": "off"}, {"codec": "exact", "bound_k": 10, "offload": "inline"}]
    for settings in made:
        comm = CompComm(world, **settings)
        for count in (0, 1024, 100_003):
            own = [Half.FLOAT16.narrowed(values_of(rank, count)) for rank in range(comm.size)]
            expected = ring_sum([Half.FLOAT16.widened(one) for one in own])
            calls: list[tuple[Any, dict[str, Any], int]] = [
                (comm.Allreduce_comp, {}, 1),
                (comm.Allreduce_ring, {}, 1),
                (comm.Allreduce_comp, {"average": True}, comm.size),
                (comm.Allreduce_ring, {"average": True}, comm.size),
                (comm.Allreduce_comp, {"algorithm": "mpi"}, 1),
            ]
            for call, options, divisor in calls:
                received = own[comm.rank].view(np.float16).copy()
                call(MPI.IN_PLACE, received, **options)
                if "algorithm" in options:  # MPI adds in an order of its own
                    assert np.allclose(received, expected, atol=0.01)
                    continue
                assert received.tobytes() == Half.FLOAT16.narrowed(expected / np.float32(divisor)).tobytes()
                assert count < 1e5 or comm.last_info.payload_octets <= 0.51 * 8 * (comm.size - 1) / comm.size * count
        comm.close()
    with CompComm(world, codec="bounded", bound_k=10, offload="inline") as comm:
        received = np.full(100_000, 0.25, np.float16)
        comm.Allreduce_comp(MPI.IN_PLACE, received)
        assert (received == 0.25 * comm.size).all()


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
    if request.Is_cancelled():  # a rank that was late waits for the others, which may have cancelled in time
        assert request.Wait()
    comm.Barrier()
    comm.close()  # which ends its call: begin anew


def check_one_ranks_refusal(comm: CompComm) -> None:
    """What one rank refuses all ranks hear of, in a first call and in a later one; then all may begin anew."""
    if comm.size == 1:
        return
    odd = comm.rank == comm.size - 1
    last: Any = np.int64(comm.size - 1)
    wrong, right = np.zeros(8), np.zeros(8, np.float32)
    calls: tuple[Callable[..., object], ...] = (
        lambda values: comm.Allreduce_comp(MPI.IN_PLACE, values),
        lambda values: comm.Bcast_comp(values, 0 * last),
        lambda values: comm.Allreduce_comp(
            MPI.IN_PLACE, right, algorithm="hierarchical", groups=None if values is right else [[0]]
        ),
        lambda values: comm.Scatter_comp(np.ones(comm.size, np.float32), right[: 1 + (values is wrong)], last),
        lambda values: comm.Alltoall_comp([values, 1], [right, 1]),
        lambda values: comm.Iallreduce_comp(MPI.IN_PLACE, values).Wait(),
    )
    for number, call in enumerate(calls):
        comm.close()
        if number % 2:
            comm.Barrier_comp()
        try:
            call(wrong if odd else right)
        except UsageError:
            assert odd
            with suppress(CollectiveError):  # a refusal in the background must not be cut off by close()
                comm.Barrier_comp()
        except CollectiveError as error:
            assert not odd
            assert f"rank {comm.size - 1} refuses its arguments" in str(error), error
        else:
            raise AssertionError("the others did not hear of it")
    comm.close()


def check_counts_from_all(comm: CompComm) -> None:
    """Without counts each rank receives what its buffer holds."""
    counts = list(range(1, comm.size + 1))
    part = np.zeros(counts[comm.rank], np.float32)
    comm.Reduce_scatter_comp(np.arange(sum(counts), dtype=np.float32), part)
    first = sum(counts[: comm.rank])
    assert part.tolist() == [comm.size * (first + place) for place in range(part.size)]
    request = comm.Ireduce_scatter_comp(np.ones(sum(counts), np.float32), part, None, MPI.MAX)
    assert MPI.Request.Waitall([request])
    assert (part == 1).all()
    for are_all_wrong in (True, False):
        is_wrong = are_all_wrong or comm.rank == comm.size - 1
        try:
            comm.Reduce_scatter_comp(np.ones(sum(counts) + is_wrong, np.float32), part)
        except UsageError:
            assert is_wrong
        except CollectiveError as error:
            assert not is_wrong, error
            assert f"rank {comm.size - 1} refuses its arguments" in str(error)
        else:
            raise AssertionError("counts that do not add up were taken")
        if are_all_wrong:
            comm.Barrier_comp()  # nothing is closed
    comm.close()


def check_the_users_calls_stay_apart(comm: CompComm) -> None:
    """MPI carries ours out beside the user's on the same communicator, and a set-up meets no call of the user's."""
    for round_ in range(20):
        ours, theirs = np.full(3, round_, np.float32), np.full(50_000, round_, np.int64)
        request = comm.Iallreduce_comp(MPI.IN_PLACE, ours, algorithm="mpi")
        comm.Allreduce(MPI.IN_PLACE, theirs)
        request.Wait()
        assert (ours == comm.size * round_).all()
        assert (theirs == comm.size * round_).all()
    comm.close()
    setting_up = threading.Thread(target=comm.Barrier_comp)
    setting_up.start()
    for number in range(50):
        assert comm.allgather((comm.rank, number)) == [(rank, number) for rank in range(comm.size)]
    setting_up.join()


def main() -> None:
    world = MPI.COMM_WORLD
    check_sums(CompComm(MPI.COMM_SELF))
    with CompComm(world, offload="nic") as comm:  # tagged and exact: there are no NICs
        check_sums(comm)
        check_order(comm)
        check_counts_from_all(comm)
        check_the_users_calls_stay_apart(comm)
        check_one_ranks_refusal(comm)
        duplicate = comm.Dup()
        assert isinstance(duplicate, CompComm)
        check_sums(duplicate)
        comm.Barrier_comp()  # check_one_ranks_refusal has closed it
        again = comm.Dup()
        watches = {one.exchange().watch.shared for one in (comm, duplicate, again)}
        assert len(watches) == 1  # the ranks are the same
        duplicate.Free()
        check_sums(again)
        again.Free()
        part = comm.Split(comm.rank % 2)
        check_sums(part)
        part.Free()
        assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
        some = comm.group.Incl(list(range(0, comm.size, 2)))
        if comm.rank % 2 == 0:
            half = comm.Create_group(some)
            assert isinstance(half, CompComm)
            check_sums(half)
            half.Free()
    check_halves(world)
    rounding = CompComm(world, codec="inceptionn", bound_k=6, offload="nic")
    check_sums(rounding)
    copy = rounding.Dup()
    assert copy.precision() == rounding.precision() is not None
    copy.Free()
    rounding.close()
    # All ranks hear of one rank's trouble.
    for settings in ({"codec": "inceptionn", "bound_k": 6 + (world.rank == world.size - 1)}, {"codec": "inceptionn"}):
        try:
            CompComm(world, **settings).exchange()
        except (CollectiveError, UsageError):
            continue
        else:
            assert world.size == 1
            assert "bound_k" in settings
    print(f"rank {world.rank} of {world.size} ok", flush=True)


if __name__ == "__main__":
    assert "NETOFFLOAD_CONTROL" not in os.environ
    main()
