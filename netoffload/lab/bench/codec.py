"""Speed, ratio and error of every codec and kernel, by vector and size, beside general compressors."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from netoffload.codec import Codec, get, kernels
from netoffload.collectives.samples import parse_sigma
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import libraries
from netoffload.config import CODECS, check_bound_k, check_choice
from netoffload.environment import cpu_model, versions
from netoffload.errors import UsageError
from netoffload.lab.bench.codec_speed import Measurement, Speed, measure, variants
from netoffload.lab.bench.experiment import Finding, Progress
from netoffload.lab.bench.library_speed import WITH_BOUND, measure_library, peers
from netoffload.lab.bench.vectors import HDC, gaussian, of_file, of_hdc, parse_vector_octets

GAUSSIANS: Final = ("gaussian:0.001", "gaussian:0.01", "gaussian:0.1")


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        codecs: names; none: all.
        bounds: error bounds 2^-bound, of codecs and peers alike.
        sizes: octets of the vectors, as text.
        data: gaussian:SIGMA or hdc; none: three gaussians, and hdc unless there is a file.
        file: file of float32, which is one more vector.
        kernels: names; none: all that run here.
        repeat: timed samples.
        seed: seed of the data.

    Raises:
        UsageError: it cannot be measured.
    """

    codecs: tuple[str, ...]
    bounds: tuple[int, ...]
    sizes: tuple[str, ...]
    data: tuple[str, ...]
    file: Path | None
    kernels: tuple[str, ...]
    repeat: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse before anything is measured."""
        for name in self.kernels:
            check_choice("kernel (on this CPU)", name, tuple(kernels.usable_kernels()))
        for name in self.codecs:
            get(name)
        for bound_k in self.bounds:
            check_bound_k(bound_k)
        for text in self.sizes:
            parse_vector_octets(text)
        for text in self.data:
            if text != HDC:
                parse_sigma(text)

    @property
    def floats(self) -> tuple[int, ...]:
        """The vectors' lengths."""
        return tuple(parse_vector_octets(text) // 4 for text in self.sizes)


@dataclass(frozen=True)
class Row(Finding):
    """One codec, bound, kernel and vector; in the record, speeds are octets of floats per second over 1e9."""

    codec: str
    k: int | None
    kernel: str
    data: str
    size_octets: int
    measured: Measurement

    def over_memcpy(self, speed: Speed) -> float:
        """Return a speed over memcpy's in the same moments."""
        return speed.median_GBps / self.measured.memcpy.median_GBps

    def to_record(self) -> dict[str, Any]:
        """Return the record."""
        record, measured = super().to_record(), self.measured
        ways = {name: getattr(measured, name) for name in ("compress", "decompress", "decompress_halves")}
        speeds = {**ways, "memcpy": measured.memcpy}
        del record["measured"]
        return {
            **record,
            **{f"{name}_GBps": speed.median_GBps for name, speed in speeds.items()},
            **{f"{name}_best_GBps": speed.best_GBps for name, speed in speeds.items()},
            **{f"{name}_over_memcpy": self.over_memcpy(speed) for name, speed in ways.items()},
            **vars(measured.quality),
        }


@dataclass(frozen=True)
class LibraryRow(Finding):
    """One general compressor and vector."""

    name: str
    k: int | None
    data: str
    size_octets: int
    compress_GBps: float  # noqa: N815 - the unit as it is written
    decompress_GBps: float  # noqa: N815
    ratio: float
    max_error: float


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


class CodecSpeed:
    """Every codec, kernel, bound, vector and size; an interrupted measurement still reports what it has."""

    def __init__(self, asked: Asked) -> None:
        """Prepare; nothing is measured yet."""
        self._asked = asked
        self._rows: list[Row] = []
        self._libraries: list[LibraryRow] = []

    def measure(self, progress: Progress) -> None:
        """Measure everything.

        Raises:
            UsageError: the data does not exist.
            RunError: a kernel decodes other values than the oracle.
        """
        if absent := libraries.missing():
            progress(f"not installed: {', '.join(absent)}; for more peers pip install 'netoffload[bench]'")
        asked, vectors = self._asked, self._vectors(progress)
        progress("measuring codecs")
        codecs = [get(name) for name in asked.codecs or CODECS]
        steps, done = len(vectors) * (len(codecs) + 1), itertools.count()
        for name, vector in vectors.items():
            for codec in codecs:
                progress(f"{name}, {codec.name}", next(done) / steps)
                self._rows += self._measured(codec, name, vector)
            progress(f"{name}, peers", next(done) / steps)
            for library, floats in itertools.product(peers(), asked.floats):
                for bound_k in asked.bounds if library in WITH_BOUND else (None,):
                    self._libraries.append(self._library(library, name, vector[:floats], bound_k))

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        if not self._rows:
            return None
        asked, largest = self._asked, 4 * max(self._asked.floats)
        memcpy = [row.measured.memcpy.median_GBps for row in self._rows if row.size_octets == largest]
        return Findings(
            memcpy_GBps=statistics.median(memcpy) if memcpy else None,
            results=self._rows,
            peers=self._libraries,
            missing=reason,
            configuration={"repeat": asked.repeat, "bounds": list(asked.bounds)},
            kernel=kernels.KERNEL,
            versions=versions("numba", "llvmlite", *dict.fromkeys(libraries.PACKAGES.values())),
            cpu=cpu_model(),
        )

    def _vectors(self, progress: Progress) -> dict[str, Float32Array]:
        """Return the vectors by name, each float32[length of the longest]."""
        asked, floats = self._asked, max(self._asked.floats)
        names = dict.fromkeys(asked.data or (GAUSSIANS if asked.file else (*GAUSSIANS, HDC)))
        vectors = {name: gaussian(name, floats, asked.seed) for name in names if name != HDC}
        if asked.file:
            vectors[asked.file.name] = of_file(asked.file, floats)
        if HDC in names:
            progress("training HDC for a sample of its gradients")
            try:
                vectors[HDC] = np.resize(of_hdc(asked.seed), floats)
            except UsageError:
                if asked.data:
                    raise
                progress("torch is not installed: no gradients of HDC")
        return vectors

    def _measured(self, codec: Codec, data: str, vector: Float32Array) -> Iterator[Row]:
        asked = self._asked
        for bound_k in asked.bounds if codec.oracle.compress else asked.bounds[:1]:
            wanted = codec.oracle.round_trip(vector, bound_k)
            for variant, floats in itertools.product(variants([codec], asked.kernels), asked.floats):
                measured = measure(variant, vector[:floats], wanted[:floats], bound_k, asked.repeat)
                k = bound_k if variant.takes_bound else None
                yield Row(codec.name, k, variant.kernel, data, 4 * floats, measured)

    def _library(self, name: str, data: str, values: Float32Array, bound_k: int | None) -> LibraryRow:
        measured = measure_library(name, values, bound_k or self._asked.bounds[0], self._asked.repeat)
        speeds_gbps = measured.compress.median_GBps, measured.decompress.median_GBps
        return LibraryRow(name, bound_k, data, values.nbytes, *speeds_gbps, measured.ratio, measured.max_error)
