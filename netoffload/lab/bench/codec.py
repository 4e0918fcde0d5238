"""Speed, ratio and error of the NIC's codecs, kernel by kernel, beside memcpy and general compressors.

A sample is one memcpy, one encoding and two decodings of the same vector, in turn. So other work on the machine slows
all of them alike. A compiled loop codes small vectors several times per sample, because a call from Python costs as
much as 10 KB. The answer is checked against the oracle before anything is timed.

The general compressors are lz4, snappy, zstd, zfp, and zipnn where it is installed. ``sz-like`` does what SZ does
without its predictor, which finds nothing in gradients. It rounds floats to whole multiples of twice the bound, and
zstd compresses these, as 8-bit integers if they fit, else as 16 or 32. Lossless compressors must return every bit. zfp
may be off by twice its tolerance: of 4 million floats of N(0, 0.01), with a tolerance of 2^-6, zfpy 1.0.1 returned some
that were off by 1.4 times the tolerance.
"""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from netoffload.codec import Codec, get, kernels
from netoffload.codec.bursts import DECODE_SLACK, ENCODE_SLACK, LANES, MAX_BURST_PAYLOAD, Middle
from netoffload.codec.packed import GROUP
from netoffload.codec_specs import BOUNDED_BY_K, Cut
from netoffload.compiled import jit
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.octets import copy_octets
from netoffload.compressors import libraries
from netoffload.config import CODECS, check_bound_k, check_choice
from netoffload.errors import RunError
from netoffload.lab.bench.compressors import HDC
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.settings import CodecSettings, parse_vector_octets
from netoffload.lab.declared import Column, Finding, Progress, Table, percent, words
from netoffload.lab.machine import cpu_model
from netoffload.lab.models.gradients import gradients_from, parse_sigma, read_gradients
from netoffload.lab.reports.panels import Panel, Series, draw_panels
from netoffload.machine.environment import versions

GAUSSIANS: Final = ("gaussian:0.001", "gaussian:0.01", "gaussian:0.1")
SAMPLE_OCTETS: Final = 4_000_000
"""Octets per sample: a smaller vector is coded several times."""
WARM_RUNS: Final = 3
QUANTISING: Final = "sz-like"
ZIPNN: Final = "zipnn"
"""A lossless compressor of weights; no extra has it, because it is compiled where it is installed, and needs torch."""
WITH_BOUND: Final = ("zfp", QUANTISING)
"""The general compressors that take an error bound."""


def _shares(shares: Sequence[float]) -> str:
    return " ".join(map(percent, shares))


@dataclass(frozen=True)
class Row(Finding):
    """One codec, bound, kernel and vector; speeds are octets of floats per second over 1e9, medians and the best.

    ``..._over_memcpy`` is a speed over memcpy's in the same moments.
    """

    data: Annotated[str, words("data")]
    size_octets: Annotated[int, Column("MB", ".3g", 1e6)]
    codec: Annotated[str, words("codec")]
    k: Annotated[int | None, Column("k")]
    kernel: Annotated[str, words("kernel")]
    compress_GBps: Annotated[float, Column("comp", ".2f")]  # noqa: N815 - the unit as it is written
    compress_over_memcpy: Annotated[float, Column("/memcpy", ".2f")]
    decompress_GBps: Annotated[float, Column("decomp", ".2f")]  # noqa: N815
    decompress_over_memcpy: Annotated[float, Column("/memcpy", ".2f")]
    decompress_halves_GBps: Annotated[float, Column("halves", ".2f")]  # noqa: N815
    decompress_halves_over_memcpy: float
    memcpy_GBps: float  # noqa: N815
    compress_best_GBps: float  # noqa: N815
    decompress_best_GBps: float  # noqa: N815
    decompress_halves_best_GBps: float  # noqa: N815
    memcpy_best_GBps: float  # noqa: N815
    ratio: Annotated[float, Column("ratio", ".2f")]
    max_error: Annotated[float, Column("worst\nerror", ".2e")]
    mean_error: Annotated[float, Column("mean\nerror", ".2e")]
    shares: Annotated[list[float], Column("% of 0, 8, 16,\n32 bits", _shares)]


@dataclass(frozen=True)
class LibraryRow(Finding):
    """One general compressor and vector; its fields stand in the columns of :class:`Row`."""

    name: str
    k: int | None
    data: str
    size_octets: int
    compress_GBps: float  # noqa: N815
    decompress_GBps: float  # noqa: N815
    ratio: float
    max_error: float

    @property
    def codec(self) -> str:
        """Its name, where codecs have theirs."""
        return self.name


