"""CompComm: an mpi4py communicator with two more reductions."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, cast

import numpy as np
from mpi4py import MPI

from netoffload.collectives import Quantise, ring_allreduce
from netoffload.config import ENV_CONTROL
from netoffload.control import request
from netoffload.errors import NetOffloadError, UsageError
from netoffload_mpi.agreement import Offer, Precision, agree, failure_of, own_address, own_precision
from netoffload_mpi.buffers import float_vector
from netoffload_mpi.dataplane import TIMEOUT_S_DEFAULT, Listeners, TcpExchange, wire_up


@dataclass(frozen=True)
class CommInfo:
    """What reductions of one communicator did, seen from this rank.

    Attributes:
        calls: how many.
        raw_octets: payload this rank handed to its sockets: 2(p-1)/p of the vector, before any compression.
        seconds: time in the calls.
        nic: counters of this rank's NIC since set-up, everything on the NIC included; None without a NIC, or where
            they were not asked for.
    """

    calls: int = 0
    raw_octets: int = 0
    seconds: float = 0.0
    nic: dict[str, int] | None = None


@dataclass(frozen=True)
class _Settings:
    codec: str | None = None
    bound_k: int | None = None
    timeout_s: float = TIMEOUT_S_DEFAULT


@dataclass(frozen=True)
class _DataPlane:
    exchange: TcpExchange
    precision: Precision | None
    quantise: Quantise | None
    nic_at_start: dict[str, int] | None


class CompComm(MPI.Intracomm):
    """A communicator whose ``Allreduce_comp`` passes through compressing NICs.

    Shares the handle of the communicator it is made from; everything else is mpi4py's. ``Dup``, ``Clone`` and ``Split``
    keep the settings and get connections of their own. Connections are made by the first call that needs them, which
    is collective. Not for use by several threads at a time.

    Args:
        comm: the communicator to extend; default COMM_NULL, as in mpi4py.
        codec: what the owner of a block rounds by; None: what the NIC at ``$NETOFFLOAD_CONTROL`` does, exact without
            one. bound_k: error bound 2**-bound_k; goes with ``codec``. timeout_s: silence of a peer after which a
            call raises ``PeerLostError``.
    """

    # Class-level defaults: mpi4py makes duplicates without calling __init__.
    _settings: _Settings = _Settings()
    _plane: _DataPlane | None = None
    _totals: CommInfo = CommInfo()
    last_info: CommInfo = CommInfo()
    """What the latest reduction did."""

    SUPPORTED_OPS: ClassVar = (MPI.SUM,)

    def __new__(cls, comm: MPI.Intracomm | None = None, *_: object, **__: object) -> CompComm:
        """Share the handle of ``comm``."""
        return super().__new__(cls, comm)

    def __init__(
        self,
        comm: MPI.Intracomm | None = None,
        codec: str | None = None,
        bound_k: int | None = None,
        timeout_s: float = TIMEOUT_S_DEFAULT,
    ) -> None:
        """Remember the settings; nothing is connected yet."""
        self._settings = _Settings(codec, bound_k, timeout_s)

    def Allreduce_comp(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Sum float32 over all ranks, through the NICs: ``Allreduce`` with fewer octets on the wire.

        All ranks end with bit-identical values; how far those are from the exact sum is the codec's error, once per
        hop.

        Args:
            sendbuf: this rank's values (any specification that mpi4py takes), or ``MPI.IN_PLACE``.
            recvbuf: where the sum goes; of the same length on all ranks.
            op: only ``MPI.SUM``.

        Raises:
            BufferTypeError: (a ``TypeError``) not contiguous float32; before an octet moves.
            UsageError: another operation, or lengths that differ.
            CollectiveError: ranks disagree, or a peer is gone or silent (``PeerLostError``).
        """
        self._allreduce(sendbuf, recvbuf, op, tagged=True)

    def Allreduce_ring(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Do the same as :meth:`Allreduce_comp` with the tag off: the uncompressed baseline, exact float32."""
        self._allreduce(sendbuf, recvbuf, op, tagged=False)

    def exchange(self) -> TcpExchange:
        """Return the connections, for use with ``netoffload.collectives``; collective at the first call.

        Raises:
            CollectiveError: some rank could not set up, or ranks differ in what they round by.
        """
        return self._data_plane().exchange

    def quantiser(self) -> Quantise | None:
        """Return what the owner of a block rounds by, None if exact; collective at the first call."""
        return self._data_plane().quantise

    def precision(self) -> Precision | None:
        """Return the agreed codec and bound, None if exact; collective at the first call."""
        return self._data_plane().precision

    def totals(self) -> CommInfo:
        """Return the totals since set-up, with the NIC's counters if there is a NIC.

        Raises:
            ControlError: the NIC does not answer.
        """
        start = self._plane.nic_at_start if self._plane else None
        if start is None:
            return self._totals
        now = _nic_counters() or {}
        nic = {name: value - start.get(name, 0) for name, value in now.items()}
        return CommInfo(self._totals.calls, self._totals.raw_octets, self._totals.seconds, nic)

    def close(self) -> None:
        """Close the connections; the communicator stays, and the next call would connect again."""
        plane, self._plane = self._plane, None
        if plane is not None:
            plane.exchange.close()

    def Free(self) -> None:
        """Close the connections and free the communicator."""
        self.close()
        super().Free()

    def Dup(self, info: MPI.Info | None = None) -> CompComm:
        """Return a duplicate with the same settings."""
        return self._like(super().Dup(info))

    def Clone(self) -> CompComm:
        """Return a clone with the same settings."""
        return self._like(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> CompComm:
        """Return this rank's part with the same settings; COMM_NULL's handle for ``MPI.UNDEFINED``."""
        return self._like(CompComm(cast(MPI.Intracomm, super().Split(color, key))))

    def __enter__(self) -> CompComm:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def _like(self, other: CompComm) -> CompComm:
        other._settings = self._settings
        return other

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op, *, tagged: bool) -> None:
        if op not in self.SUPPORTED_OPS:
            raise UsageError("only MPI.SUM can be reduced here: use Allreduce for other operations")
        values = float_vector(recvbuf, writable=True)
        # MPI.IN_PLACE compares with == against anything; arrays would compare element by element.
        source = None if isinstance(sendbuf, type(MPI.IN_PLACE)) else float_vector(sendbuf, writable=False)
        if source is not None and source.size != values.size:
            raise UsageError(f"send buffer of {source.size} floats, receive buffer of {values.size}: make them equal")
        plane = self._data_plane()
        start_s = time.perf_counter()
        if source is not None:
            np.copyto(values, source)
        quantise = plane.quantise if tagged else None
        ring_allreduce(plane.exchange, values, tagged=tagged, quantise=quantise)
        seconds = time.perf_counter() - start_s
        raw_octets = 2 * (self.size - 1) * values.nbytes // self.size
        self.last_info = CommInfo(1, raw_octets, seconds)
        totals = self._totals
        self._totals = CommInfo(totals.calls + 1, totals.raw_octets + raw_octets, totals.seconds + seconds)

    def _data_plane(self) -> _DataPlane:
        if self._plane is None:
            self._plane = self._set_up()
        return self._plane

    def _set_up(self) -> _DataPlane:
        """Agree with all ranks and connect; every step is one allgather, whatever has failed before it."""
        offer, failure = Offer(), None
        with contextlib.ExitStack() as stack:
            listeners = None
            try:
                address = own_address(self.allgather, MPI.Get_processor_name())
                has_nic, precision = own_precision(self._settings.codec, self._settings.bound_k)
                listeners = stack.enter_context(Listeners(self.rank, self.size, address))
                offer = Offer(address=address, ports=listeners.ports, has_nic=has_nic, precision=precision)
            except (NetOffloadError, OSError) as error:
                offer, failure = failure_of(error), error
            offers = self.allgather(offer)
            if failure is not None and not isinstance(failure, OSError):
                raise failure  # our own is the clearer message; the others hear of it from agree()
            precision = agree(offers)
            assert listeners is not None
            exchange = wire_up(self.rank, offers, listeners, self.allgather, self._settings.timeout_s)
        quantise = None if precision is None else precision.quantiser()
        if quantise is not None:
            quantise(np.zeros(8, dtype=np.float32))  # compiles now rather than in the first timed call
        return _DataPlane(exchange, precision, quantise, _nic_counters())


def _nic_counters() -> dict[str, int] | None:
    path = os.environ.get(ENV_CONTROL)
    return dict(request(path, "counters")["counters"]) if path else None
