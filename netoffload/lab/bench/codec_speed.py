"""Speed, ratio and error of the kernels, beside memcpy in the same moment.

A sample is one memcpy, one encoding and two decodings of the same vector, in turn. So other work on the machine slows
all of them alike. A compiled loop codes small vectors several times per sample, because a call from Python costs as
much as 10 KB. The answer is checked against the oracle before anything is timed.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec import Codec, kernels
from netoffload.codec.bursts import DECODE_SLACK, ENCODE_SLACK, LANES, MAX_BURST_PAYLOAD, Middle
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import BOUNDED_BY_K
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.jit import inlined_with, kernel
from netoffload.compiled.octets import copy_octets
from netoffload.errors import RunError
from netoffload.lab.bench.experiment import Contender, take_turns

FLOAT_OCTETS: Final = 4

SAMPLE_OCTETS: Final = 4_000_000
"""Octets per sample: a smaller vector is coded several times."""

WARM_RUNS: Final = 3


@dataclass(frozen=True)
class Speed:
    """Octets of floats per second, over 1e9: the median of the samples, and the best."""

    median_GBps: float  # noqa: N815 - the unit as it is written
    best_GBps: float  # noqa: N815

    @classmethod
    def of(cls, octets: int, times_s: Sequence[float]) -> Speed:
        """Return the speed of handling ``octets`` in each of these times."""
        return cls(octets / statistics.median(times_s) / 1e9, octets / min(times_s) / 1e9)


@dataclass(frozen=True)
class Quality:
    """The effect on a vector: worst and mean error over finite floats, ratio, shares of the classes."""

    max_error: float
    mean_error: float
    ratio: float
    shares: list[float]


@dataclass(frozen=True)
class Measurement:
    """One codec, kernel and vector; decoded from the front, and from the front and the middle as blocks are."""

    memcpy: Speed
    compress: Speed
    decompress: Speed
    decompress_halves: Speed
    quality: Quality


class Functions(NamedTuple):
    """The kernels of a variant, and their parameters: a bound, a unit or a number of bits."""

    encode: Callable[..., Any]
    encode_parameter: Any
    decode: Callable[..., Any]
    decode_halves: Callable[..., Any]
    decode_parameter: Any


@dataclass(frozen=True)
class Variant:
    """One codec with one of its kernels."""

    codec: Codec
    kernel: str

    @property
    def takes_bound(self) -> bool:
        """Whether the error bound makes a difference."""
        return self.codec.codec_id in BOUNDED_BY_K

    def functions(self, bound_k: int) -> Functions:
        """Return its kernels for a bound."""
        of = kernels.kernels_of(self.codec.codec_id, self.kernel)
        decoding = np.float32(of.decoding(bound_k)) if self.takes_bound else of.decoding(bound_k)
        return Functions(of.encode, bound_k, of.decode, of.decode_halves, decoding)


def variants(codecs: Sequence[Codec], only_kernels: Sequence[str] = ()) -> list[Variant]:
    """Return every codec with every kernel that runs here; codecs without a bound have the plain one only."""
    names = [name for name in kernels.usable_kernels() if not only_kernels or name in only_kernels]
    made = [Variant(codec, name) for codec in codecs for name in names]
    return [variant for variant in made if variant.takes_bound or variant.kernel == "plain"]


def measure(variant: Variant, values: Float32Array, wanted: Float32Array, bound_k: int, repeat: int) -> Measurement:
    """Check a codec on a contiguous float32[n], of which the oracle makes ``wanted``, then time it."""
    encode, encode_parameter, decode, decode_halves, decode_parameter = variant.functions(bound_k)
    source, count = values.view(np.uint8), values.size
    capacity = -(-count // LANES) * MAX_BURST_PAYLOAD
    payload = np.zeros(capacity + max(ENCODE_SLACK, DECODE_SLACK), np.uint8)
    target = np.zeros(-(-count // LANES) * LANES, np.float32)
    octets, classes = target.view(np.uint8), np.zeros(4, np.int64)
    halves = payload.copy()
    halves_len, middle = _encode_halves(encode, source, count, encode_parameter, halves, capacity)
    half = halves_len, count, middle, decode_parameter
    encoded, length = encode(source, 0, count, encode_parameter, payload, 0, capacity, classes)
    decodings: list[tuple[int, Callable[[], object]]] = [
        (length, lambda: decode(payload, 0, length, count, decode_parameter, octets, 0)),
        (halves_len, lambda: decode_halves(halves, 0, *half, octets, 0)),
    ]
    for octets_read, decoding in decodings:
        target[:] = np.nan  # what an earlier decoding left must not pass for an answer
        if (encoded, decoding()) != (count, octets_read) or target[:count].tobytes() != wanted.tobytes():
            raise RunError(f"{variant.codec.name} ({variant.kernel}) is wrong: run 'netoffload verify codec'")
    quality = Quality(*errors(values, wanted), source.size / length, (classes / count).tolist())
    times = max(1, math.ceil(SAMPLE_OCTETS / source.size))
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "compress": (encode, (source, 0, count, encode_parameter, payload, 0, capacity, classes)),
        "decompress": (decode, (payload, 0, length, count, decode_parameter, octets, 0)),
        "decompress_halves": (decode_halves, (halves, 0, *half, octets, 0)),
    }
    tasks = {"memcpy": functools.partial(_copy_repeatedly, times, source, octets)}
    tasks |= {name: functools.partial(_repeatedly, function, times, given) for name, (function, given) in calls.items()}
    return Measurement(**speeds(tasks, times * source.size, repeat), quality=quality)


def _encode_halves(
    encode: Callable[..., Any], source: Uint8Array, count: int, parameter: Any, payload: Uint8Array, capacity: int
) -> tuple[int, Middle]:
    """Encode each half by itself, as NICs encode blocks; return the octets and the middle."""
    half_count, classes = count // 2 // GROUP * GROUP, np.zeros(4, np.int64)
    _, half_len = encode(source, 0, half_count, parameter, payload, 0, capacity, classes)
    rest = 4 * half_count, count - half_count, parameter, payload, half_len, capacity - half_len
    return half_len + encode(source, *rest, classes)[1], Middle(half_len, half_count)


def speeds(tasks: Mapping[str, Callable[[], object]], octets: int, repeat: int) -> dict[str, Speed]:
    """Time tasks in turn, ``repeat`` times each, and return each one's speed.

    Every task runs a few times before it is timed, so the caches hold its own data. After only one run of 16 MB, a
    third-level cache still holds much of the previous task's data, and memcpy is half as fast as alone.
    """
    contenders = [Contender(name, functools.partial(_timed_s, task)) for name, task in tasks.items()]
    take_turns(contenders, repeat)
    return {contender.name: Speed.of(octets, contender.samples) for contender in contenders}


def _timed_s(task: Callable[[], object], _number: int) -> float:
    for _ in range(WARM_RUNS):
        task()
    started = time.perf_counter()
    task()
    return time.perf_counter() - started


def errors(values: Float32Array, decoded: Float32Array) -> tuple[float, float]:
    """Return the worst and the mean abs(x - x') over the finite floats, in float64."""
    finite = np.isfinite(values)
    difference = np.abs(values[finite].astype(np.float64) - decoded[finite])
    return float(difference.max(initial=0.0)), float(difference.mean()) if difference.size else 0.0


@inlined_with
def _repeatedly(function: Callable[..., Any], times: int, arguments: tuple[Any, ...]) -> None:
    for _ in range(times):
        function(*arguments)


@kernel
def _copy_repeatedly(times: int, source: Uint8Array, target: Uint8Array) -> None:
    for _ in range(times):
        copy_octets(source, 0, target, 0, source.size)
