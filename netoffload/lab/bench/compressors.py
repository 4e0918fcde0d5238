"""Ratio, error and speed of the papers' host-side compressors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netoffload.collectives.samples import read_gradients
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.environment import cpu_model, versions
from netoffload.errors import UsageError
from netoffload.lab.bench.compressor_quality import Quality, Speeds, quality, speeds
from netoffload.lab.bench.experiment import AllOrNothing, Finding, Progress
from netoffload.lab.bench.vectors import HDC, gaussian, of_hdc, parse_vector_octets


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        specs: text forms of compressors; none: all.
        data: gaussian:SIGMA or hdc; not used if ``file`` is given.
        size: octets of a gaussian vector, as text.
        file: file of float32, whose first vector is taken.
        layers: lengths of the layers (``500,10``), or hdc; None: those of hdc for hdc, else one layer.
        repeat: timed samples, and repeats for error, bias and variance.
        seed: seed of the data and of the compressors.
    """

    specs: tuple[str, ...]
    data: str
    size: str
    file: Path | None
    layers: str | None
    repeat: int
    seed: int


@dataclass(frozen=True)
class Row(Finding):
    """One compressor; the record has the keys of quality and speeds beside the others."""

    compressor: str
    spec: str
    unbiased: bool
    quality: Quality
    speeds: Speeds

    def to_record(self) -> dict[str, Any]:
        """Return the record."""
        own = {"compressor": self.compressor, "spec": self.spec, "unbiased": self.unbiased}
        return own | vars(self.quality) | vars(self.speeds)


@dataclass(frozen=True)
class Findings(Finding):
    """Every compressor on one vector."""

    results: list[Row]
    configuration: dict[str, Any]
    versions: dict[str, str]
    cpu: str


class Compressors(AllOrNothing[Findings]):
    """Every compressor that was asked for, on one vector."""

    def __init__(self, asked: Asked) -> None:
        """Refuse compressors that do not exist.

        Raises:
            UsageError: as ``registry.parse`` says.
        """
        self._asked = asked
        self._compressors = [registry.parse(spec) for spec in asked.specs or registry.specs()]

    def measure(self, progress: Progress) -> None:
        """Measure everything.

        Raises:
            UsageError: the data cannot be read, or the layers do not fit it.
        """
        asked = self._asked
        if asked.data == HDC and asked.file is None:
            progress("training HDC for one of its gradients")
        name, values = self._vector()
        layout = _layout(asked.layers or (HDC if name == HDC else None), values.size)
        progress("measuring compressors")
        rows = []
        for done, compressor in enumerate(self._compressors):
            progress(compressor.spec, done / len(self._compressors))
            seen = quality(compressor, values, layout, repeats=asked.repeat, seed=asked.seed)
            fast = speeds(compressor, values, layout, repeats=asked.repeat)
            rows.append(Row(compressor.name, compressor.spec, compressor.unbiased, seen, fast))
        configuration = {"data": name, "values": values.size, "layers": list(layout.sizes)}
        configuration |= {"repeat": asked.repeat, "seed": asked.seed}
        self.found = Findings(rows, configuration, versions("numba", "llvmlite"), cpu_model())

    def _vector(self) -> tuple[str, Float32Array]:
        """Return a name and float32[n]."""
        asked = self._asked
        if asked.file is not None:
            vectors = read_gradients(asked.file)
            return asked.file.name, np.ascontiguousarray(vectors.reshape(-1, vectors.shape[-1])[0])
        if asked.data == HDC:
            return HDC, of_hdc(asked.seed, vectors=1)[0].copy()
        return asked.data, gaussian(asked.data, parse_vector_octets(asked.size) // 4, asked.seed)


def _layout(layers: str | None, count: int) -> Layout:
    if layers is None:
        return Layout.flat(count)
    if layers == HDC:
        try:
            from netoffload.lab.training.models.hdc import build_hdc
        except ImportError as error:
            raise UsageError(f"the layers of hdc need torch: pip install 'netoffload[train]' ({error})") from error
        layout = Layout(tuple(parameter.numel() for parameter in build_hdc(1).parameters()))
    else:
        try:
            layout = Layout(tuple(int(text) for text in layers.split(",")))
        except ValueError as error:
            raise UsageError(f"layers {layers!r} are no lengths: write 392000,500,250000 or hdc") from error
    if layout.count != count:
        raise UsageError(f"the layers have {layout.count} floats together, the vector {count}")
    return layout
