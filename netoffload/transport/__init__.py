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

Two ranks make each of these connections when they first need it. ToS is set before the handshake on both ends. So the
NICs see the tag on the SYN already, and count floats from the first octet. If the ranks compress by themselves, or no
one does (``config.Offload``), no connection has a tag.

A thread per rank, the watch, tells a late rank from a lost one. Communicators of the same ranks are *contexts* of one
watch. An error ends one context, a lost rank ends all.

Use, in each of several processes::

    from netoffload.transport import Calls, DataPlane, Lane, Settings, StoreRendezvous, set_up

    store = torch.distributed.TCPStore(address_of_rank_0, 29500, size, is_master=rank == 0)
    rendezvous = StoreRendezvous(store, rank, size, limit_s=60.0)
    calls = Calls(set_up(rendezvous, own_address, Settings("inceptionn", 10), DataPlane))
    request = calls.start(lambda plane: ring_allreduce(plane.exchange, gradient, tagged=True), [Lane.TAGGED])
    request.add_done_callback(lambda request: print(request.error, calls.last_info))

Rooms, each above those before it::

    rendezvous   how ranks find each other, and what they agree on
    wiring       one connection: lane, listener, hello, coding
    messages     the watch: liveness, and messages between two ranks
    rounds       collectives in compiled code
    (here)       plane: set-up, from an offer to the first meeting; calls: calls carried out in order, and accounted
                 for by info; local_ranks: ranks as threads
"""

from netoffload.transport.calls import Calls
from netoffload.transport.info import CommInfo
from netoffload.transport.messages.requests import Request, wait_all
from netoffload.transport.plane import DataPlane, Settings, set_up
from netoffload.transport.rendezvous import Rendezvous
from netoffload.transport.rendezvous.store import Store, StoreRendezvous
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane

__all__ = [
    "Calls",
    "CommInfo",
    "DataPlane",
    "Lane",
    "Rendezvous",
    "Request",
    "Settings",
    "Store",
    "StoreRendezvous",
    "TcpExchange",
    "set_up",
    "wait_all",
]
