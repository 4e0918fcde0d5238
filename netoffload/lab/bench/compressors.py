"""Ratio, errors and speed of the papers' host-side compressors.

The variance ratio is what convergence depends on (Jiang and Agrawal, NeurIPS 2018, Eq. 13 and Theorem 2)::

    q(v) = E |Q(v) - v|^2 / |v|^2        Eq. 13's q is its supremum over v; this is its value for one v

The expectation is the mean over repeats. Each repeat takes the next step of one state without a residual, so the same
seed gives the same figures. The bias is |E Q(v) - v| / |v|. The mean of R repeats of an unbiased method is still off by
sqrt(q / R). That part is estimated from the spread of the repeats and subtracted. So an unbiased method shows about 0
for any R, and a deterministic one shows its error.

Speeds are octets of float32 per second of this thread's processor time, medians. They do not count other processes, but
they count page faults of new payloads.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np

from netoffload.collectives.samples import gradient_of
from netoffload.compiled.arrays import Float32Array, Float64Array
from netoffload.compressors import Layout, libraries, registry
from netoffload.compressors.base import Compressor
from netoffload.compressors.libraries import General
from netoffload.compressors.terngrad import TernGrad
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.settings import CompressorsSettings, parse_vector_octets
from netoffload.lab.declared import AllOrNothing, Column, Finding, Progress, Table, words
from netoffload.lab.machine import cpu_model
from netoffload.lab.models.gradients import parse_sigma, read_gradients
from netoffload.machine.environment import versions

HDC: Final = "hdc"
"""Name of the vectors that this process gets by training HDC."""
WARM_RUNS: Final = 2
SHORTEST_S: Final = 1e-9
"""The clock's resolution: the least time that is used."""

VARIANTS: Final = {
    "nic": ("codec=bounded", "codec=packed", "codec=truncate16"),
    "terngrad": ("packing=bits", "clip_factor=0", "bucket=512,clip_factor=0"),
    "qsgd": (
        "levels=127",
        "norm=l2,bucket=0,rule=n",
        "norm=l2,bucket=0,rule=mn,batch=25",
        "norm=l2,rule=n",
        "coding=gamma",
        "norm=l2,rule=n,coding=omega",
        "norm=l2,levels=1,coding=gaps",
    ),
    **dict.fromkeys(("wgt", "bgt", "qgt"), ("threshold=0.005",)),
    "chunked-topk": ("k=32",),
    "8bit": ("bucket=512", "type=linear", "type=static,norm=offset,offset=1", "type=mantissa,norm=offset,offset=1"),
    "half": ("format=bf16",),
    "general": tuple(f"library={name}" for name in libraries.available() if name != General.library),
}
"""By compressor, the parameters that are shown beside its defaults."""


def is_unbiased(compressor: Compressor) -> bool:
    """Return whether the mean of decode(encode(v)) over the randomness is v."""
    if isinstance(compressor, TernGrad):
        return compressor.clip_factor == 0
    return compressor.name in ("none", "qsgd")


@dataclass(frozen=True)
class Quality(Finding):
    """How a vector differs after encoding and decoding.

    ``bias`` is without the part that the finite number of repeats adds; None for one repeat. ``mean_relative_error`` is
    the mean of abs(Q(v) - v) / abs(v) over values that are not 0. The variance ratio of zeros is 0.
    """

    ratio: Annotated[float, Column("ratio", ".2f")]
    variance_ratio: Annotated[float, Column("q", ".3g")]
    bias: Annotated[float | None, Column("bias", ".2g")]
    mean_error: Annotated[float, Column("mean error", ".2e")]
    mean_relative_error: float
    max_error: float


@dataclass(frozen=True)
class Row(Quality):
    """One compressor: its quality, and octets of float32 per second of processor time, over 1e9, medians."""

    compressor: str
    spec: Annotated[str, words("compressor")]
    unbiased: bool
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
        names = "spec ratio variance_ratio bias mean_error encode_GBps decode_GBps"
        title = f"{asked['values']} floats of {asked['data']}, {self.cpu}"
        yield Table.of(Row, self.results, title, only=names)
        yield "enc, dec: GB/s of floats per second of one core's time"


def specs() -> tuple[str, ...]:
    """Return the text forms of every compressor and its variants; without ``general`` if its package is missing."""
    names = [name for name in registry.names() if name != General.name or General.library in libraries.available()]
    return tuple(spec for name in names for spec in (name, *(f"{name}:{one}" for one in VARIANTS.get(name, ()))))


