"""The kernels in use beside the oracle, on drawn floats: whether they are right on this CPU (``netoffload verify``)."""

from collections.abc import Callable
from typing import Final

import numpy as np

from netoffload.codec import Codec
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CodecError

BLOCK: Final = 1 << 15
_EDGES: Final = (0, 1, 0x7FFFFF)
"""Mantissas that meet every sign and exponent, so subnormals, infinities and NaN too."""


def first_difference(
    codec: Codec, bound_k: int, count: int, seed: int, on_progress: Callable[[int], None] = lambda _done: None
) -> str | None:
    """Say where kernels and oracle differ first, in payload, decoded floats or round trip; None: nowhere."""
    for start in range(0, count, BLOCK):
        values = _drawn(start, min(BLOCK, count - start), seed)
        payload = codec.oracle.encode(values, bound_k)
        wanted = codec.oracle.round_trip(values, bound_k)
        octets = codec.encode(values, bound_k)
        if octets.tobytes() != payload.tobytes():
            return f"the payload of {values.size} floats from number {start} on is not the oracle's"
        try:
            decoded = codec.decode(payload, values.size, bound_k)
        except CodecError as error:
            return f"the payload of {values.size} floats from number {start} on is refused: {error}"
        for what, got in (("decoded", decoded), ("rounded", codec.round_trip(values, bound_k))):
            bits = [floats.view(np.uint32) for floats in (values, wanted, got)]
            differ = np.flatnonzero(bits[1] != bits[2])
            if differ.size:
                float_, expected, found = (f"0x{int(one[differ[0]]):08x}" for one in bits)
                return f"{float_} is {what} as {found}, and the oracle's is {expected}"
        on_progress(start + values.size)
    return None


def _drawn(start: int, count: int, seed: int) -> Float32Array:
    """Return floats in four parts: at the beginning the edges, then bit patterns and numbers like gradients' by turns.

    The other parts are numbers like gradients', the same as pairs of bf16, and the same with a low half of 0.
    """
    rng = np.random.default_rng((seed, start))
    words = rng.integers(0, 1 << 32, count, np.uint32)
    like_gradients = rng.normal(0, 1, count) * 10 ** rng.uniform(-6, 0, count)
    numbers, quarter = like_gradients.astype(np.float32).view(np.uint32), count // 4
    words[::2] = numbers[::2]
    words[quarter:] = numbers[quarter:]
    words[2 * quarter :] &= np.uint32(0xFFFF0000)
    words[2 * quarter : 3 * quarter] |= numbers[:quarter] >> 16
    if start == 0:
        edges = np.add.outer(np.arange(512, dtype=np.uint32) << 23, np.array(_EDGES, np.uint32)).reshape(-1)
        words[: edges.size] = edges[:count]
    return words.view(np.float32)
