"""How a rank gets its data plane's connections: the first ones at set-up, all others when a call needs them.

All ranks have gathered their offers, each of which names two listening ports. Every rank connects with its neighbours
(``links``) on the control lane, and they begin to watch each other. Then all ranks meet, which is their first call. A
rank that leaves this meeting knows that all ranks are connected. So all ranks fail together: a rank that fails tells
its neighbours, and the error names a rank that dies or stops meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from netoffload.collectives import barrier
from netoffload.errors import MalformedError
from netoffload.transport.agreement import Marking, Offer, Quantiser
from netoffload.transport.dataplane import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT, TcpExchange
from netoffload.transport.links import Links
from netoffload.transport.listening import Listeners
from netoffload.transport.watch import FIRST_CONTEXT, Watch


def wire_up(
    rank: int,
    offers: Sequence[Offer],
    listeners: Listeners,
    tos: int = Marking.tos,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    late_s: float = LATE_S_DEFAULT,
    coding: Quantiser | None = None,
) -> TcpExchange:
    """Connect this rank with the others; collective.

    Args:
        rank: this rank.
        offers: the offers of all ranks, in rank order.
        listeners: this rank's listeners, whose ports are in its offer; the exchange closes them.
        tos: ToS of tagged connections.
        timeout_s: limit for making a connection, and for a silent peer.
        late_s: limit for a peer that lives but does not come to a call.
        coding: codec and bound by which both ends of tagged lanes code; None: they do not code.

    Raises:
        CollectiveError: a connection of any rank failed; on all ranks.
        MalformedError: a rank offered no address.
    """
    for peer, offer in enumerate(offers):
        if len(offers) > 1 and not (offer.address and offer.ports):
            listeners.close()
            raise MalformedError(f"rank {peer} offered no address: install the same version everywhere")
    watch = Watch(Links(rank, offers, listeners, tos, timeout_s, coding), timeout_s)
    return enter(watch, FIRST_CONTEXT, timeout_s, late_s)


def enter(watch: Watch, number: int, timeout_s: float, late_s: float) -> TcpExchange:
    """Add a context to a watch, start the watch if it is new, and return the context's exchange; collective.

    Args:
        watch: a new watch, or one that the caller keeps alive meanwhile.
        number: the context's number, the same on all ranks.
        timeout_s: the same limit as the watch's.
        late_s: limit for a peer that lives but does not come to a call.

    Raises:
        CollectiveError: a rank is lost, or a connection of any rank failed; on all ranks.
    """
    exchange = TcpExchange(watch.rank, watch.links.size, watch.attach(number), timeout_s, late_s)
    try:
        watch.start()
        barrier(exchange)
    except BaseException as error:
        exchange.abort(error)
        raise
    return exchange