class Compressors(AllOrNothing[Findings]):
    """Every compressor that was asked for, on one vector."""

    def __init__(self, asked: CompressorsSettings) -> None:
        self._asked = asked
        self._compressors = [registry.parse(spec) for spec in asked.compressor or specs()]

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
            rows.append(
                Row(
                    **vars(seen),
                    compressor=compressor.name,
                    spec=compressor.spec,
                    unbiased=is_unbiased(compressor),
                    encode_GBps=fast[0],
                    decode_GBps=fast[1],
                )
            )
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
            from netoffload.lab.training.inprocess import sample_gradients

            return HDC, sample_gradients(1, asked.seed)[0].copy()
        return asked.data, gradient_of(0, parse_vector_octets(asked.size) // 4, parse_sigma(asked.data), asked.seed)


def _layout(layers: str | None, count: int) -> Layout:
    if layers is None:
        return Layout.flat(count)
    if layers == HDC:
        from netoffload.lab.training import data_spec, models

        layout = Layout(models.get(HDC).layer_sizes(data_spec.GREY_28))
    else:
        try:
            layout = Layout(tuple(int(text) for text in layers.split(",")))
        except ValueError as error:
            raise UsageError(f"layers {layers!r} are no lengths: write 392000,500,250000 or hdc") from error
    if layout.count != count:
        raise UsageError(f"the layers have {layout.count} floats together, the vector {count}")
    return layout


def quality(
    compressor: Compressor, values: Float32Array, layout: Layout | None = None, *, repeats: int = 8, seed: int = 1
) -> Quality:
    """Encode and decode a finite float32[n], n > 0, ``repeats`` times and compare in float64.

    One repeat is enough for a method without randomness, but its bias is then not known.
    """
    if repeats < 1 or not values.size:
        raise UsageError(f"a compressor's quality needs values and repeats, not {values.size} and {repeats}")
    layout = layout or Layout.flat(values.size)
    state = compressor.make_state(layout, seed=seed)
    exact = values.astype(np.float64)
    magnitudes = np.abs(exact)
    nonzero = magnitudes > 0
    total = np.zeros(values.size)
    octets = squares = absolute = relative = largest = 0.0
    for _ in range(repeats):
        payload = compressor.encode(values, state)
        error = compressor.decode(payload, layout) - exact
        total += error
        octets += payload.size
        squares += float(error @ error)
        np.abs(error, out=error)
        absolute += float(error.mean())
        relative += float((error[nonzero] / magnitudes[nonzero]).mean()) if nonzero.any() else 0.0
        largest = max(largest, float(error.max()))
    energy = float(exact @ exact)
    return Quality(
        ratio=values.nbytes * repeats / octets,
        variance_ratio=squares / repeats / energy if energy else 0.0,
        bias=_bias(total / repeats, squares, repeats, energy) if repeats > 1 else None,
        mean_error=absolute / repeats,
        mean_relative_error=relative / repeats,
        max_error=largest,
    )


def speeds(
    compressor: Compressor, values: Float32Array, layout: Layout | None = None, *, repeats: int = 9
) -> tuple[float, float]:
    """Time encoding and decoding a finite float32[n], in turn, ``repeats`` times; return both medians in GB/s."""
    layers = layout or Layout.flat(values.size)
    state = compressor.make_state(layers)
    payload = compressor.encode(values, state)

    def encode(_number: int) -> float:
        nonlocal payload
        started_s = time.thread_time()
        payload = compressor.encode(values, state)
        return max(time.thread_time() - started_s, SHORTEST_S)

    def decode(_number: int) -> float:
        started_s = time.thread_time()
        compressor.decode(payload, layers)
        return max(time.thread_time() - started_s, SHORTEST_S)

    contenders = [Contender("encode", encode), Contender("decode", decode)]
    take_turns(contenders, repeats, warm_ups=WARM_RUNS)
    encode_s, decode_s = (statistics.median(contender.samples) for contender in contenders)
    return values.nbytes / encode_s / 1e9, values.nbytes / decode_s / 1e9


def _bias(mean_error: Float64Array, squares: float, repeats: int, energy: float) -> float:
    of_mean = float(mean_error @ mean_error)
    spread = (squares - repeats * of_mean) / (repeats - 1)
    return float(np.sqrt(max(of_mean - spread / repeats, 0.0) / energy)) if energy else 0.0
