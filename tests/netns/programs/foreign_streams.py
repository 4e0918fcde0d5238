"""Streams of data that are not an array of float32 from the first octet to the last, as real programs send them.

Each stream is what one end of a connection writes. ``STREAMS`` has them by name; every call makes the same octets.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np


@dataclass(frozen=True)
class Stream:
    """Octets, and how a program writes them: one short write of so many octets, then the rest in large ones."""

    octets: bytes
    first_write: int = 0


def gradient(floats: int, seed: int = 1) -> np.ndarray:
    """Return normal values like those of a gradient, float32[floats]."""
    return np.random.default_rng(seed).normal(0, 2e-3, floats).astype("<f4")


def _redis(octets: int) -> Stream:
    """Replies with vectors. Headers of lengths from 10,000 on have 8 octets, the others have 7."""
    vectors = [gradient(octets // 4, seed).tobytes() for seed in range(1 + 100_000 // octets)]
    return Stream(b"".join(b"$%d\r\n%s\r\n" % (octets, vector) for vector in vectors))


def _half_pixels() -> Stream:
    rows, columns = np.mgrid[0:160, 0:160] / 160.0
    pixels = np.stack([rows, columns, rows * columns, np.ones_like(rows)], axis=-1)
    return Stream(pixels.astype("<f2").tobytes())


def _frames(leading_floats: int, first_write: int) -> Stream:
    """Frames of a length and floats; behind leading floats, the lengths come behind the NIC's verdict."""
    body = gradient(3000, 11).tobytes()
    frames = b"".join(struct.pack("<I", len(body)) + body for _ in range(8))
    return Stream(gradient(leading_floats, 14).tobytes() + frames, first_write)


def _text(before: bytes) -> Stream:
    return Stream(
        before + b"".join(b"%d: the quick brown fox jumps over the lazy dog\n" % line for line in range(2000))
    )


GRADIENTS: Final = "gradients"
BEHIND: Final = "text after floats"
STREAMS: Final[dict[str, Callable[[], Stream]]] = {
    GRADIENTS: lambda: Stream(gradient(40_000).tobytes()),
    "redis 4096": partial(_redis, 4096),
    "redis 10000": partial(_redis, 10_000),
    "rgba16f": _half_pixels,
    "frames": partial(_frames, 0, 0),
    "frames, first write 5": partial(_frames, 0, 5),
    "floats, then frames": partial(_frames, 512, 0),
    BEHIND: lambda: _text(gradient(20_000, 15).tobytes()),
    "zeros, then text": lambda: _text(bytes(4096)),
    "floats behind an octet": lambda: Stream(b"\x01" + gradient(30_000, 22).tobytes()),
}


def writes_of(stream: Stream) -> Iterator[bytes]:
    """Yield what the program writes, one write after the other."""
    if stream.first_write:
        yield stream.octets[: stream.first_write]
    for at in range(stream.first_write, len(stream.octets), 65_536):
        yield stream.octets[at : at + 65_536]
