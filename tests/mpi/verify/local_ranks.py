"""A communicator whose ranks are threads of one process; its connections are real."""

from typing import Self

from mpi4py import MPI

from netoffload.transport.calls import Calls
from netoffload.transport.info import NicAccount
from netoffload.transport.plane import Settings
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload_mpi.comm import CompComm
from netoffload_mpi.plane import MpiPlane


class ThreadComm(CompComm):
    """A CompComm whose ranks are threads. To MPI they are one process, so mpi4py's own calls must not be used."""

    _exchange: TcpExchange

    @classmethod
    def over(cls, exchange: TcpExchange, settings: Settings | None = None) -> Self:
        comm = cls(MPI.COMM_SELF)
        account = NicAccount(None, exchange.tagged_connections)
        comm._exchange = exchange
        addresses = ["127.0.0.1"] * exchange.size
        plane = MpiPlane(exchange, None, None, addresses, account, settings or Settings(), mpi=MPI.COMM_SELF)
        comm._calls = Calls(plane)
        return comm

    def Get_rank(self) -> int:  # noqa: N802 - MPI's name
        return self._exchange.rank

    def Get_size(self) -> int:  # noqa: N802 - MPI's name
        return self._exchange.size
