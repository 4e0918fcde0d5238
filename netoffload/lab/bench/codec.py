"""Speed, ratio and error of every codec and kernel, by vector and size, beside general compressors."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from netoffload.codec import Codec, get, kernels
from netoffload.collectives.samples import parse_sigma
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import libraries
from netoffload.config import CODECS, check_bound_k, check_choice
from netoffload.errors import UsageError
from netoffload.lab.bench.codec_speed import Variant, measure, variants
from netoffload.lab.bench.library_speed import WITH_BOUND, measure_library, peers
from netoffload.lab.bench.settings import CodecSettings
from netoffload.lab.bench.vectors import HDC, gaussian, of_file, of_hdc
from netoffload.lab.declared import Column, Finding, Progress, Table, percent, words
from netoffload.lab.reports.pareto import Point, draw_pareto
from netoffload.machine.environment import cpu_model, versions

GAUSSIANS: Final = ("gaussian:0.001", "gaussian:0.01", "gaussian:0.1")


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
        """Draw ratio against worst error."""
        rows: list[Row | LibraryRow] = [*self.results, *self.peers]
        points = [Point(row.data, row.codec, row.max_error, row.ratio, row.k) for row in rows]
        draw_pareto(list(dict.fromkeys(points)), "Numbers beside the points: k of the error bound 2^-k", path)


class CodecSpeed:
    """Every codec, kernel, bound, vector and size; an interrupted measurement still reports what it has."""

    def __init__(self, asked: CodecSettings) -> None:
        for name in asked.kernel:
            check_choice("kernel (on this CPU)", name, tuple(kernels.usable_kernels()))
        self._codecs = [get(name) for name in asked.codec or CODECS]
        for bound_k in asked.bound:
            check_bound_k(bound_k)
        self._floats = asked.floats
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
                    self._libraries.append(self._library(library, name, vector[:floats], bound_k))

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
        vectors = {name: gaussian(name, floats, asked.seed) for name in names if name != HDC}
        if asked.gradients:
            vectors[asked.gradients.name] = of_file(asked.gradients, floats)
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
        for bound_k in asked.bound if codec.oracle.compress else asked.bound[:1]:
            wanted = codec.oracle.round_trip(vector, bound_k)
            for variant, floats in itertools.product(variants([codec], asked.kernel), self._floats):
                yield self._row(variant, data, vector[:floats], wanted[:floats], bound_k)

    def _row(self, variant: Variant, data: str, values: Float32Array, wanted: Float32Array, bound_k: int) -> Row:
        measured = measure(variant, values, wanted, bound_k, self._asked.repeat)
        ways = {name: getattr(measured, name) for name in ("compress", "decompress", "decompress_halves", "memcpy")}
        figures = {f"{name}_GBps": speed.median_GBps for name, speed in ways.items()}
        figures |= {f"{name}_best_GBps": speed.best_GBps for name, speed in ways.items()}
        memcpy = ways.pop("memcpy")
        figures |= {f"{name}_over_memcpy": speed.median_GBps / memcpy.median_GBps for name, speed in ways.items()}
        k = bound_k if variant.takes_bound else None
        return Row(data, values.nbytes, variant.codec.name, k, variant.kernel, **figures, **vars(measured.quality))

    def _library(self, name: str, data: str, values: Float32Array, bound_k: int | None) -> LibraryRow:
        measured = measure_library(name, values, bound_k or self._asked.bound[0], self._asked.repeat)
        speeds_gbps = measured.compress.median_GBps, measured.decompress.median_GBps
        return LibraryRow(name, bound_k, data, values.nbytes, *speeds_gbps, measured.ratio, measured.max_error)
