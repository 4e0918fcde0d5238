"""A communicator with a data plane: made late, shared by all its calls, closed with it."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from mpi4py import MPI

from netoffload.collectives import Quantise
from netoffload.collectives.announcement import refuse
from netoffload.errors import NetOffloadError, UsageError
from netoffload.transport.agreement import Precision
from netoffload.transport.dataplane import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT, TcpExchange
from netoffload.transport.info import CommInfo, NicShare, with_nic
from netoffload.transport.joining import Lane
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.progress import CallQueue
from netoffload_mpi.plans import Place, Plan
from netoffload_mpi.requests import CompRequest

_ACCOUNTING: Final = threading.Lock()
"""Held while a call is added to its communicator's totals: one in the background may end beside a message. One for all,
because mpi4py makes duplicates without calling __init__, and it is never held for long."""


class PlaneComm(MPI.Intracomm):
    """What :class:`~netoffload_mpi.comm.CompComm` is below its calls; its arguments are described there."""

    # Class-level defaults: mpi4py makes duplicates without calling __init__.
    _settings: Settings = Settings()
    _plane: DataPlane | None = None
    _queue: CallQueue | None = None
    _totals: CommInfo = CommInfo()
    _share: NicShare | None = None
    last_info: CommInfo = CommInfo()
    """What the latest call did."""

    def __new__(cls, comm: MPI.Intracomm | None = None, *_: object, **__: object) -> Self:
        """Share the handle of ``comm``."""
        return super().__new__(cls, comm)

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
    ) -> None:
        """Remember the settings; nothing is connected yet.

        Raises:
            UsageError: a codec without a bound or the reverse, or unknown ones.
        """
        self._settings = Settings(codec, bound_k, timeout_s, late_s, chunk_octets, require, per_call)

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
        """Return what all calls over these connections did, with the NIC's part if there is a NIC, asked now.

        Raises:
            ControlError: the NIC does not answer.
        """
        return self._totals if self._plane is None else with_nic(self._totals, self._plane.account.read(), None)

    def close(self) -> None:
        """Close the connections; the communicator stays, and the next call would connect again."""
        plane, self._plane = self._plane, None
        queue, self._queue = self._queue, None
        self._share = None
        if queue is not None:
            queue.end()
        if plane is not None:
            plane.exchange.close()

    def Free(self) -> None:
        """Close the connections and free the communicator."""
        self.close()
        super().Free()

    def Disconnect(self) -> None:
        """Close the connections, and disconnect the communicator."""
        self.close()
        super().Disconnect()

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """Return a duplicate with the same settings and connections of its own."""
        return self._like(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """Do the same with hints."""
        return self._like(super().Dup_with_info(info))

    def Idup(self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Start :meth:`Dup`; the duplicate may be used once the request is complete."""
        other, request = super().Idup(info)
        return self._like(other), request

    def Idup_with_info(self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """Start :meth:`Dup_with_info`."""
        other, request = super().Idup_with_info(info)
        return self._like(other), request

    def Clone(self) -> Self:
        """Return a clone with the same settings."""
        return self._like(super().Clone())

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """Return this rank's part with the same settings; COMM_NULL's handle for ``MPI.UNDEFINED``."""
        return self._like(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Self:
        """Return the part of the ranks that share, say, memory, with the same settings."""
        return self._like(super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Self:
        """Return a communicator of ``group`` with the same settings; COMM_NULL's handle for all others."""
        return self._like(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Self:
        """Do the same, called by the members of ``group`` only."""
        return self._like(super().Create_group(group, tag))

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connections."""
        self.close()

    def _like(self, other: MPI.Comm) -> Self:
        # mpi4py gives some of these as plain Intracomm, some as our class; the handle is what counts. That of Idup is
        # not known yet, but it comes in our class.
        alike = other if isinstance(other, type(self)) else type(self)(other)  # type: ignore[arg-type]
        alike._settings = self._settings
        return alike

    def _place(self) -> Place:
        return Place(self.Get_rank(), self.Get_size())

    def _run(
        self, make: Callable[..., Plan], *arguments: Any, lanes: Sequence[Lane] = (Lane.TAGGED,), **options: Any
    ) -> None:
        """Plan a call and carry it out, behind those under way.

        Args:
            make: of ``plans``.
            arguments: of ``make``, behind the place.
            lanes: that the call's data goes over.
            options: of ``make``.
        """
        try:
            plan = make(self._place(), *arguments, **options)
        except Exception:
            self._refuse(wait=True)
            raise
        plane = self._data_plane()
        if self._queue is None or self._queue.is_idle:
            self._carry_out(plan, plane, lanes)
        else:
            self._queue.start(lambda: self._carry_out(plan, plane, lanes)).Wait()

    def _start(
        self, make: Callable[..., Plan], *arguments: Any, lanes: Sequence[Lane] = (Lane.TAGGED,), **options: Any
    ) -> CompRequest:
        """Plan a call and carry it out in the background; arguments as of :meth:`_run`."""
        try:
            plan = make(self._place(), *arguments, **options)
        except Exception:
            self._refuse(wait=False)
            raise
        # Here and not in the thread: set-up is collective and MPI's business, and close() belongs to this plane.
        plane = self._data_plane()
        return self._calls().start(lambda: self._carry_out(plan, plane, lanes)).shown_to_mpi()

    def _refuse(self, *, wait: bool) -> None:
        """Let the other ranks hear, in their meeting, that this one does not make the call that they make."""
        if self.Get_size() == 1:
            return
        with contextlib.suppress(NetOffloadError):  # the caller raises the cause
            exchange = self.exchange()
            request = self._calls().start(lambda: refuse(exchange))
            if wait:
                request.Wait()

    def _calls(self) -> CallQueue:
        if self._queue is None:
            self._queue = CallQueue()
        return self._queue

    def _carry_out(self, plan: Plan, plane: DataPlane, lanes: Sequence[Lane]) -> None:
        watch, sent = plane.exchange.stopwatch, plane.exchange.sent_octets(lanes)
        start_s, wire_s, reduce_s, codec_s = watch.now_s(), watch.wire_s, watch.reduce_s, watch.codec_s
        late_s, aside = watch.late_s, watch.aside_octets
        try:
            calling = plane.exchange.begin_call()
            try:
                plan(plane)
            finally:
                calling.release()
        except (UsageError, MemoryError):  # before the meeting; or inside the call, which has closed the connections
            with contextlib.suppress(NetOffloadError):
                refuse(plane.exchange)
            raise
        done = CommInfo(
            calls=1,
            raw_octets=plane.exchange.sent_octets(lanes) - sent + watch.aside_octets - aside,
            seconds=watch.now_s() - start_s,
            wire_s=watch.wire_s - wire_s,
            reduce_s=watch.reduce_s - reduce_s,
            codec_s=watch.codec_s - codec_s,
        )
        plane.learn_rate(done.raw_octets, done.seconds - (watch.late_s - late_s))
        self._account(done, plane)

    def _account(self, done: CommInfo, plane: DataPlane) -> None:
        with _ACCOUNTING:
            self._totals += done
        self.last_info = done
        if not plane.settings.per_call:
            return
        reading = plane.account.read()
        self.last_info = with_nic(done, reading, self._share)
        self._share = reading[0] if reading else None
        if plane.settings.require:
            try:
                plane.account.require_compression(plane.exchange.stopwatch.aside_octets)
            except NetOffloadError as error:  # this rank's alone: the others must not wait for it in their next call
                plane.exchange.abort(error)
                raise

    def _data_plane(self) -> DataPlane:
        if self._plane is None:
            self._plane = set_up(self, self._settings)
            self._totals = CommInfo()
        return self._plane
