"""Transport: how ranks talk over TCP, whoever started them.

A transport turns sockets into an :class:`~netoffload.collectives.exchange.Exchange`, over which the algorithms of
``netoffload.collectives`` run. It knows no MPI and no torch: whoever starts the ranks brings a
:class:`~netoffload.transport.rendezvous.Rendezvous`, a way to gather one small value from each rank::

    rank 0                                                    rank 1
    set_up ──── rendezvous: address, ports, codec ─────────── set_up          once
       │                                                        │
    TcpExchange ═══ tagged, ToS 0x28: float32 only ═══ TcpExchange            collectives
       │        ─── untagged: meetings, counts, float32 ──      │             barriers, what stays exact
     Watch      ═══ tagged: float32 of messages ══════════ Watch              messages
                ─── untagged: heartbeats, headers ───────                     who lives; what messages are

Two ranks make each of these connections when they first need it, and say on it who they are, in floats that every codec
leaves exact. ToS is set before the handshake on both ends: on the connecting socket, and on the listener, from which an
accepted socket inherits it. So the NICs see the tag on the SYN already, and count floats from the first octet.

**Agreement.** What the owner of a block must round by (``netoffload.collectives``) has to be the same on every rank.
Each rank names its codec and bound at set-up: those of its NIC, asked over ``$NETOFFLOAD_CONTROL``, or those in its
``Settings``; ranks that differ are an error on all of them. Without a NIC and without a codec nothing is rounded.

**Offload.** Who compresses is agreed as well (``config.Offload``). Where the ranks do it by themselves, or nobody does,
the tagged lanes of the picture have no tag. Coding is a property of a connection: a ``CodedSocket`` takes and gives
float32, and sends and receives chunks. So the values are rounded where NICs would round them, and no call knows.

**Liveness.** A thread per rank, the watch, sends heartbeats. It tells a late rank from a dead one, and every rank
raises a death with the right name.

**Sharing.** Communicators of the same ranks are *contexts* of one watch. They share listeners, control and messages
lanes; each has its own connections for collectives. An error ends one context, a death ends all.

Use, in each of several processes::

    from netoffload.transport import AddressRendezvous, Calls, DataPlane, Lane, Settings, read_addresses, set_up

    with AddressRendezvous(read_addresses(path), rank, limit_s=60.0) as rendezvous:
        plane = set_up(rendezvous, rendezvous.host, Settings("inceptionn", 10), DataPlane)
    calls = Calls(plane)
    request = calls.start(lambda plane: ring_allreduce(plane.exchange, gradient, tagged=True), [Lane.TAGGED])
    request.add_done_callback(lambda request: print(request.error, calls.last_info))

Files, from the first gather to the last octet: ``launchers`` (which rank this is), ``rendezvous`` (how ranks find each
other), ``plane`` (set-up; settings; what a call works with), ``agreement`` (what ranks tell each other there),
``wiring`` (the first connections), ``lanes``, ``links``, ``joining`` and ``nearby`` (all others, made when they are
first used), ``dataplane`` and ``channel`` (sockets -> ``Exchange``), ``chunks`` and ``coded_socket`` (ranks that
compress by themselves), ``driver``, ``ring_loop``, ``coded_ring_loop``, ``meeting_loop`` and ``loop_port`` (whole
rounds in compiled code), ``contexts`` and ``sharing`` (communicators of the same ranks), ``watch``, ``peers``,
``frames`` and ``mailbox`` (liveness and messages), ``requests`` (calls under way), ``progress`` (calls in the
background), ``calls`` (calls carried out and accounted), ``info`` (the account); ``local_ranks`` (ranks as threads).
"""

from netoffload.transport.calls import Calls
from netoffload.transport.dataplane import TcpExchange
from netoffload.transport.info import CommInfo, NicShare
from netoffload.transport.lanes import Lane
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rendezvous import (
    Address,
    AddressRendezvous,
    Rendezvous,
    Store,
    StoreRendezvous,
    parse_addresses,
    read_addresses,
)
from netoffload.transport.requests import Request, wait_all

__all__ = [
    "Address",
    "AddressRendezvous",
    "Calls",
    "CommInfo",
    "DataPlane",
    "Lane",
    "NicShare",
    "Rendezvous",
    "Request",
    "Settings",
    "Store",
    "StoreRendezvous",
    "TcpExchange",
    "parse_addresses",
    "read_addresses",
    "set_up",
    "wait_all",
]
