"""MPI whose float32 data may pass a compressing NIC.

MPI does control, sockets of our own do data. MPI's sockets mix headers with values, and a lossy NIC must never touch a
header; so :class:`CompComm`, an ``MPI.Intracomm``, uses MPI to find the ranks, to exchange addresses and to agree on
what the NICs do, once, over a duplicate of the user's communicator. Then it moves vectors over TCP connections that
carry nothing but float32: ``netoffload.transport``, which says how ranks connect, agree and watch each other. Here is
what has the shape of mpi4py: buffers, calls with MPI's arguments, requests that MPI waits for.

Use::

    from mpi4py import MPI
    from netoffload_mpi import CompComm

    comm = CompComm(MPI.COMM_WORLD)
    comm.Allreduce_comp(MPI.IN_PLACE, gradient)   # float32: NumPy, torch on the CPU, any buffer
    print(comm.last_info)

A call is checked three times: its arguments, when a *plan* is made of them (a wrong type is refused before an octet
moves, and the other ranks hear of it in their meeting); against the other ranks' calls, in the meeting of
``netoffload.collectives.announcement``; and, where compression is required, against the NIC's account afterwards.

Files, in the order in which a call meets them: ``comm`` (the class; point to point), ``catalogue`` (the collectives: a
row each), ``buffers`` (specifications as mpi4py takes them -> vectors), ``plans`` (a call's arguments -> a function of
the data plane), ``lifecycle`` (connections made late), ``requests`` (non-blocking calls), ``plane`` and ``rendezvous``
(set-up through MPI, with a time limit), ``bench``, ``bench_overlap`` and ``verify`` (rank programs: how fast it is,
what it hides behind, whether it is right).
"""

from mpi4py import MPI

from netoffload.transport.dataplane import TcpExchange
from netoffload.transport.info import CommInfo, NicShare
from netoffload_mpi.buffers import BufferTypeError
from netoffload_mpi.comm import CompComm
from netoffload_mpi.requests import CompRequest

__all__ = ["MPI", "BufferTypeError", "CommInfo", "CompComm", "CompRequest", "NicShare", "TcpExchange"]
