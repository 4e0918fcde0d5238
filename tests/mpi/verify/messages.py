"""Point to point: the same programs with mpi4py's calls and with ours must give the same values and statuses."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from netoffload.compiled.arrays import Float32Array
from tests.mpi.verify.cases import EXACT, Observed, Place, Rounding, nothing

FROM_ANYBODY = 40
"""A tag of one program only: a rank that is ahead may have sent a message of the next program."""

Calls = Callable[[str], Callable[..., Any]]
"""Takes mpi4py's name of a call, returns mpi4py's call or the ``_comp`` one."""

Finish = Callable[[Sequence[Any]], None]  # completes requests, mpi4py's or ours


def comp_calls(comm: MPI.Intracomm) -> Calls:
    return lambda name: getattr(comm, f"{name}_comp")


def mpi_calls(comm: MPI.Intracomm) -> Calls:
    return lambda name: getattr(comm, name)


@dataclass(frozen=True)
class Exchange:
    """A program of messages; it takes the calls, and how a hop rounds."""

    label: str
    run: Callable[[Calls, Rounding], Observed]


def wait_each(requests: Sequence[Any]) -> None:
    for request in requests:
        request.Wait()


def test_each(requests: Sequence[Any]) -> None:
    for request in requests:
        while not request.Test():
            pass


def wait_all(requests: Sequence[Any]) -> None:
    type(requests[0]).Waitall(requests)


def test_all(requests: Sequence[Any]) -> None:
    while not type(requests[0]).Testall(requests):
        pass


def wait_any(requests: Sequence[Any]) -> None:
    for _ in requests:
        if type(requests[0]).Waitany(requests) == MPI.UNDEFINED:
            raise AssertionError("Waitany found no active request before all had ended")


def test_any(requests: Sequence[Any]) -> None:
    while type(requests[0]).Testany(requests) != (MPI.UNDEFINED, True):
        pass


def wait_some(requests: Sequence[Any]) -> None:
    told: list[int] = []
    while (some := type(requests[0]).Waitsome(requests)) is not None:
        told += some
    if sorted(told) != list(range(len(requests))):
        raise AssertionError(f"Waitsome returned {told} of {len(requests)} requests")


FINISHES: Sequence[Finish] = (wait_each, wait_all, wait_any, wait_some, test_each, test_all, test_any)


def told(status: MPI.Status) -> tuple[int, int, int]:
    return status.source, status.tag, status.Get_count(MPI.FLOAT)


def exchanges(at: Place) -> Iterator[Exchange]:
    """Yield every program; the same ones in the same order on every rank."""
    yield Exchange("Sendrecv_comp", functools.partial(_round_the_ring, at))
    if at.size > 1:
        yield Exchange("Send_comp, Recv_comp", functools.partial(_one_after_the_other, at))
    for finish in FINISHES:
        yield Exchange("Isend_comp, Irecv_comp", functools.partial(_everybody, at, finish))
    yield Exchange("Isend_comp, Irecv_comp", functools.partial(_later_tag_first, at))
    yield Exchange("Send_comp, Recv_comp", functools.partial(_from_anybody, at))
    for look in ("Probe", "Iprobe"):
        yield Exchange(f"{look}_comp", functools.partial(_look_first, at, look))
    yield Exchange("Sendrecv_comp", functools.partial(_with_nobody, at))


def _cargo(at: Place, dest: int, rounding: Rounding) -> Float32Array:
    """Return what this rank sends; a message to itself is not rounded."""
    own = at.draw("cargo", at.rank, at.count)
    return own if dest == at.rank else rounding.hop(own)


def _neighbours(at: Place) -> tuple[int, int]:
    return (at.rank + 1) % at.size, (at.rank - 1) % at.size


def _round_the_ring(at: Place, calls: Calls, rounding: Rounding) -> Observed:
    right, left = _neighbours(at)
    into, status = nothing(at.count + 3), MPI.Status()
    calls("Sendrecv")(_cargo(at, right, rounding), right, 5, into, left, 5, status)
    return into, told(status)


def _one_after_the_other(at: Place, calls: Calls, rounding: Rounding) -> Observed:
    right, left = _neighbours(at)
    into, status = nothing(at.count), MPI.Status()

    def send() -> None:
        calls("Send")([_cargo(at, right, rounding), MPI.FLOAT], right)

    if at.rank % 2 == 0:
        send()
    calls("Recv")(into, left, MPI.ANY_TAG, status)
    if at.rank % 2 == 1:
        send()
    return into, told(status)


def _everybody(at: Place, finish: Finish, calls: Calls, rounding: Rounding) -> Observed:
    ranks = range(at.size)
    into = [nothing(at.count) for _ in ranks]
    outgoing = [_cargo(at, dest, rounding) for dest in ranks]
    requests = [calls("Irecv")(into[source], source, 8) for source in ranks]
    requests += [calls("Isend")(outgoing[dest], dest, 8) for dest in ranks]
    finish(requests)
    return tuple(into)


def _later_tag_first(at: Place, calls: Calls, rounding: Rounding) -> Observed:
    right, left = _neighbours(at)
    cargo = _cargo(at, right, rounding)
    short = cargo[: at.count // 2]
    requests = [calls("Isend")(cargo, right, 1), calls("Isend")(short, right, 2), calls("Isend")(short, right, 1)]
    observed: list[Any] = []
    for tag in (2, 1, MPI.ANY_TAG):
        into, status = nothing(at.count), MPI.Status()
        calls("Recv")(into, left, tag, status)
        observed += [into, told(status)]
    wait_all(requests)
    return tuple(observed)


def _from_anybody(at: Place, calls: Calls, rounding: Rounding) -> Observed:
    root = at.size - 1
    if at.rank != root:
        calls("Send")([_cargo(at, root, rounding), at.count // 2, MPI.FLOAT], root, FROM_ANYBODY)
        return ()
    came = {}
    for _ in range(at.size - 1):
        into, status = nothing(at.count), MPI.Status()
        calls("Recv")(into, MPI.ANY_SOURCE, FROM_ANYBODY, status)
        came[status.source] = (into, told(status))
    return tuple(part for source in sorted(came) for part in came[source])


def _look_first(at: Place, look: str, calls: Calls, rounding: Rounding) -> Observed:
    right, left = _neighbours(at)
    request, status = calls("Isend")(_cargo(at, right, rounding), right, 6), MPI.Status()
    while not calls(look)(left, MPI.ANY_TAG, status):
        pass
    found = told(status)
    into = nothing(found[2])
    calls("Recv")(into, found[0], found[1])
    request.Wait()
    return into, found


def _with_nobody(at: Place, calls: Calls, _: Rounding) -> Observed:
    into, status = nothing(at.count), MPI.Status()
    cargo = _cargo(at, at.rank, EXACT)
    calls("Send")(cargo, MPI.PROC_NULL)
    calls("Sendrecv")(cargo, MPI.PROC_NULL, 0, into, MPI.PROC_NULL, 0, status)
    return into, told(status)
