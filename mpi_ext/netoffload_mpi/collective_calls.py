"""The collectives of a CompComm, argument for argument as mpi4py's, blocking and not."""
# ruff: noqa: N802 - MPI names its methods so, and these stand beside mpi4py's

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from netoffload.collectives import Groups
from netoffload_mpi import plans
from netoffload_mpi.lifecycle import PlaneComm
from netoffload_mpi.plans import AllreduceOptions
from netoffload_mpi.requests import CompRequest


class CollectiveComm(PlaneComm):
    """Collectives; :class:`~netoffload_mpi.comm.CompComm` says what they have in common."""

    def Allreduce_comp(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str = "ring",
        groups: Groups | None = None,
        top: str = "ring",
        average: bool = False,
    ) -> None:
        """Reduce over all ranks, to all ranks, which end with bit-identical values.

        How far those are from the exact ones is the codec's error, once per hop.

        Args:
            sendbuf: this rank's values, or ``MPI.IN_PLACE``.
            recvbuf: where the result goes; of the same length on all ranks.
            op: ``MPI.SUM``, ``MAX``, ``MIN`` or ``PROD``.
            algorithm: ``ring``; ``hierarchical`` (rings of rings); ``wa`` (rank 0 aggregates; only what goes up is
                tagged); ``mpi`` (plain MPI, uncompressed).
            groups: of ``hierarchical``: lists of ranks, the same on all ranks. Default: ranks of one /24 network, and
                groups of about the square root if all are on one.
            top: of ``hierarchical``: how groups exchange with each other, ``ring`` or ``wa``.
            average: divide the sum by the number of ranks.
        """
        options = AllreduceOptions(algorithm, groups, top, average)
        self._run(plans.plan_allreduce, sendbuf, recvbuf, op, options, lanes=options.lanes)

    def Iallreduce_comp(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op = MPI.SUM,
        *,
        algorithm: str = "ring",
        groups: Groups | None = None,
        top: str = "ring",
        average: bool = False,
    ) -> CompRequest:
        """Start :meth:`Allreduce_comp`."""
        options = AllreduceOptions(algorithm, groups, top, average)
        return self._start(plans.plan_allreduce, sendbuf, recvbuf, op, options, lanes=options.lanes)

    def Allreduce_ring(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Do the same as :meth:`Allreduce_comp` with the tag off: the uncompressed baseline, exact float32."""
        options = AllreduceOptions(tagged=False)
        self._run(plans.plan_allreduce, sendbuf, recvbuf, op, options, lanes=options.lanes)

    def Reduce_comp(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Reduce over all ranks, to ``root``; ``recvbuf`` counts there only."""
        self._run(plans.plan_reduce, sendbuf, recvbuf, op, root)

    def Ireduce_comp(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> CompRequest:
        """Start :meth:`Reduce_comp`."""
        return self._start(plans.plan_reduce, sendbuf, recvbuf, op, root)

    def Reduce_scatter_comp(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Reduce over all ranks, and leave the next ``recvcounts[r]`` floats of the result with every rank r.

        Without ``recvcounts``, which is the same on all ranks, each rank gets as much as its receive buffer holds.
        """
        self._run(plans.plan_reduce_scatter, sendbuf, recvbuf, recvcounts, op, equal=False)

    def Ireduce_scatter_comp(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> CompRequest:
        """Start :meth:`Reduce_scatter_comp`."""
        return self._start(plans.plan_reduce_scatter, sendbuf, recvbuf, recvcounts, op, equal=False)

    def Reduce_scatter_block_comp(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce over all ranks, and leave an equal part of the result with each."""
        self._run(plans.plan_reduce_scatter, sendbuf, recvbuf, None, op, equal=True)

    def Ireduce_scatter_block_comp(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> CompRequest:
        """Start :meth:`Reduce_scatter_block_comp`."""
        return self._start(plans.plan_reduce_scatter, sendbuf, recvbuf, None, op, equal=True)

    def Bcast_comp(self, buf: Any, root: int = 0) -> None:
        """Give every rank the values of ``root``, which rounds its own as the others receive them."""
        self._run(plans.plan_broadcast, buf, root)

    def Ibcast_comp(self, buf: Any, root: int = 0) -> CompRequest:
        """Start :meth:`Bcast_comp`."""
        return self._start(plans.plan_broadcast, buf, root)

    def Gather_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect equal blocks on ``root``; ``recvbuf`` counts there only. The root's own block stays exact."""
        self._run(plans.plan_gather, sendbuf, recvbuf, root, equal=True)

    def Igather_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CompRequest:
        """Start :meth:`Gather_comp`."""
        return self._start(plans.plan_gather, sendbuf, recvbuf, root, equal=True)

    def Gatherv_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect blocks of any length on ``root``: ``recvbuf`` is ``[data, counts, displs, MPI.FLOAT]`` there."""
        self._run(plans.plan_gather, sendbuf, recvbuf, root, equal=False)

    def Igatherv_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CompRequest:
        """Start :meth:`Gatherv_comp`."""
        return self._start(plans.plan_gather, sendbuf, recvbuf, root, equal=False)

    def Scatter_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Hand out equal blocks of ``root``; ``sendbuf`` counts there only. The root's own block stays exact."""
        self._run(plans.plan_scatter, sendbuf, recvbuf, root, equal=True)

    def Iscatter_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CompRequest:
        """Start :meth:`Scatter_comp`."""
        return self._start(plans.plan_scatter, sendbuf, recvbuf, root, equal=True)

    def Scatterv_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Hand out blocks of any length: ``sendbuf`` is ``[data, counts, displs, MPI.FLOAT]`` on ``root``."""
        self._run(plans.plan_scatter, sendbuf, recvbuf, root, equal=False)

    def Iscatterv_comp(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CompRequest:
        """Start :meth:`Scatterv_comp`."""
        return self._start(plans.plan_scatter, sendbuf, recvbuf, root, equal=False)

    def Allgather_comp(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give every rank the equal blocks of all; every rank rounds its own as the others receive it."""
        self._run(plans.plan_allgather, sendbuf, recvbuf, equal=True)

    def Iallgather_comp(self, sendbuf: Any, recvbuf: Any) -> CompRequest:
        """Start :meth:`Allgather_comp`."""
        return self._start(plans.plan_allgather, sendbuf, recvbuf, equal=True)

    def Allgatherv_comp(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give every rank the blocks of all, of any length: ``recvbuf`` is ``[data, counts, displs, MPI.FLOAT]``."""
        self._run(plans.plan_allgather, sendbuf, recvbuf, equal=False)

    def Iallgatherv_comp(self, sendbuf: Any, recvbuf: Any) -> CompRequest:
        """Start :meth:`Allgatherv_comp`."""
        return self._start(plans.plan_allgather, sendbuf, recvbuf, equal=False)

    def Alltoall_comp(self, sendbuf: Any, recvbuf: Any) -> None:
        """Swap equal blocks between all ranks. The block that stays is exact."""
        self._run(plans.plan_alltoall, sendbuf, recvbuf, equal=True)

    def Ialltoall_comp(self, sendbuf: Any, recvbuf: Any) -> CompRequest:
        """Start :meth:`Alltoall_comp`."""
        return self._start(plans.plan_alltoall, sendbuf, recvbuf, equal=True)

    def Alltoallv_comp(self, sendbuf: Any, recvbuf: Any) -> None:
        """Swap blocks of any length: both buffers are ``[data, counts, displs, MPI.FLOAT]``."""
        self._run(plans.plan_alltoall, sendbuf, recvbuf, equal=False)

    def Ialltoallv_comp(self, sendbuf: Any, recvbuf: Any) -> CompRequest:
        """Start :meth:`Alltoallv_comp`."""
        return self._start(plans.plan_alltoall, sendbuf, recvbuf, equal=False)

    def Barrier_comp(self) -> None:
        """Return when all ranks have entered. Unlike ``Barrier`` it sleeps, and leaves its core to others."""
        self._run(plans.plan_barrier)
