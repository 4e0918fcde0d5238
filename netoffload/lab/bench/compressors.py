"""Ratio, error and speed of the papers' host-side compressors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from netoffload.collectives.samples import read_gradients
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.errors import UsageError
from netoffload.lab.bench.compressor_quality import quality, speeds
from netoffload.lab.bench.settings import CompressorsSettings, parse_vector_octets
from netoffload.lab.bench.vectors import HDC, gaussian, of_hdc
from netoffload.lab.declared import AllOrNothing, Column, Finding, Progress, Table, words
from netoffload.machine.environment import cpu_model, versions


@dataclass(frozen=True)
class Row(Finding):
    """One compressor: its quality and its speeds, as ``compressor_quality`` says."""

    compressor: str
    spec: Annotated[str, words("compressor")]
    unbiased: bool
    ratio: Annotated[float, Column("ratio", ".2f")]
    variance_ratio: Annotated[float, Column("q", ".3g")]
    bias: Annotated[float | None, Column("bias", ".2g")]
    mean_error: Annotated[float, Column("mean error", ".2e")]
    mean_relative_error: float
    max_error: float
    encode_GBps: Annotated[float, Column("enc", ".2f")]  # noqa: N815 - the unit as it is written
    decode_GBps: Annotated[float, Column("dec", ".2f")]  # noqa: N815


@dataclass(frozen=True)
class Findings(Finding):
    """Every compressor on one vector."""

    results: list[Row]
    configuration: dict[str, Any]
    versions: dict[str, str]
    cpu: str

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        asked = self.configuration
        yield Table.of(Row, self.results, f"{asked['values']} floats of {asked['data']}, {self.cpu}")
        yield "enc, dec: GB/s of floats per second of one core's time"


class Compressors(AllOrNothing[Findings]):
    """Every compressor that was asked for, on one vector."""

    def __init__(self, asked: CompressorsSettings) -> None:
        self._asked = asked
        self._compressors = [registry.parse(spec) for spec in asked.compressor or registry.specs()]

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        asked = self._asked
        if asked.data == HDC and asked.gradients is None:
            progress("training HDC for one of its gradients")
        name, values = self._vector()
        layout = _layout(asked.layers or (HDC if name == HDC else None), values.size)
        progress("measuring compressors")
        rows = []
        for done, compressor in enumerate(self._compressors):
            progress(compressor.spec, done / len(self._compressors))
            seen = quality(compressor, values, layout, repeats=asked.repeat, seed=asked.seed)
            fast = speeds(compressor, values, layout, repeats=asked.repeat)
            rows.append(Row(compressor.name, compressor.spec, compressor.unbiased, **vars(seen), **vars(fast)))
        configuration = {"data": name, "values": values.size, "layers": list(layout.sizes)}
        configuration |= {"repeat": asked.repeat, "seed": asked.seed}
        self.found = Findings(rows, configuration, versions("numba", "llvmlite"), cpu_model())

    def _vector(self) -> tuple[str, Float32Array]:
        """Return a name and float32[n]."""
        asked = self._asked
        if asked.gradients is not None:
            vectors = read_gradients(asked.gradients)
            return asked.gradients.name, np.ascontiguousarray(vectors.reshape(-1, vectors.shape[-1])[0])
        if asked.data == HDC:
            return HDC, of_hdc(asked.seed, vectors=1)[0].copy()
        return asked.data, gaussian(asked.data, parse_vector_octets(asked.size) // 4, asked.seed)


def _layout(layers: str | None, count: int) -> Layout:
    if layers is None:
        return Layout.flat(count)
    if layers == HDC:
        from netoffload.lab.training import data_spec, models

        try:
            layout = Layout(models.get(HDC).layer_sizes(data_spec.GREY_28))
        except ImportError as error:
            raise UsageError(f"the layers of hdc need torch: pip install 'netoffload[train]' ({error})") from error
    else:
        try:
            layout = Layout(tuple(int(text) for text in layers.split(",")))
        except ValueError as error:
            raise UsageError(f"layers {layers!r} are no lengths: write 392000,500,250000 or hdc") from error
    if layout.count != count:
        raise UsageError(f"the layers have {layout.count} floats together, the vector {count}")
    return layout
