"""MPI whose float32 data may pass a compressing NIC.

MPI does control, sockets of our own do data. MPI's sockets mix headers with values, and a lossy NIC must never touch a
header; so :class:`CompComm`, an ``MPI.Intracomm``, uses MPI to find the ranks, to exchange addresses and to agree on
what the NICs do, once, over a duplicate of the user's communicator. Then it moves vectors over TCP connections that
carry nothing but float32::

    rank 0                                                rank 1
    CompComm ── MPI allgather: address, ports, codec ── CompComm        once, at the first call
       │                                                   │
    TcpExchange ═══ tagged, ToS 0x28: float32 only ═══ TcpExchange      Allreduce_comp and its family
       │        ─── untagged: meetings, counts, float32 ──   │          Allreduce_ring, barriers
     Watch      ═══ tagged: float32 of messages ══════════ Watch        Send_comp, Recv_comp
                ─── untagged: heartbeats, headers ───────               who lives; what messages are

Two ranks make each of these connections when they first need it, and say on it who they are, in floats that every codec
leaves exact. ToS is set before the handshake on both ends: on the connecting socket, and on the listener, from which an
accepted socket inherits it. So the NICs see the tag on the SYN already, and count floats from the first octet.

**Agreement.** What the owner of a block must round by (``netoffload.collectives``) has to be the same on every rank.
Each rank names its codec and bound at set-up: those of its NIC, asked over ``$NETOFFLOAD_CONTROL``, or those given to
``CompComm``; ranks that differ are an error on all of them. Without a NIC and without a codec nothing is rounded and
``Allreduce_comp`` is exact.

Use::

    from mpi4py import MPI
    from netoffload_mpi import CompComm

    comm = CompComm(MPI.COMM_WORLD)
    comm.Allreduce_comp(MPI.IN_PLACE, gradient)   # float32: NumPy, torch on the CPU, any buffer
    print(comm.last_info)

A call is checked three times: its arguments, when a *plan* is made of them (a wrong type is refused before an octet
moves, and the other ranks hear of it in their meeting); against the other ranks' calls, in the meeting of
``netoffload.collectives.announcement``; and, where compression is required, against the NIC's account afterwards.

Files, in the order in which a call meets them: ``comm`` (the class; point to point), ``collective_calls`` (its other
calls), ``buffers`` (specifications as mpi4py takes them -> vectors), ``plans`` (a call's arguments -> a function of the
data plane), ``lifecycle`` (connections made late; calls carried out and accounted), ``progress`` and ``requests`` (non-
blocking calls), ``rendezvous`` (MPI with a time limit), ``plane`` (set-up; settings), ``agreement`` (what ranks tell
each other there), ``wiring`` (the first connections), ``links`` and ``joining`` (all others, made when they are first
used), ``dataplane`` and ``channel`` (sockets -> ``Exchange``), ``driver``, ``ring_loop``, ``meeting_loop`` and
``loop_port`` (whole rounds in compiled code), ``watch``, ``peers``, ``frames`` and ``mailbox`` (liveness and messages),
``info`` (the account), ``bench``, ``bench_overlap`` and ``verify`` (rank programs: how fast it is, what it hides
behind, whether it is right).
"""

from mpi4py import MPI

from netoffload.transport.dataplane import TcpExchange
from netoffload.transport.info import CommInfo, NicShare
from netoffload_mpi.buffers import BufferTypeError
from netoffload_mpi.comm import CompComm
from netoffload_mpi.requests import CompRequest

__all__ = ["MPI", "BufferTypeError", "CommInfo", "CompComm", "CompRequest", "NicShare", "TcpExchange"]
