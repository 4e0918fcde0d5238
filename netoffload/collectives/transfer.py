"""Whole messages over non-blocking channels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from netoffload.collectives.exchange import Channel, Exchange, Vector
from netoffload.errors import UsageError

Piece = tuple[Channel, memoryview]  # a channel, and the octets to send on it or to fill from it


EXACT_TYPES: Final = "fdilB"
"""What untagged rings reduce and gather, by NumPy's letters: float32, float64, int32, int64, uint8. NICs compress
float32 only."""


def octets_of(values: Vector, types: str = "f") -> memoryview:
    """Return the memory of a contiguous vector of one of ``types``, by NumPy's letters, as octets, without a copy."""
    if values.ndim != 1 or values.dtype.char not in types or not values.flags.c_contiguous:
        names = ", ".join(np.dtype(letter).name for letter in types)
        raise UsageError(f"collectives take contiguous {names} vectors, not {values.dtype} of shape {values.shape}")
    # memoryview.cast refuses views of no elements.
    return values.data.cast("B") if values.size else memoryview(bytearray())


@contextmanager
def aborting_on_error(exchange: Exchange) -> Iterator[None]:
    """Abort ``exchange`` if the body raises: its streams are at unknown positions, and the peers must learn of it."""
    try:
        yield
    except BaseException as error:
        exchange.abort(error)
        raise


def move_all(
    exchange: Exchange, sends: Sequence[Piece], receives: Sequence[Piece], *, may_be_late: bool = False
) -> None:
    """Send and fill all pieces at the same time, each as fast as its peer allows; one per channel and direction."""
    outward, inward = [piece for piece in sends if piece[1]], [piece for piece in receives if piece[1]]
    while outward or inward:
        moved = 0
        for pieces, move in ((outward, _send), (inward, _receive)):
            for index, piece in enumerate(pieces):
                count = move(piece)
                moved += count
                pieces[index] = (piece[0], piece[1][count:])
        outward, inward = [piece for piece in outward if piece[1]], [piece for piece in inward if piece[1]]
        if not moved:
            exchange.wait([piece[0] for piece in inward], [piece[0] for piece in outward], may_be_late=may_be_late)


def swap_numbers(
    exchange: Exchange, sending: Mapping[int, int], sources: Iterable[int], *, may_be_late: bool = False
) -> dict[int, int]:
    """Tell each peer its number of ``sending``, and return the number that each of ``sources`` tells this rank."""
    words = {peer: bytearray(8) for peer in sources}
    sends = [(exchange.channel(peer, tagged=False), memoryview(one.to_bytes(8))) for peer, one in sending.items()]
    receives = [(exchange.channel(peer, tagged=False), memoryview(word)) for peer, word in words.items()]
    move_all(exchange, sends, receives, may_be_late=may_be_late)
    return {peer: int.from_bytes(word) for peer, word in words.items()}


def _send(piece: Piece) -> int:
    return piece[0].send_some(piece[1])


def _receive(piece: Piece) -> int:
    return piece[0].receive_some(piece[1])
