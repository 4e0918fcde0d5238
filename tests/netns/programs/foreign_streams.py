"""Streams of data that are not an array of float32 from the first octet to the last, as real programs send them.

Each stream is what one end of a connection writes. ``STREAMS`` has them by name; every call makes the same octets.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

REDIS_OCTETS: Final = (4096, 5000, 8192, 10_000, 12_288, 16_384, 20_000, 32_768, 40_000)
"""Lengths of vectors in a Redis reply. Headers of lengths from 10,000 on have 8 octets, the others have 7."""
FRAME_FLOATS: Final = 3000


@dataclass(frozen=True)
class Stream:
    """Octets and how a program writes them: the first writes in octets, then the rest in large ones."""

    octets: bytes
    first_writes: tuple[int, ...] = ()


def gradient(floats: int, seed: int = 1) -> np.ndarray:
    """Return normal values like those of a gradient, float32[floats]."""
    return np.random.default_rng(seed).normal(0, 2e-3, floats).astype("<f4")


def _redis(octets: int) -> Stream:
    replies = [
        b"$%d\r\n%s\r\n" % (octets, gradient(-(-octets // 4), seed).tobytes()[:octets])
        for seed in range(1 + 100_000 // octets)
    ]
    return Stream(b"".join(replies))


def _pfm() -> Stream:
    pixels = np.random.default_rng(2).uniform(0, 1, (240, 320, 3)).astype("<f4")
    return Stream(b"PF\n320 240\n-1.0\n" + pixels.tobytes())


def _half_pixels() -> Stream:
    rows, columns = np.mgrid[0:160, 0:160] / 160.0
    pixels = np.stack([rows, columns, rows * columns, np.ones_like(rows)], axis=-1)
    return Stream(pixels.astype("<f2").tobytes())


def _sunset_half_pixels() -> Stream:
    """A sunset: much red, some green, little blue, no transparency."""
    draw = np.random.default_rng(3)
    low, high = np.array([4.0, 0.5, 0.02, 1.0]), np.array([16.0, 1.0, 0.1, 1.0])
    return Stream((low + (high - low) * draw.uniform(0, 1, (160, 160, 4))).astype("<f2").tobytes())


def _cmyk() -> Stream:
    rows, columns = np.mgrid[0:200, 0:200]
    pixels = np.stack([rows + 20, columns // 2 + 60, (rows + columns) // 4 + 30, np.full_like(rows, 0x3C)], axis=-1)
    return Stream(pixels.astype(np.uint8).tobytes())


def _noisy_cmyk() -> Stream:
    draw = np.random.default_rng(4)
    pixels = draw.integers(0, 256, (200, 200, 4), dtype=np.uint8)
    pixels[..., 3] = draw.integers(50, 70, (200, 200))  # little black
    return Stream(pixels.tobytes())


def _float64() -> Stream:
    return Stream(np.random.default_rng(5).normal(0, 1, 20_000).astype("<f8").tobytes())


def _round_float64() -> Stream:
    return Stream(np.random.default_rng(5).integers(1, 2000, 20_000).astype("<f8").tobytes())


def _times() -> Stream:
    """Seconds since 1970, of August 2003: the last years whose words are below 1.0 as float32."""
    steps = np.random.default_rng(6).integers(0, 30, 40_000)
    return Stream((1_060_000_000 + np.cumsum(steps)).astype("<i4").tobytes())


def _recent_times() -> Stream:
    steps = np.random.default_rng(6).integers(0, 30, 40_000)
    return Stream((1_730_000_000 + np.cumsum(steps)).astype("<i4").tobytes())


def _ids() -> Stream:
    return Stream(np.random.default_rng(7).integers(900_000_000, 1_070_000_000, 40_000).astype("<i4").tobytes())


def _pairs_of_int16() -> Stream:
    """Coordinates of a screen: x from 0 to 65,535, y near 15,500 as the upper half."""
    draw = np.random.default_rng(8)
    x, y = draw.integers(0, 32_768, 40_000), draw.integers(15_000, 16_200, 40_000)
    return Stream(np.stack([x, y], axis=-1).astype("<i2").tobytes())


def _addresses() -> Stream:
    """IPv4 addresses of 10.0.0.0/8 in network byte order, whose last octet is the word's sign and exponent."""
    draw = np.random.default_rng(9)
    octets = np.stack([np.full(40_000, 10), *draw.integers(0, 256, (2, 40_000)), draw.integers(50, 75, 40_000)], axis=1)
    return Stream(octets.astype(np.uint8).tobytes())


def _host_order_addresses() -> Stream:
    """IPv4 addresses of 60.0.0.0/7 in the order of the host."""
    return Stream(np.random.default_rng(10).integers(60 << 24, 62 << 24, 40_000).astype("<u4").tobytes())


def _frames(first_write: int) -> Stream:
    body = gradient(FRAME_FLOATS, 11).tobytes()
    frames = b"".join(struct.pack("<I", len(body)) + body for _ in range(8))
    return Stream(frames, (first_write,) if first_write else ())


def _frames_of_float_length(first_write: int) -> Stream:
    """Frames as if the length were counted in floats, in network byte order, as XDR does it."""
    body = gradient(FRAME_FLOATS, 12).tobytes()
    frames = b"".join(struct.pack(">I", FRAME_FLOATS) + body for _ in range(8))
    return Stream(frames, (first_write,) if first_write else ())


