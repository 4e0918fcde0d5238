"""Gather, scatter and all-to-all: every block goes straight from its owner to the rank that gets it.

With every algorithm a root's link carries each block once, and that link is the limit. So no tree could be faster for
long vectors. All-to-all takes p-1 steps: in step s rank r sends to r+s and receives from r-s, so that no two ranks send
to the same one. Blocks may differ in length. So a peer may be in an earlier step, with another rank, for longer than
any time limit: it is late, and not stuck.

Nothing is quantised: a block that stays with its owner does not pass a NIC, and is exact.
"""

from collections.abc import Sequence

import numpy as np

from netoffload.collectives.announcement import Announcement, Call, check_pair_counts, check_root, met
from netoffload.collectives.exchange import Exchange, Vector
from netoffload.collectives.schedule import Span
from netoffload.collectives.transfer import EXACT_TYPES, move_all, octets_of
from netoffload.errors import UsageError


def gather(
    exchange: Exchange, own: Vector, all_blocks: Vector | None, spans: Sequence[Span] | None, *, root: int, tagged: bool
) -> None:
    """Collect every rank's ``own`` block on ``root``, at ``spans`` of ``all_blocks``; other ranks use neither.

    Types are those of a ring, the same on all ranks. The root's own block is copied, unless it is in its place already.
    """
    _through_root(exchange, Call.GATHER, own, all_blocks, spans, root, tagged)


def scatter(
    exchange: Exchange, all_blocks: Vector | None, spans: Sequence[Span] | None, own: Vector, *, root: int, tagged: bool
) -> None:
    """Hand every rank its block of ``all_blocks`` on ``root``: :func:`gather` backwards, with the same arguments."""
    _through_root(exchange, Call.SCATTER, own, all_blocks, spans, root, tagged)


def _through_root(
    exchange: Exchange,
    call: Call,
    own: Vector,
    all_blocks: Vector | None,
    spans: Sequence[Span] | None,
    root: int,
    tagged: bool,
) -> None:
    root = check_root(root, exchange.size)
    is_root, is_gather = exchange.rank == root, call is Call.GATHER
    octets_of(own, _types(tagged))
    pieces = {root: own}
    if is_root:
        blocks = _blocks(exchange, all_blocks, spans, tagged)
        _keep(*((blocks[root], own) if is_gather else (own, blocks[root])))
        pieces = {peer: block for peer, block in enumerate(blocks) if peer != root}
    counts, is_sender = {peer: piece.size for peer, piece in pieces.items()}, is_root is not is_gather
    with met(exchange, Announcement(call, tagged=tagged, root=root)):
        check_pair_counts(exchange, counts if is_sender else {}, {} if is_sender else counts, _unit(own))
        moves = [
            (exchange.channel(peer, tagged=tagged), octets_of(piece, _types(tagged))) for peer, piece in pieces.items()
        ]
        move_all(exchange, moves if is_sender else [], [] if is_sender else moves)


def alltoall(
    exchange: Exchange,
    source: Vector,
    source_spans: Sequence[Span],
    target: Vector,
    target_spans: Sequence[Span],
    *,
    tagged: bool,
) -> None:
    """Send ``source[source_spans[r]]`` to every rank r, and put its block at ``target[target_spans[r]]``.

    Types are as in :func:`gather`. The vectors do not overlap, nor do the target's spans.
    """
    rank, size = exchange.rank, exchange.size
    outgoing, incoming = (
        _blocks(exchange, values, spans, tagged) for values, spans in ((source, source_spans), (target, target_spans))
    )
    if outgoing[rank].size != incoming[rank].size:
        raise UsageError(
            f"rank {rank} sends {outgoing[rank].size} {_unit(source)} to itself but expects {incoming[rank].size}"
        )
    _keep(incoming[rank], outgoing[rank])
    others = [peer for peer in range(size) if peer != rank]
    with met(exchange, Announcement(Call.ALLTOALL, tagged=tagged)):
        check_pair_counts(
            exchange,
            {peer: outgoing[peer].size for peer in others},
            {peer: incoming[peer].size for peer in others},
            _unit(target),
        )
        for step in range(1, size):
            to, start = (rank + step) % size, (rank - step) % size
            move_all(
                exchange,
                [(exchange.channel(to, tagged=tagged), octets_of(outgoing[to], _types(tagged)))],
                [(exchange.channel(start, tagged=tagged), octets_of(incoming[start], _types(tagged)))],
                may_be_late=True,
            )


def _blocks(exchange: Exchange, values: Vector | None, spans: Sequence[Span] | None, tagged: bool) -> list[Vector]:
    if values is None or spans is None:
        raise UsageError("the root of a gather or scatter needs a buffer for the blocks of all ranks")
    octets_of(values, _types(tagged))
    if len(spans) != exchange.size:
        raise UsageError(f"{len(spans)} counts for {exchange.size} ranks: give one per rank")
    if any(not 0 <= span.start <= span.stop <= values.size for span in spans):
        raise UsageError(f"counts and displacements reach beyond the {values.size} {_unit(values)} of the buffer")
    return [values[span.start : span.stop] for span in spans]


def _keep(target: Vector, source: Vector) -> None:
    if target.size != source.size:
        unit = _unit(source)
        raise UsageError(f"the root's own block has {source.size} {unit} where {target.size} are expected")
    if target.size and target.ctypes.data != source.ctypes.data:
        np.copyto(target, source)


def _types(tagged: bool) -> str:
    return "f" if tagged else EXACT_TYPES


def _unit(values: Vector) -> str:
    """Return the name of the elements, for an error."""
    return {"f": "floats", "B": "octets"}.get(values.dtype.char, f"{values.dtype}s")
