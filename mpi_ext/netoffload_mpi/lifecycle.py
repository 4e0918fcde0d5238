"""A communicator with a data plane: the first call makes it, all calls share it, ``close`` ends it."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from mpi4py import MPI

from netoffload.collectives.schedule import Span
from netoffload.compiled.arrays import Float32Array
from netoffload.config import Offload, parse_offload
from netoffload.errors import NetOffloadError
from netoffload.transport.calls import Calls
from netoffload.transport.info import CommInfo, with_nic
from netoffload.transport.plane import Settings, is_required
from netoffload.transport.rendezvous.agreement import Precision
from netoffload.transport.rounds.exchange import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT, TcpExchange
from netoffload.transport.wiring.lanes import Lane
from netoffload_mpi.buffers import equal_blocks
from netoffload_mpi.plane import MpiPlane, connect


class Plan(NamedTuple):
    """A call that can be carried out."""

    run: Callable[[MpiPlane], None]  # carries the call out
    lanes: tuple[Lane, ...] = (Lane.TAGGED,)  # the lanes that carry its data
    calling: str = ""  # the call in words, if the algorithm's name does not say all that must be the same on all ranks


class RankOfSize(NamedTuple):
    """The number of this rank, and how many ranks its communicator has."""

    rank: int
    size: int
    blocks_of: Callable[..., tuple[Float32Array, tuple[Span, ...]]] = equal_blocks
    """The vector of a buffer specification, and the places of its blocks."""


class PlaneComm(MPI.Intracomm):
    """Base class of :class:`~netoffload_mpi.comm.CompComm`, which describes the arguments."""

    # Class-level defaults: mpi4py makes duplicates without calling __init__.
    _settings: Settings = Settings()
    _at: RankOfSize | None = None
    _calls: Calls[MpiPlane] | None = None
    _totals: CommInfo = CommInfo()
    _last_info: CommInfo = CommInfo()  # `last_info` of connections that `close` has closed; `_totals` likewise

    # mpi4py's, which return a plain communicator; `_keeping_settings` makes them.
    Split: Callable[..., Self]
    Split_type: Callable[..., Self]
    Create: Callable[..., Self]
    Create_group: Callable[..., Self]

    def __new__(cls, comm: MPI.Intracomm | None = None, *_: object, **__: object) -> Self:
        """Share the handle of ``comm``."""
        return super().__new__(cls, comm)

    # Nine parameters: users name the settings one by one, like the options of a command.
    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        codec: str | None = None,
        bound_k: int | None = None,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        *,
        late_s: float = LATE_S_DEFAULT,
        chunk_octets: int | None = None,
        require: bool = False,
        per_call: bool = False,
        offload: str | None = None,
    ) -> None:
        self._settings = Settings(
            codec,
            bound_k,
            timeout_s,
            late_s,
            chunk_octets,
            require or is_required(),
            per_call,
            None if offload is None else parse_offload(offload),
        )

    def exchange(self) -> TcpExchange:
        """Return the connections, for use with ``netoffload.collectives``; collective at the first call."""
        return self.calls().plane.exchange

    def calls(self) -> Calls[MpiPlane]:
        """Return what carries out calls over the connections, also for others; collective at the first call."""
        if self._calls is None:
            self._calls = Calls(connect(self, self._settings))
        return self._calls

    def precision(self) -> Precision | None:
        """Return the agreed codec and bound, None if exact; collective at the first call."""
        return self.calls().plane.precision

    def offload(self) -> Offload:
        """Return who compresses, as the ranks agreed, never ``auto``; collective at the first call."""
        return self.calls().plane.offload

    @property
    def last_info(self) -> CommInfo:
        """What the latest call did."""
        return self._last_info if self._calls is None else self._calls.last_info

    def totals(self) -> CommInfo:
        """Return what all calls over these connections did; ask the NIC for its part if there is one."""
        calls = self._calls
        return self._totals if calls is None else with_nic(calls.totals, calls.plane.account.read(), None)

    def close(self) -> None:
        """Close the connections; the communicator stays, and the next call connects again."""
        calls, self._calls = self._calls, None
        if calls is not None:
            self._totals, self._last_info = calls.totals, calls.last_info
            calls.close()

    def Free(self) -> None:
        """Close the connections and free the communicator."""
        self.close()
        super().Free()

    def Disconnect(self) -> None:
        """Close the connections, and disconnect the communicator."""
        self.close()
        super().Disconnect()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the settings too; mpi4py does so with COMM_WORLD and COMM_SELF only."""
        reduced: Any = super().__reduce__()
        return (*reduced[:2], {"_settings": self._settings})

    def _like(self, other: MPI.Comm) -> Self:
        # mpi4py returns some of these as plain Intracomm, whose handle is taken over, and some in this class. Idup's
        # handle is not valid yet, but its object is of this class.
        alike = other if isinstance(other, type(self)) else type(self)(other)  # type: ignore[arg-type]
        alike._settings = self._settings
        return alike

    def _plan(
        self, make: Callable[..., Plan], arguments: Sequence[Any], options: Mapping[str, Any], *, is_blocking: bool
    ) -> Plan:
        """Return the plan; if the arguments are wrong, tell the other ranks in their meeting, and raise."""
        if self._at is None:
            self._at = RankOfSize(self.Get_rank(), self.Get_size())
        try:
            return make(self._at, *arguments, **options)
        except Exception:
            if self._at.size > 1:
                with contextlib.suppress(NetOffloadError):  # the cause is what this rank raises
                    request = self.calls().refuse()
                    if is_blocking:
                        request.wait()
            raise


def _keeping_settings(name: str) -> Callable[..., Any]:
    """Return mpi4py's method of this name; the communicator that it makes has the settings of the one it came from."""
    make = getattr(MPI.Intracomm, name)

    @functools.wraps(make)
    def method(self: PlaneComm, *arguments: Any, **options: Any) -> Any:
        made = make(self, *arguments, **options)
        return (self._like(made[0]), made[1]) if isinstance(made, tuple) else self._like(made)

    return method


for _name in (
    *("Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone"),
    *("Split", "Split_type", "Create", "Create_group"),
):
    setattr(PlaneComm, _name, _keeping_settings(_name))
