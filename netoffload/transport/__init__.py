"""Transport: how ranks talk over TCP, started by MPI, by torchrun or by hand.

A transport turns sockets into an :class:`~netoffload.collectives.exchange.Exchange`, over which the algorithms of
``netoffload.collectives`` run. It knows neither MPI nor torch. Its caller passes a
:class:`~netoffload.transport.rendezvous.Rendezvous`, which gathers one small value from each rank::

    rank 0                                                    rank 1
    set_up ──── rendezvous: address, ports, codec ─────────── set_up          once
       │                                                        │
    TcpExchange ═══ tagged, ToS 0x28: float32 only ═══ TcpExchange            collectives
       │        ─── untagged: meetings, counts, float32 ──      │             barriers, exact values
     Watch      ═══ tagged: float32 of messages ══════════ Watch              messages
                ─── untagged: heartbeats, headers ───────                     liveness, headers of messages

Two ranks make each of these connections when they first need it. Each end first says which rank it is, in floats that
every codec leaves exact. ToS is set before the handshake on both ends: on the connecting socket, and on the listener,
from which an accepted socket inherits it. So the NICs see the tag on the SYN already, and count floats from the first
octet.

**Agreement.** Every rank must round by the same codec and bound, or their results would differ
(``netoffload.collectives``). At set-up each rank names both: its NIC's, asked over ``$NETOFFLOAD_CONTROL``, or those in
its ``Settings``. If ranks differ, all of them raise an error.

**Offload.** The ranks also agree who compresses (``config.Offload``): by default the NICs, or the ranks by themselves
if not all have the same NIC. If the ranks do it, or no one does, the tagged lanes of the picture have no tag. Coding is
a property of a connection: a ``CodedSocket`` takes and gives float32, and sends and receives chunks. So values are
rounded where NICs would round them, and no call needs to know.

**Liveness.** A thread per rank, the watch, sends heartbeats. It tells a late rank from a lost one. When a rank is lost,
every other rank raises an error that names it.

**Sharing.** Communicators of the same ranks are *contexts* of one watch. They share listeners, control and messages
lanes; each has its own connections for collectives. An error ends one context, a lost rank ends all.

Use, in each of several processes::

    from netoffload.transport import AddressRendezvous, Calls, DataPlane, Lane, Settings, read_addresses, set_up

    with AddressRendezvous(read_addresses(path), rank, limit_s=60.0) as rendezvous:
        plane = set_up(rendezvous, rendezvous.host, Settings("inceptionn", 10), DataPlane)
    calls = Calls(plane)
    request = calls.start(lambda plane: ring_allreduce(plane.exchange, gradient, tagged=True), [Lane.TAGGED])
    request.add_done_callback(lambda request: print(request.error, calls.last_info))

Rooms, each above those before it::

    rendezvous   how ranks find each other, and what they agree on
    wiring       one connection: lane, listener, hello, coding
    messages     the watch: liveness, and messages between two ranks
    rounds       collectives in compiled code
    (here)       plane: set-up, from an offer to the first meeting; sharing: communicators of the same ranks;
                 calls: calls carried out in order, and accounted for by info; local_ranks: ranks as threads
"""

from netoffload.transport.calls import Calls
from netoffload.transport.info import CommInfo, NicShare
from netoffload.transport.messages.requests import Request, wait_all
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rendezvous import Rendezvous
from netoffload.transport.rendezvous.addresses import Address, AddressRendezvous, parse_addresses, read_addresses
from netoffload.transport.rendezvous.store import Store, StoreRendezvous
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane

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