def _leading_floats_frames() -> Stream:
    """A kilobyte of floats, then frames of a length and floats: the lengths come behind the NIC's verdict."""
    body = gradient(FRAME_FLOATS, 13).tobytes()
    return Stream(gradient(512, 14).tobytes() + b"".join(struct.pack("<I", len(body)) + body for _ in range(8)))


def _text_after_floats(floats: int) -> Stream:
    text = b"".join(b"%d: the quick brown fox jumps over the lazy dog\n" % line for line in range(2000))
    return Stream(gradient(floats, 15).tobytes() + text)


def _checksums_among_floats() -> Stream:
    parts = []
    for seed in range(16):
        body = gradient(4096, seed).tobytes()
        parts.append(body + struct.pack("<I", zlib.crc32(body)))
    return Stream(b"".join(parts))


def _indexed_values() -> Stream:
    """A sparse vector as pairs of an int32 and a float32."""
    pairs = np.empty(20_000, np.dtype([("index", "<i4"), ("value", "<f4")]))
    pairs["index"] = np.sort(np.random.default_rng(16).choice(1_000_000_000, 20_000, replace=False))
    pairs["value"] = gradient(20_000, 16)
    return Stream(pairs.tobytes())


def _indices_behind_values() -> Stream:
    """A sparse vector as an array of values, then an array of indices."""
    indices = np.sort(np.random.default_rng(17).choice(1_000_000_000, 20_000, replace=False)).astype("<i4")
    return Stream(gradient(20_000, 17).tobytes() + indices.tobytes())


def _npy() -> Stream:
    file = io.BytesIO()
    np.save(file, gradient(30_000, 18))
    return Stream(file.getvalue())


def _safetensors() -> Stream:
    values = gradient(30_000, 19).tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [30_000], "data_offsets": [0, len(values)]}}).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    return Stream(struct.pack("<Q", len(header)) + header + values)


def _bfloat16() -> Stream:
    words = gradient(60_000, 20).view("<u4") >> 16
    return Stream(words.astype("<u2").tobytes())


def _big_endian_floats() -> Stream:
    return Stream(gradient(30_000, 21).astype(">f4").tobytes())


def _shifted_floats(octets: int) -> Stream:
    """Floats behind one to three octets of something else."""
    return Stream(b"\x01\x02\x03"[:octets] + gradient(30_000, 22).tobytes())


def _records() -> Stream:
    """Points of a cloud: three float32, then red, green, blue and a class, an octet each."""
    points = np.empty(10_000, np.dtype([("xyz", "<f4", 3), ("rgbc", "u1", 4)]))
    draw = np.random.default_rng(23)
    points["xyz"], points["rgbc"] = draw.normal(0, 10, (10_000, 3)), draw.integers(0, 256, (10_000, 4))
    points["rgbc"][:, 3] = 2
    return Stream(points.tobytes())


def _zeros_then_text() -> Stream:
    return Stream(bytes(4096) + b"".join(b"line %d of a log\n" % line for line in range(3000)))


def _random() -> Stream:
    return Stream(np.random.default_rng(24).bytes(150_000))


FIRST_WRITES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8)
"""Octets of the first write of a framed stream; 0: no write is cut."""

GRADIENTS: Final = "gradients"

STREAMS: Final[dict[str, Callable[[], Stream]]] = {
    GRADIENTS: lambda: Stream(gradient(40_000).tobytes()),
    **{f"redis {octets}": partial(_redis, octets) for octets in REDIS_OCTETS},
    "pfm": _pfm,
    "rgba16f": _half_pixels,
    "rgba16f sunset": _sunset_half_pixels,
    "cmyk": _cmyk,
    "cmyk noisy": _noisy_cmyk,
    "float64": _float64,
    "float64 whole": _round_float64,
    "unix times": _times,
    "unix times 2024": _recent_times,
    "ids": _ids,
    "int16 pairs": _pairs_of_int16,
    "ipv4 addresses": _addresses,
    "ipv4 addresses in host order": _host_order_addresses,
    **{f"frames, first write {octets}": partial(_frames, octets) for octets in FIRST_WRITES},
    **{f"xdr frames, first write {octets}": partial(_frames_of_float_length, octets) for octets in FIRST_WRITES},
    "floats, then frames": _leading_floats_frames,
    "text after 1 KiB of floats": partial(_text_after_floats, 256),
    "text after floats": partial(_text_after_floats, 20_000),
    "checksums among floats": _checksums_among_floats,
    "indexed values": _indexed_values,
    "indices behind values": _indices_behind_values,
    "npy": _npy,
    "safetensors": _safetensors,
    "bfloat16": _bfloat16,
    "big-endian floats": _big_endian_floats,
    **{f"floats behind {octets} octets": partial(_shifted_floats, octets) for octets in (1, 2, 3)},
    "point cloud": _records,
    "zeros, then text": _zeros_then_text,
    "random octets": _random,
}


def writes_of(stream: Stream) -> Iterator[bytes]:
    """Yield what the program writes, one write after the other."""
    at = 0
    for octets in stream.first_writes:
        yield stream.octets[at : at + octets]
        at += octets
    while at < len(stream.octets):
        yield stream.octets[at : at + 65_536]
        at += 65_536
