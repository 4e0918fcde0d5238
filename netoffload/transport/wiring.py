"""How a rank gets its data plane's connections: the first ones now, all others when a call needs them.

All ranks have gathered their offers, which name two listening ports each. Every rank connects with its neighbours
(``links``) on the control lane, and they begin to watch each other. Then all meet, which is their first call: who
leaves it knows that all ranks are connected. So one failure is everybody's: whoever fails says so to its neighbours,
and a rank that dies or stops meanwhile is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from netoffload.collectives import barrier
from netoffload.transport.agreement import Marking, Offer, Quantiser
from netoffload.transport.dataplane import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT, TcpExchange
from netoffload.transport.joining import Listeners
from netoffload.transport.links import Links
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
        offers: of all ranks, in rank order.
        listeners: this rank's, whose ports are in its offer; owned from now on.
        tos: of tagged connections.
        timeout_s: for each connection, and for a silent peer.
        late_s: for a peer that lives but does not come.
        coding: what both ends of tagged lanes code by; None: they do not.

    Raises:
        CollectiveError: a connection of any rank failed; on all ranks.
    """
    watch = Watch(Links(rank, offers, listeners, tos, timeout_s, coding), timeout_s)
    return enter(watch, FIRST_CONTEXT, timeout_s, late_s)


def enter(watch: Watch, number: int, timeout_s: float, late_s: float) -> TcpExchange:
    """Become a context of a watch that this caller holds, and start the watch if it is new; collective.

    Args:
        watch: new, or one that this caller keeps alive meanwhile.
        number: of the context, the same on all ranks.
        timeout_s: as the watch's.
        late_s: for a peer that lives but does not come.

    Raises:
        CollectiveError: a rank is gone, or a connection of any rank failed; on all ranks.
    """
    exchange = TcpExchange(watch.rank, watch.links.size, watch.attach(number), timeout_s, late_s)
    try:
        watch.start()
        barrier(exchange)
    except BaseException as error:
        exchange.abort(error)
        raise
    return exchange
