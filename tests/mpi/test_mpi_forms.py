"""What mpi4py takes, as it takes it: every form of a buffer specification and of a request, and probes."""

import array
import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from netoffload.collectives import Half
from netoffload.collectives.transfer import octets_of
from netoffload.errors import CollectiveError, PeerLostError, UsageError
from netoffload.transport.messages.requests import Arrival, Request
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload_mpi import BufferTypeError, CompComm
from netoffload_mpi.buffers import equal_blocks, float_vector, numbers, uneven_blocks
from netoffload_mpi.plane import _duplicate_of
from netoffload_mpi.requests import CompRequest
from tests.transport.tcp_ranks import die, run_tcp

SIX = np.arange(6, dtype=np.float32)
SHORTS = array.array("h", [2, 1])


class OldTensor:
    """A DLPack tensor of a producer that knows nothing of DLPack 1.0, and cannot say what is read-only."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __dlpack__(self, stream: None = None) -> object:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ([SIX, (2, 1), MPI.FLOAT], [1, 2]),
        ((SIX, [2, 1], MPI.FLOAT), [1, 2]),
        ([SIX, (2, 1)], [1, 2]),
        ([SIX, 2, 3, MPI.FLOAT], [3, 4]),
        ([SIX, None, 4, MPI.FLOAT], [4, 5]),
        ([SIX, (None, 4), "f"], [4, 5]),
        ([SIX, 2, None], [0, 1]),
        ([SIX, np.int64(2), np.array(1), MPI.FLOAT], [1, 2]),
        ([bytearray(SIX.tobytes()), 1, 5, MPI.FLOAT], [5]),
        ([None, 0, MPI.FLOAT], []),
        ([None, MPI.FLOAT], []),
        ([MPI.BOTTOM, 0, MPI.FLOAT], []),
        (np.asfortranarray(SIX.reshape(2, 3)), [0, 3, 1, 4, 2, 5]),
        (OldTensor(SIX.copy()), [0, 1, 2, 3, 4, 5]),
        (OldTensor(np.asfortranarray(SIX.reshape(2, 3))), [0, 3, 1, 4, 2, 5]),
    ],
)
def test_a_specification_of_one_block_means_what_it_means_to_mpi4py(spec: Any, expected: list[int]) -> None:
    assert float_vector(spec, writable=True).tolist() == expected


@pytest.mark.parametrize(
    "spec",
    [
        [SIX, 7, MPI.FLOAT],
        [SIX, (3, 4), MPI.FLOAT],
        [SIX, -1, MPI.FLOAT],
        [SIX, 1, -1, MPI.FLOAT],
        [SIX, (1, 2, 3), MPI.FLOAT],
        [None, 1, MPI.FLOAT],
        [None, 0],
        [SIX, 1, MPI.INT],
        [SIX, 1.5, MPI.FLOAT],
        [SIX, 1, 2],
        OldTensor(np.zeros(3)),
    ],
)
def test_a_specification_that_names_no_floats_is_refused(spec: Any) -> None:
    with pytest.raises((UsageError, BufferTypeError)):
        float_vector(spec, writable=True)


def test_memory_in_fortrans_order_is_shared() -> None:
    matrix = np.zeros((2, 3), np.float32, order="F")
    float_vector(matrix, writable=True)[1] = 1
    assert matrix[1, 0] == 1


@pytest.mark.parametrize(
    ("spec", "places"),
    [
        ([SIX, (1, 2), MPI.FLOAT], [(0, 1), (2, 3)]),  # one count, one distance: not two counts
        ([SIX, 1, 4, MPI.FLOAT], [(0, 1), (4, 5)]),
        ([SIX, [1, 2], MPI.FLOAT], [(0, 1), (1, 3)]),
        ([SIX, (SHORTS, [4, 0]), MPI.FLOAT], [(4, 6), (0, 1)]),
        ([SIX, SHORTS, array.array("i", [3, 0]), MPI.FLOAT], [(3, 5), (0, 1)]),
        ([SIX, SHORTS], [(0, 2), (2, 3)]),
        ([SIX, (None, 3), "f"], [(0, 3), (3, 6)]),
        ([SIX, [0, 1], [99, 5], MPI.FLOAT], [(0, 0), (5, 6)]),
        ([None, 0, MPI.FLOAT], [(0, 0), (0, 0)]),
        (SIX[:5], [(0, 3), (3, 5)]),
    ],
)
def test_a_specification_of_uneven_blocks_means_what_it_means_to_mpi4py(
    spec: Any, places: list[tuple[int, int]]
) -> None:
    _, spans = uneven_blocks(spec, 2, writable=True)
    assert [(span.start, span.stop) for span in spans] == places


@pytest.mark.parametrize("spec", [[SIX, (1, 2, 3), MPI.FLOAT], [SIX, [1], MPI.FLOAT], [SIX, [-1, 1], MPI.FLOAT]])
def test_uneven_blocks_that_cannot_be_are_refused(spec: Any) -> None:
    with pytest.raises(UsageError):
        uneven_blocks(spec, 2, writable=True)


def test_equal_blocks_begin_at_their_displacement() -> None:
    vector, spans = equal_blocks([SIX, (2, 1), MPI.FLOAT], 2, writable=True)
    assert vector.tolist() == [1, 2, 3, 4]
    assert [len(span) for span in spans] == [2, 2]


@pytest.mark.slow
def test_what_goes_to_nobody_needs_no_buffer(alone: CompComm) -> None:
    alone.Send_comp(None, MPI.PROC_NULL)
    alone.Recv_comp(None, MPI.PROC_NULL)
    assert alone.Isend_comp(None, MPI.PROC_NULL).Wait()
    assert alone.Irecv_comp(None, MPI.PROC_NULL).Wait()
    alone.Sendrecv_comp(None, MPI.PROC_NULL, 0, None, MPI.PROC_NULL)


def test_none_is_in_place(alone: CompComm) -> None:
    values = SIX.copy()
    alone.Allreduce_comp(None, values)
    alone.Reduce_comp(None, values)
    alone.Allgather_comp(None, values)
    alone.Gather_comp(None, values)
    alone.Scatter_comp(values, None)
    alone.Alltoall_comp(None, values)
    alone.Reduce_scatter_comp(None, values, [6])
    assert values.tolist() == SIX.tolist()


def test_mpi_waits_for_our_requests_among_its_own(alone: CompComm) -> None:
    into, number, status = np.zeros(6, np.float32), np.zeros(1, np.int32), [MPI.Status()]
    requests = [
        alone.Irecv_comp(into, 0, 7),
        MPI.COMM_SELF.Irecv(number, 0, 1),
        alone.Iallreduce_comp(None, SIX.copy()),
    ]
    assert not MPI.Request.Testall(requests[:2])
    threading.Timer(0.05, alone.Send_comp, [SIX, 0, 7]).start()
    MPI.COMM_SELF.Send(np.array([5], np.int32), 0, 1)
    assert MPI.Request.Waitall(requests, status)
    assert (into.tolist(), number[0]) == (SIX.tolist(), 5)
    assert (status[0].source, status[0].tag, status[0].Get_count(MPI.FLOAT)) == (0, 7, 6)
    assert requests == [MPI.REQUEST_NULL] * 3
    assert requests[0].Wait()
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


def test_our_requests_wait_for_mpis_as_well(alone: CompComm) -> None:
    number, statuses = np.zeros(1, np.int32), []  # type: ignore[var-annotated]
    requests = [alone.Isend_comp(SIX, MPI.PROC_NULL), MPI.COMM_SELF.Irecv(number, 0, 1)]
    assert CompRequest.Waitany(requests) == 0
    assert CompRequest.Testsome(requests) == []
    assert not CompRequest.Testall(requests)
    MPI.COMM_SELF.Send(np.array([5], np.int32), 0, 1)
    assert CompRequest.Waitall(requests, statuses)
    assert (number[0], len(statuses), statuses[1].tag) == (5, 2, 1)


def test_several_threads_may_wait_for_one_request(alone: CompComm) -> None:
    for _ in range(50):  # MPI crashed in one round of many
        request, statuses = alone.Irecv_comp(np.zeros(6, np.float32), 0, 7), [MPI.Status() for _ in range(4)]
        waiting = [threading.Thread(target=request.Wait, args=[status]) for status in statuses]
        for thread in waiting:
            thread.start()
        alone.Send_comp(SIX, 0, 7)
        for thread in waiting:
            thread.join()
        assert [status.tag for status in statuses] == [7] * 4


def test_help_shows_the_arguments_of_a_call() -> None:
    assert str(inspect.signature(CompComm.Bcast_comp)) == "(self, /, buf: Any, root: int = 0) -> None"
    assert str(inspect.signature(CompComm.Ibcast_comp)).endswith("-> 'CompRequest'")


def test_an_error_fails_mpis_calls_too(capfd: pytest.CaptureFixture[str]) -> None:
    call = Request()
    request = CompRequest(call)
    call.fail(CollectiveError("what went wrong"))
    call.complete(Arrival(0, 0, 0))  # too late
    with pytest.raises(MPI.Exception):
        MPI.Request.Waitall([request])
    assert "what went wrong" in capfd.readouterr().err
    with pytest.raises(CollectiveError, match="what went wrong"):
        request.Wait()


def test_a_cancelled_request_says_so_to_mpi(alone: CompComm) -> None:
    request, status = alone.Irecv_comp(np.zeros(1, np.float32), 0, 3), MPI.Status()
    request.Cancel()
    assert MPI.Request.Test(request, status)
    assert status.Is_cancelled()


@pytest.mark.parametrize("how", ["Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone", "Split", "Split_type"])
def test_what_is_made_of_a_communicator_has_its_settings(how: str) -> None:
    with CompComm(MPI.COMM_SELF, codec="inceptionn", bound_k=6, late_s=77.0) as comm:
        more: dict[str, list[Any]] = {
            "Dup_with_info": [MPI.INFO_NULL],
            "Idup_with_info": [MPI.INFO_NULL],
            "Split_type": [MPI.COMM_TYPE_SHARED],
        }
        made = getattr(comm, how)(*more.get(how, []))
        if isinstance(made, tuple):
            made, request = made
            request.Wait()
        assert type(made) is CompComm
        precision = made.precision()
        assert precision is not None
        assert (precision.codec, precision.bound_k, made._settings) == ("inceptionn", 6, comm._settings)
        made.Free()


@pytest.mark.parametrize("again", [copy.copy, lambda comm: pickle.loads(pickle.dumps(comm))])
def test_a_copy_has_the_settings(again: Callable[[CompComm], CompComm]) -> None:
    with CompComm(MPI.COMM_SELF, codec="exact", bound_k=10, offload="inline") as comm, again(comm) as other:
        other.Barrier_comp()
        assert (other == comm, other._settings) == (True, comm._settings)


def test_a_communicator_gives_its_duplicates_back() -> None:
    comm = CompComm(MPI.COMM_SELF.Dup())
    comm.Barrier_comp()
    assert comm._calls is not None
    of_plane, of_handle = comm.calls().plane.mpi, _duplicate_of(comm, 9.0)
    assert len({comm.handle, of_plane.handle, of_handle.handle}) == 3
    comm.close()
    assert of_plane == MPI.COMM_NULL
    comm.Barrier_comp()
    assert _duplicate_of(comm, 9.0) is of_handle  # the user's is not touched again
    comm.Free()
    assert of_handle == MPI.COMM_NULL


def bad_buffers() -> list[Any]:
    torch = pytest.importorskip("torch")
    good, frozen = np.zeros(8, np.float32), np.zeros(8, np.float32)
    frozen.setflags(write=False)
    halves, strided = np.zeros(8, np.float16), [np.zeros(16, dtype)[::2] for dtype in (np.float16, np.float32)]
    swapped = [np.zeros(8, form) for form in (">f2", ">f4")]
    arrays = [np.zeros(8), np.zeros(8, np.int32), *strided, *swapped, [halves, MPI.FLOAT], [halves, 9], frozen]
    tensors = [torch.zeros(8, requires_grad=True), torch.zeros(8, dtype=torch.bfloat16, requires_grad=True)]
    tensors += [torch._neg_view(torch.ones(8, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    return [*arrays, *tensors, [good, MPI.DOUBLE], [np.zeros(8), MPI.FLOAT], bytearray(32), [1.0, 2.0], "text", None]


def test_an_allreduce_takes_16_bit_floats_of_numpy_and_dlpack(alone: CompComm) -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    tensor = torch.arange(6, dtype=torch.bfloat16)
    for spec, half, count in (
        (array, Half.FLOAT16, 6),
        (np.asfortranarray(array), Half.FLOAT16, 6),
        ([array, 2], Half.FLOAT16, 2),
        (np.zeros(13, np.uint8)[1:].view(np.float16), Half.FLOAT16, 6),
        ([array, (2, 1)], Half.FLOAT16, 2),
        (tensor, Half.BFLOAT16, 6),
        ([tensor, 3, 1, None], Half.BFLOAT16, 3),
        (tensor.half(), Half.FLOAT16, 6),
    ):
        vector, found = numbers(spec, writable=True)
        assert (found, vector.size, vector.itemsize) == (half, count, 2)
    into = torch.zeros(6, dtype=torch.bfloat16)
    alone.Allreduce_comp(tensor, into)
    assert into.tolist() == list(range(6))


@pytest.mark.slow
def test_tensors_are_buffers_and_what_holds_no_floats_is_refused(alone: CompComm) -> None:
    torch = pytest.importorskip("torch")
    tensor, into = torch.ones(2, 4), np.zeros(8, np.float32)
    alone.Allreduce_ring(tensor, into)
    alone.Allreduce_ring(MPI.IN_PLACE, tensor)
    assert (into == 1).all()
    before = alone.totals()
    for bad in bad_buffers():
        for call in (alone.Allreduce_comp, alone.Allreduce_ring):
            with pytest.raises((BufferTypeError, UsageError)):
                call(MPI.IN_PLACE, bad)
    with pytest.raises(BufferTypeError, match="differ in their types"):
        alone.Allreduce_comp(into, np.zeros(8, np.float16))
    for other in (np.zeros(3), np.zeros(3, np.float16), torch.zeros(3, dtype=torch.bfloat16)):
        with pytest.raises(TypeError):
            alone.Send_comp(other, 0)
    with pytest.raises(BufferTypeError, match="holds float16: Allreduce_comp takes it"):
        alone.Bcast_comp(np.zeros(3, np.float16))
    with pytest.raises(BufferTypeError, match="resolve_neg"):
        alone.Allreduce_comp(torch._neg_view(torch.ones(8)), into)
    assert alone.totals() == before


GOOD = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("Allreduce_comp", (GOOD, GOOD[:4])),
        ("Allreduce_comp", (MPI.IN_PLACE, [GOOD, 9, MPI.FLOAT])),
        ("Allreduce_comp", (GOOD, MPI.IN_PLACE)),
        ("Allreduce_comp", (GOOD, [MPI.IN_PLACE, 8, MPI.FLOAT])),
        ("Reduce_scatter_block_comp", (MPI.IN_PLACE, [GOOD, 9, MPI.FLOAT])),
        ("Allreduce_comp", (MPI.IN_PLACE, GOOD, MPI.LAND)),
        ("Bcast_comp", (GOOD, 1)),
        ("Reduce_scatter_comp", (GOOD, GOOD, [8] * 2)),
        ("Allgatherv_comp", (GOOD, [GOOD, [9], MPI.FLOAT])),
        ("Send_comp", (GOOD, 1)),
        ("Send_comp", (GOOD, 0, -7)),
    ],
)
def test_arguments_that_cannot_be_are_refused(alone: CompComm, call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each call says it in its own words
        getattr(alone, call)(*arguments)
    assert alone.totals().calls == 0


@pytest.mark.parametrize("name", ["Send_comp", "Bcast_comp", "Gatherv_comp", "Alltoall_comp", "Iallreduce_comp"])
def test_calls_for_objects_are_refused_by_the_name_of_those_for_buffers(alone: CompComm, name: str) -> None:
    assert hasattr(alone, name)
    with pytest.raises(TypeError, match=name):
        getattr(alone, name.lower())([1, 2, 3])


def test_any_and_some_tell_each_end_once() -> None:
    calls = [Request() for _ in range(4)]
    requests = [CompRequest(call) for call in calls]
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, False)
    assert CompRequest.Testsome(requests) == []
    calls[2].complete(Arrival(7, 3, 5))
    status = MPI.Status()
    assert CompRequest.Testany(requests, status) == (2, True)
    assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (7, 3, 5)
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, False)
    calls[3].complete(Arrival(1, 1, 1))
    calls[0].complete(Arrival(0, 2, 2))
    statuses = [MPI.Status() for _ in requests]
    assert CompRequest.Waitsome(requests, statuses) == [0, 3]
    assert [(one.source, one.tag) for one in statuses[:2]] == [(0, 2), (1, 1)]
    calls[1].complete()
    assert CompRequest.Waitany(requests) == 1
    assert CompRequest.Waitany(requests) == MPI.UNDEFINED
    assert CompRequest.Testany(requests) == (MPI.UNDEFINED, True)
    assert CompRequest.Waitsome(requests) is CompRequest.Testsome(requests) is None
    assert CompRequest.Testall(requests)


@pytest.mark.parametrize("wait", [CompRequest.Waitany, CompRequest.Waitsome])
def test_a_wait_for_any_wakes_up_and_raises_what_went_wrong(wait: Any) -> None:
    good, bad = Request(), Request()
    requests = [CompRequest(bad), CompRequest(good)]
    threading.Timer(0.05, good.complete).start()
    assert wait(requests) in (1, [1])
    threading.Timer(0.05, bad.fail, [CollectiveError("no")]).start()
    with pytest.raises(CollectiveError, match="no"):
        wait(requests)
    assert wait(requests) in (MPI.UNDEFINED, None)


def probe(exchange: TcpExchange, source: int | None, tag: int | None, *, wait: bool = True) -> Arrival | None:
    return exchange.watch.probe(source, tag, wait=wait)


def test_a_probe_says_what_the_next_receive_gets() -> None:
    def body(exchange: TcpExchange) -> bool:
        if exchange.rank > 0:
            for tag in (4, 5):
                data = np.full(10 * exchange.rank + tag, tag, np.float32)
                exchange.watch.send(0, tag, octets_of(data)).wait()
            return probe(exchange, 0, 9) == Arrival(0, 9, 0)
        assert probe(exchange, 1, 6, wait=False) is None
        assert probe(exchange, 2, 5) == Arrival(2, 5, 25)
        assert probe(exchange, 2, 5, wait=False) == Arrival(2, 5, 25)  # it is still there
        for _ in range(4):
            found = probe(exchange, None, None)
            assert found is not None
            into = np.zeros(found.count, np.float32)
            request = exchange.watch.receive(found.source, found.tag, octets_of(into))
            request.wait()
            assert request.arrival == found
            assert found.count == 10 * found.source + found.tag
            assert (into == found.tag).all()
        assert probe(exchange, None, None, wait=False) is None
        for peer in (1, 2):
            exchange.watch.send(peer, 9, memoryview(b"")).wait()
        return True

    assert run_tcp(3, body) == [True] * 3


@pytest.mark.parametrize("source", [1, None])
@pytest.mark.parametrize(("end", "said"), [(die, "rank 1 died"), (TcpExchange.close, "closed their|rank 1 closed")])
def test_a_probe_of_a_rank_that_ends_raises(end: Any, said: str, source: int | None) -> None:
    def body(exchange: TcpExchange) -> Any:
        if exchange.rank == 1:
            end(exchange)
            return None
        with pytest.raises(PeerLostError, match=said):
            probe(exchange, source, 3)
        return "raised"

    assert run_tcp(2, body)[0] == "raised"


def test_the_communicators_probes_are_mpis() -> None:
    with CompComm(MPI.COMM_SELF) as comm:
        status = MPI.Status()
        assert not comm.Iprobe_comp()
        comm.Send_comp(np.zeros(3, np.float32), 0, 8)
        assert comm.Iprobe_comp(status=status)
        assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (0, 8, 3)
        assert comm.Probe_comp(0, 8)
        assert comm.Probe_comp(MPI.PROC_NULL, status=status)
        assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
        with pytest.raises(ValueError, match="rank 1 does not exist"):
            comm.Probe_comp(1)