@dataclass(frozen=True)
class Findings(Finding):
    """Everything that was measured; ``memcpy_GBps`` is that of the largest vector."""

    memcpy_GBps: float | None  # noqa: N815
    results: list[Row]
    peers: list[LibraryRow]
    missing: str | None
    configuration: dict[str, Any]
    kernel: str
    versions: dict[str, str]
    cpu: str

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        what = "data size_octets codec k "
        names = (
            "kernel compress_GBps compress_over_memcpy decompress_GBps decompress_over_memcpy decompress_halves_GBps"
        )
        title = f"GB/s of float32 on {self.cpu}, medians"
        yield Table.of(Row, [*self.results, *self.peers], title, only=what + names, padding=0)
        octets_of = {(row.data, row.size_octets, row.codec, row.k): row for row in reversed(self.results)}
        first = [row for row in self.results if row in octets_of.values()]  # another kernel makes the same octets
        names = "ratio max_error mean_error shares"
        yield Table.of(Row, [*first, *self.peers], "What it saves and costs", only=what + names, padding=0)
        if self.memcpy_GBps:
            yield f"memcpy of the largest vector: {self.memcpy_GBps:.1f} GB/s"

    def draw(self, path: Path) -> None:
        """Draw ratio against worst error, a panel per vector; exact ones stand at the left edge."""
        rows: list[Row | LibraryRow] = [*self.results, *self.peers]
        panels = []
        for data in dict.fromkeys(row.data for row in rows):
            own = [row for row in rows if row.data == data]
            least = min((row.max_error for row in own if row.max_error > 0), default=1e-6)
            edge = 10.0 ** (math.floor(math.log10(least)) - 1)
            series = []
            for name in dict.fromkeys(row.codec for row in rows):
                points = sorted({(row.max_error or edge, row.ratio, row.k or 0) for row in own if row.codec == name})
                if points:
                    errors, ratios, bounds = zip(*points, strict=True)
                    series.append(Series(name, errors, ratios, notes=tuple(str(k or "") for k in bounds)))
            panels.append(Panel("lines", data, "ratio", tuple(series), "worst error", log_x=True, log_y=True))
        draw_panels(panels, "Ratio against worst error (left edge: none), with k of the error bound 2^-k", path)


