"""What a CompComm does around its calls: accounts, requirements, background calls; ranks are threads over real sockets."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from tcp_ranks import run_tcp

from netoffload.collectives import barrier
from netoffload.errors import CollectiveError
from netoffload_mpi import CompComm
from netoffload_mpi.dataplane import TcpExchange
from netoffload_mpi.info import NicAccount
from netoffload_mpi.plane import DataPlane, Settings


def comm_over(exchange: TcpExchange, settings: Settings | None = None) -> CompComm:
    """A CompComm whose connections are ``exchange``; of MPI it knows this process only."""
    comm = CompComm(MPI.COMM_SELF)
    account = NicAccount(None, exchange.tagged_connections)
    comm._plane = DataPlane(exchange, None, None, ["127.0.0.1"] * exchange.size, account, settings or Settings())
    return comm


def test_what_one_rank_requires_in_vain_is_told_to_all() -> None:
    def body(exchange: TcpExchange) -> None:
        required = exchange.rank == 2
        comm = comm_over(exchange, Settings(require=required, per_call=required))
        values = np.ones(100, np.float32)
        if required:
            with pytest.raises(CollectiveError, match="this rank has no NIC"):
                comm.Allreduce_comp(MPI.IN_PLACE, values)
            return
        comm.Allreduce_comp(MPI.IN_PLACE, values)
        barrier(exchange)

    told = run_tcp(3, body)
    assert told[2] is None
    for error in told[:2]:
        assert isinstance(error, CollectiveError)
        assert "compression is required, but this rank has no NIC" in str(error)
