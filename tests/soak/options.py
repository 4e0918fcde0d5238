"""The connections of a soak as data: the values they carry, and the options that an application may choose.

:class:`Values` writes the files that endpoints send and compare with: one pair per distribution, the second through
:meth:`~netoffload.codec.base.Codec.round_trip`. :func:`draw_options` draws a connection from a seed: writes that keep
floats whole or cut them, small buffers, odd MSS, pauses, either IP version.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from netoffload.codec import get
from netoffload.config import TOS_COMPRESS

BLOCK_VALUES: Final = 1 << 18
"""Values in a file; a stream repeats the file, from its own position."""
DISTRIBUTIONS: Final = ("gradients", "wide", "unit", "sparse", "edge")


class Values:
    """The files of float32 that endpoints send and compare with."""

    def __init__(self, folder: Path, codec: str, bound_k: int, seed: int) -> None:
        """Write all files into ``folder``; ``seed`` decides the values."""
        self._folder = folder
        for index, name in enumerate(DISTRIBUTIONS):
            sent = draw_values(name, BLOCK_VALUES, seed + index)
            sent.tofile(self.sent(name))
            get(codec).round_trip(sent, bound_k).tofile(self.rounded(name))

    def sent(self, name: str) -> Path:
        return self._folder / f"{name}-sent.bin"

    def rounded(self, name: str) -> Path:
        """Return the file with the codec's round trip of these values."""
        return self._folder / f"{name}-rounded.bin"


def draw_values(name: str, count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return ``count`` float32 of a distribution.

    ``gradients`` are N(0, 0.002), ``wide`` ones N(0, 0.1), ``unit`` ones 0..1, and of ``sparse`` ones nine in ten are
    0. ``edge`` has neighbours of 0.125 whose codes are of two lengths, so that a mix of two forms shows.
    """
    draw = np.random.default_rng(seed)
    if name == "edge":
        return (np.uint32(0x3DFFFF00) | draw.integers(0, 256, count, dtype=np.uint32)).view(np.float32)
    if name == "unit":
        return draw.random(count, np.float32)
    values = draw.standard_normal(count, np.float32) * np.float32(2e-3 if name == "gradients" else 0.1)
    return np.where(draw.random(count) < 0.9, np.float32(0), values) if name == "sparse" else values


@dataclass(frozen=True)
class Direction:
    """How one end writes, and how the other reads.

    The stream begins at the value ``rotation`` of the file. ``write_octets`` has the smallest and largest write, and
    the step between possible sizes; ``read_octets`` the smallest and largest read. With ``more`` half the writes carry
    ``MSG_MORE``. The reader pauses after ``pause_share`` of its reads, for ``pause_s`` at most.
    """

    distribution: str = "gradients"
    rotation: int = 0
    octets: int = 4_000_000
    write_octets: tuple[int, int, int] = (65536, 65536, 4)
    rate_octets_per_s: float = 1e12
    more: bool = False
    cork: bool = False
    read_octets: tuple[int, int] = (262_144, 262_144)
    pause_share: float = 0.0
    pause_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return all(number % 4 == 0 for number in (self.write_octets[0], self.write_octets[2]))


@dataclass(frozen=True)
class FlowOptions:
    """One connection from node ``connector`` to node ``listener``; what the connector sends is its first direction.

    Where an option of the sockets is 0 the kernel chooses. Both ends sign their segments with ``md5_key`` (RFC 2385,
    IPv4 only) unless it is empty. The seed decides the sizes of writes and reads.
    """

    listener: int
    connector: int
    directions: tuple[Direction, Direction] = (Direction(), replace(Direction(), octets=0))
    is_ipv6: bool = False
    tos: int = TOS_COMPRESS
    rcvbuf_octets: int = 0
    sndbuf_octets: int = 0
    maxseg: int = 0
    nodelay: bool = False
    md5_key: str = ""
    seed: int = 0


def draw_options(draw: random.Random, *, ipv6: bool = True) -> FlowOptions:
    """Draw a connection between n0 and n1."""
    listener = draw.randrange(2)
    back = _draw_direction(draw) if draw.random() < 0.6 else replace(Direction(), octets=0)
    return FlowOptions(
        listener=listener,
        connector=1 - listener,
        directions=(_draw_direction(draw), back),
        is_ipv6=ipv6 and draw.random() < 0.35,
        tos=0 if draw.random() < 0.1 else TOS_COMPRESS,
        rcvbuf_octets=draw.choice((0, 0, 0, 6001, 20_000, 65_535)),
        sndbuf_octets=draw.choice((0, 0, 0, 0, 9001, 40_000)),
        maxseg=draw.choice((0, 0, 0, 536, 999, 1001, 1203)),
        nodelay=draw.random() < 0.5,
        seed=draw.randrange(1 << 30),
    )


def _draw_direction(draw: random.Random) -> Direction:
    whole = draw.choice(((65536, 65536, 4), (4, 4096, 4), (4096, 262_144, 4), (4, 200_000, 4)))
    cut = draw.choice(((4095, 4095, 1), (1, 9000, 1), (1447, 1449, 1), (30_001, 30_001, 1), (65_535, 65_537, 1)))
    pauses = draw.random() < 0.3
    return Direction(
        distribution=draw.choice(DISTRIBUTIONS),
        rotation=draw.randrange(BLOCK_VALUES),
        octets=draw.randrange(500_000, 12_000_000),
        write_octets=whole if draw.random() < 0.65 else cut,
        rate_octets_per_s=draw.choice((300e3, 1e6, 1e6, 3e6, 10e6)),
        more=draw.random() < 0.2,
        cork=draw.random() < 0.2,
        read_octets=draw.choice(((262_144, 262_144), (1, 65_536), (100, 3000))),
        pause_share=0.02 if pauses else 0.0,
        pause_s=0.5 if pauses else 0.0,
    )
