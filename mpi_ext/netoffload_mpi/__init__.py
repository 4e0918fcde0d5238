"""An MPI communicator whose float32 data can pass through compressing NICs.

MPI carries control, this package's sockets carry data. MPI's sockets mix headers with values, and a lossy NIC must
never change a header. So :class:`CompComm`, an ``MPI.Intracomm``, uses MPI once, over a duplicate of the user's
communicator, to find the ranks, gather addresses and agree on what the NICs do. Then it moves vectors over TCP
connections that carry nothing but float32. ``netoffload.transport`` connects the ranks and watches them. This package
adds what has mpi4py's shape: buffers, calls with MPI's arguments, requests that MPI can wait for.

Use::

    from mpi4py import MPI
    from netoffload_mpi import CompComm

    comm = CompComm(MPI.COMM_WORLD)
    comm.Allreduce_comp(MPI.IN_PLACE, gradient)   # float32: NumPy, torch on the CPU, any buffer
    print(comm.last_info)

A call is checked three times. A *plan* checks its arguments: a wrong type is refused before an octet moves, and the
other ranks hear of it in their meeting. That meeting (``netoffload.collectives.announcement``) compares the calls of
all ranks. If compression is required, the NIC's account is checked afterwards.

Files, in the order in which a call meets them: ``comm`` (the class; point to point), ``catalogue`` (the collectives: a
row each), ``buffers`` (mpi4py's buffer specifications -> vectors), ``lifecycle`` (connections, made by the first call),
``requests`` (non-blocking calls), ``plane`` (set-up through MPI, with a time limit), ``verify`` (one round of every
call, a rank program).
"""

from mpi4py import MPI

from netoffload.transport.info import CommInfo, NicShare
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload_mpi.buffers import BufferTypeError
from netoffload_mpi.comm import CompComm
from netoffload_mpi.requests import CompRequest

__all__ = ["MPI", "BufferTypeError", "CommInfo", "CompComm", "CompRequest", "NicShare", "TcpExchange"]