class CodecSpeed:
    """Every codec, kernel, bound, vector and size; an interrupted measurement still reports what it has."""

    def __init__(self, asked: CodecSettings) -> None:
        for name in asked.kernel:
            check_choice("kernel (on this CPU)", name, tuple(kernels.usable_kernels()))
        self._codecs = [get(name) for name in asked.codec or CODECS]
        for bound_k in asked.bound:
            check_bound_k(bound_k)
        self._floats = [parse_vector_octets(text) // 4 for text in asked.size]
        for text in asked.data:
            if text != HDC:
                parse_sigma(text)
        self._asked = asked
        self._rows: list[Row] = []
        self._libraries: list[LibraryRow] = []

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        if absent := libraries.missing():
            progress(f"not installed: {', '.join(absent)}; for more peers pip install 'netoffload[bench]'")
        asked, vectors = self._asked, self._vectors(progress)
        progress("measuring codecs")
        steps, done = len(vectors) * (len(self._codecs) + 1), itertools.count()
        for name, vector in vectors.items():
            for codec in self._codecs:
                progress(f"{name}, {codec.name}", next(done) / steps)
                self._rows += self._measured(codec, name, vector)
            progress(f"{name}, peers", next(done) / steps)
            for library, floats in itertools.product(peers(), self._floats):
                for bound_k in asked.bound if library in WITH_BOUND else (None,):
                    figures = measure_library(library, vector[:floats], bound_k or asked.bound[0], asked.repeat)
                    self._libraries.append(LibraryRow(library, bound_k, name, 4 * floats, *figures))

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        if not self._rows:
            return None
        asked, largest = self._asked, 4 * max(self._floats)
        memcpy = [row.memcpy_GBps for row in self._rows if row.size_octets == largest]
        return Findings(
            memcpy_GBps=statistics.median(memcpy) if memcpy else None,
            results=self._rows,
            peers=self._libraries,
            missing=reason,
            configuration={"repeat": asked.repeat, "bounds": list(asked.bound)},
            kernel=kernels.KERNEL,
            versions=versions("numba", "llvmlite", *dict.fromkeys(libraries.PACKAGES.values())),
            cpu=cpu_model(),
        )

    def _vectors(self, progress: Progress) -> dict[str, Float32Array]:
        """Return the vectors by name, each float32[length of the longest]."""
        asked, floats = self._asked, max(self._floats)
        names = dict.fromkeys(asked.data or (GAUSSIANS if asked.gradients else (*GAUSSIANS, HDC)))
        vectors = {name: gradients_from(name, asked.seed)(0, floats) for name in names if name != HDC}
        if asked.gradients:
            vectors[asked.gradients.name] = np.resize(read_gradients(asked.gradients), floats)
        if HDC in names:
            progress("training HDC for a sample of its gradients")
            try:
                from netoffload.lab.training.inprocess import sample_gradients

                vectors[HDC] = np.resize(sample_gradients(seed=asked.seed), floats)
            except ModuleNotFoundError:
                if asked.data:
                    raise
                progress("torch is not installed: no gradients of HDC")
        return vectors

    def _measured(self, codec: Codec, data: str, vector: Float32Array) -> Iterator[Row]:
        asked = self._asked
        for bound_k in asked.bound if codec.oracle.compress else asked.bound[:1]:
            wanted = codec.oracle.round_trip(vector, bound_k)
            for kernel, floats in itertools.product(variants(codec, asked.kernel), self._floats):
                figures = measure(codec, kernel, vector[:floats], wanted[:floats], bound_k, asked.repeat)
                k = bound_k if codec.codec_id in BOUNDED_BY_K else None
                yield Row(data, 4 * floats, codec.name, k, kernel, **figures)


def variants(codec: Codec, only_kernels: Sequence[str] = ()) -> list[str]:
    """Return the kernels of a codec that run here; one that only cuts bits off has the plain one only."""
    names = ["plain"] if isinstance(codec.spec.form, Cut) else kernels.usable_kernels()
    return [name for name in names if not only_kernels or name in only_kernels]


def measure(
    codec: Codec, kernel: str, values: Float32Array, wanted: Float32Array, bound_k: int, repeat: int
) -> dict[str, Any]:
    """Check a codec on a contiguous float32[n], of which the oracle makes ``wanted``, then time it.

    Returns the figures of a :class:`Row`. A payload is decoded from the front, and from the front and the middle as
    blocks are.
    """
    of = kernels.kernels_of(codec.codec_id, kernel)
    encode, decode, decode_halves = of.encode, of.decode, of.decode_halves
    parameter = np.float32(of.decoding(bound_k)) if codec.codec_id in BOUNDED_BY_K else of.decoding(bound_k)
    source, count = values.view(np.uint8), values.size
    capacity = -(-count // LANES) * MAX_BURST_PAYLOAD
    payload = np.zeros(capacity + max(ENCODE_SLACK, DECODE_SLACK), np.uint8)
    target = np.zeros(-(-count // LANES) * LANES, np.float32)
    octets, classes = target.view(np.uint8), np.zeros(4, np.int64)
    halves = payload.copy()
    halves_len, middle = _encode_halves(encode, source, count, bound_k, halves, capacity)
    whole = source, 0, count, bound_k, payload, 0, capacity, classes
    encoded, length = encode(*whole)
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "compress": (encode, whole),
        "decompress": (decode, (payload, 0, length, count, parameter, octets, 0)),
        "decompress_halves": (decode_halves, (halves, 0, halves_len, count, middle, parameter, octets, 0)),
    }
    for name, octets_read in (("decompress", length), ("decompress_halves", halves_len)):
        function, given = calls[name]
        target[:] = np.nan  # what an earlier decoding left must not pass for an answer
        if (encoded, function(*given)) != (count, octets_read) or target[:count].tobytes() != wanted.tobytes():
            raise RunError(f"{codec.name} ({kernel}) is wrong: run 'netoffload verify codec'")
    max_error, mean_error = errors(values, wanted)
    figures = {"max_error": max_error, "mean_error": mean_error, "ratio": source.size / length}
    shares = (classes / count).tolist()  # now: timed calls count too
    times = max(1, math.ceil(SAMPLE_OCTETS / source.size))
    tasks = {"memcpy": functools.partial(_copy_repeatedly, times, source, octets)}
    tasks |= {name: functools.partial(_repeatedly, function, times, given) for name, (function, given) in calls.items()}
    for name, (median_gbps, best_gbps) in speeds(tasks, times * source.size, repeat).items():
        figures |= {f"{name}_GBps": median_gbps, f"{name}_best_GBps": best_gbps}
    figures |= {f"{name}_over_memcpy": figures[f"{name}_GBps"] / figures["memcpy_GBps"] for name in calls}
    return {**figures, "shares": shares}


def _encode_halves(
    encode: Callable[..., Any], source: Uint8Array, count: int, parameter: Any, payload: Uint8Array, capacity: int
) -> tuple[int, Middle]:
    """Encode each half by itself, as NICs encode blocks; return the octets and the middle."""
    half_count, classes = count // 2 // GROUP * GROUP, np.zeros(4, np.int64)
    _, half_len = encode(source, 0, half_count, parameter, payload, 0, capacity, classes)
    rest = 4 * half_count, count - half_count, parameter, payload, half_len, capacity - half_len
    return half_len + encode(source, *rest, classes)[1], Middle(half_len, half_count)


def speeds(tasks: Mapping[str, Callable[[], object]], octets: int, repeat: int) -> dict[str, tuple[float, float]]:
    """Time tasks in turn, ``repeat`` times each; return each one's median and best speed, octets per second over 1e9.

    Every task runs a few times before it is timed, so the caches hold its own data. After only one run of 16 MB, a
    third-level cache still holds much of the previous task's data, and memcpy is half as fast as alone.
    """
    contenders = [Contender(name, functools.partial(_timed_s, task)) for name, task in tasks.items()]
    take_turns(contenders, repeat)
    return {
        one.name: (octets / statistics.median(one.samples) / 1e9, octets / min(one.samples) / 1e9) for one in contenders
    }


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


@jit.inlined_with
def _repeatedly(function: Callable[..., Any], times: int, arguments: tuple[Any, ...]) -> None:
    for _ in range(times):
        function(*arguments)


@jit.kernel
def _copy_repeatedly(times: int, source: Uint8Array, target: Uint8Array) -> None:
    for _ in range(times):
        copy_octets(source, 0, target, 0, source.size)


def peers() -> list[str]:
    """Return the names of the general compressors that can be measured here."""
    names = libraries.available()
    names += [QUANTISING] if "zstd-1" in names else []
    return [*names, ZIPNN] if libraries.load(ZIPNN) else names


def measure_library(name: str, values: Float32Array, bound_k: int, repeat: int) -> tuple[float, float, float, float]:
    """Check one of :func:`peers` on a contiguous float32[n], with the tolerance 2**-bound_k, then time it.

    Returns the speeds of compressing and decompressing, the ratio and the worst error.
    """
    target, tolerance = np.zeros_like(values), 2.0**-bound_k
    compress, decompress = _library(name, values, tolerance, target)
    payload = compress()
    decompress(payload)
    worst, _ = errors(values, target)
    if worst > tolerance * {"zfp": 2.0, QUANTISING: 1.0001}.get(name, 0.0):
        raise RunError(f"{name} returned floats that are {worst} off")
    times = max(1, math.ceil(SAMPLE_OCTETS / values.nbytes))
    tasks = {
        "compress": lambda: [compress() for _ in range(times)],
        "decompress": lambda: [decompress(payload) for _ in range(times)],
    }
    medians_gbps = [median_gbps for median_gbps, _ in speeds(tasks, times * values.nbytes, repeat).values()]
    return medians_gbps[0], medians_gbps[1], values.nbytes / len(payload), worst


def _library(
    name: str, values: Float32Array, tolerance: float, target: Float32Array
) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return a function that returns the payload of ``values``, and one that decodes a payload into ``target``."""
    if name == "zfp":
        zfpy = libraries.load("zfpy")

        def decompress_zfp(payload: bytes) -> None:
            target[:] = zfpy.decompress_numpy(payload)

        return functools.partial(zfpy.compress_numpy, values, tolerance=tolerance), decompress_zfp
    if name == ZIPNN:
        zipnn = libraries.load(ZIPNN).ZipNN(input_format="byte", bytearray_dtype="float32", threads=1)

        def decompress_zipnn(payload: bytes) -> None:
            target.view(np.uint8)[:] = np.frombuffer(zipnn.decompress(payload), np.uint8)

        return lambda: zipnn.compress(values.tobytes()), decompress_zipnn  # it reorders the octets that it gets
    cramjam = libraries.load("cramjam")
    source, octets = values.view(np.uint8), target.view(np.uint8)
    room = np.zeros(source.size * 2 + 1024, np.uint8)
    if name == QUANTISING:
        step = np.float32(2 * tolerance)
        largest = float(np.abs(values).max(initial=0)) / float(step)
        kind = np.int8 if largest <= 127 else np.int16 if largest <= 32767 else np.int32
        codes = np.zeros(values.size, kind)

        def quantise() -> Any:
            rounded = np.rint(values / step).astype(kind)
            return room[: cramjam.zstd.compress_into(rounded.view(np.uint8), room, level=1)]

        def multiply(payload: Any) -> None:
            cramjam.zstd.decompress_into(payload, codes.view(np.uint8))
            np.multiply(codes, step, out=target, casting="unsafe")

        return quantise, multiply
    into, out_of = {
        "lz4": (
            functools.partial(cramjam.lz4.compress_block_into, store_size=False),
            functools.partial(cramjam.lz4.decompress_block_into, output_len=octets.size),
        ),
        "snappy": (cramjam.snappy.compress_raw_into, cramjam.snappy.decompress_raw_into),
        "zstd-1": (functools.partial(cramjam.zstd.compress_into, level=1), cramjam.zstd.decompress_into),
    }[name]
    return lambda: room[: into(source, room)], lambda payload: out_of(payload, octets)
