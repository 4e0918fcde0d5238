"""What ``netoffload advise`` predicts from: the network between ranks, a model's computing and gradients, and codecs.

**Path.** Each rank sends to its right neighbour, all at the same time, for a fifth of a second; the slowest rank's time
counts. The delay is half of the shortest round trip that the kernel saw.

**Ranks.** A launcher started them, or they are threads of this process on loopback.

**Codecs.** Vectors go through the chunks of an inline ring on one core; only that core's time counts. They are
multiplied by the power of two that ``scale="auto"`` takes. The ratio is measured on the sum of half of the ranks'
gradients and on the sum of all, because a ring's first phase carries partial sums and its second whole ones.
Compressors encode the gradient itself.
"""

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np

from netoffload.codec.bursts import LANES
from netoffload.collectives import Operation, barrier, ring_allgather, ring_allreduce
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.config import Offload, check_bound_k, format_rate
from netoffload.errors import UsageError
from netoffload.lab.bench.compressors import SHORTEST_S, quality, speeds
from netoffload.lab.bench.settings import AdviseSettings
from netoffload.lab.declared import AllOrNothing, Finding, Progress, Table, mega
from netoffload.lab.machine import cpu_model
from netoffload.lab.models import advice
from netoffload.lab.models.advice import Coding, Network, Prediction, Workload
from netoffload.lab.models.exchange import ring_delays_s
from netoffload.lab.models.gradients import read_gradients
from netoffload.lab.units import format_ms, parse_rate_bps
from netoffload.machine.environment import versions
from netoffload.methods.scales import codec_rms, exponent_for, root_mean_square
from netoffload.transport import Settings, TcpExchange
from netoffload.transport.local_ranks import run_tcp
from netoffload.transport.plane import RATE_MAX_BPS, pays
from netoffload.transport.rendezvous.agreement import Precision
from netoffload.transport.rendezvous.launchers import set_rank_environment
from netoffload.transport.rounds.driver import prepare
from netoffload.transport.wiring import chunks

T = TypeVar("T")

RANKS_DEFAULT: Final = 4
VECTORS_KEPT: Final = 4
"""Number of gradients of a model that stand for the gradients of different ranks."""
STEPS_OF_MODEL: Final = 50
STEPS_OF_SCRIPT: Final = 20
REPEATS: Final = 5
"""Repeats of everything that is timed; the median counts."""
PROBE_S: Final = 0.2
PROBE_OCTETS: Final = (1 << 20, 1 << 27)
"""The shortest and the longest vector that a path is tried with."""


@dataclass(frozen=True)
class Findings(Finding):
    """The network, what a rank does in a step, every codec, every exchange, the one to take, and the machine."""

    network: Network
    workload: Workload
    codings: dict[str, Coding]
    predictions: list[Prediction]
    recommended: str
    recommendation: str
    versions: dict[str, str]
    cpu: str
    cores: int
    load_1min: float

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        network, work = self.network, self.workload
        yield (
            f"{network.ranks} ranks, {format_rate(network.rate_bps)}, {format_ms(network.delay_s)} ms one way "
            f"({network.source}); {work.name}: {mega(work.gradient_octets)} MB of gradients, "
            f"{work.compute_s * 1e3:.1f} ms of computing"
        )
        caption = "A step of each rank: MB that it sends; ms; worst error over the codec's bound"
        names = "exchange wire_octets wire_s codec_s delays_s step_s speedup relative_error worst_over_bound"
        is_tried = any(row.measured_s is not None for row in self.predictions)
        names += " measured_s" if is_tried else ""
        yield Table.of(Prediction, self.predictions, None, only=names, caption=caption)
        yield self.recommendation
        way = "by exact" if pays(network.rate_bps) else "as they are"
        yield f"Weights move {way} between hosts: exact pays up to {format_rate(RATE_MAX_BPS)}."
        if self.load_1min > self.cores:  # before anything was measured
            yield f"The machine was busy: load {self.load_1min:.1f} on {self.cores} cores."


@dataclass(frozen=True)
class Ranks:
    """Ranks that carry out a call together: this process is one of a launcher's, or all are threads of this process."""

    size: int
    rank: int = 0
    are_launched: bool = False

    def run(self, precision: Precision | None, body: Callable[[TcpExchange], T]) -> T:
        """Return what ``body`` returns on this rank; the ranks compress by ``precision``, or not at all (None)."""
        if not self.are_launched:
            results = run_tcp(self.size, body, coding=None if precision is None else precision.quantiser())
            for result in results:
                if isinstance(result, Exception):
                    raise result
            return cast("T", results[0])
        from netoffload.torch.ranks import connect

        settings = Settings(offload=Offload.OFF)
        if precision is not None:
            settings = Settings(precision.codec, precision.bound_k, offload=Offload.INLINE)
        with contextlib.closing(connect(None, settings)) as calls:
            return body(calls.plane.exchange)


def launched_ranks() -> Ranks | None:
    """Return the ranks that torchrun, mpiexec or ``netoffload run`` started; None without a launcher."""
    said = dict(os.environ)
    set_rank_environment(said)
    size = int(said.get("WORLD_SIZE", "1"))
    return Ranks(size, int(said["RANK"]), are_launched=True) if size > 1 else None


class Adviser(AllOrNothing[Findings]):
    """Measures what the user did not give, and predicts; only rank 0 has findings."""

    def __init__(self, asked: AdviseSettings) -> None:
        self._asked, self._rate_bps = asked, None if asked.rate is None else parse_rate_bps(asked.rate)
        check_bound_k(asked.bound)
        if asked.nodes is not None and asked.nodes < 2:
            raise UsageError(f"{asked.nodes} ranks exchange nothing: use at least 2")
        if asked.is_tried and asked.rate is not None:
            raise UsageError("--try measures the network itself: leave --rate out")
        if asked.rate is None and asked.delay:
            raise UsageError("--delay needs the network's rate: add --rate 1gbit")
        if asked.script and asked.gradients is not None:
            raise UsageError("a script has gradients of its own: leave --gradients out, or the script")
        for name, value in {"delay": asked.delay, "compute": asked.compute or 0.0, "error": asked.error}.items():
            if not 0 <= value < math.inf:
                raise UsageError(f"{name} is {value:g}: it must be a number from 0 on")
        self._load_1min = os.getloadavg()[0]
        self._ranks = launched_ranks()
        if self._ranks is None and asked.is_tried:
            self._ranks = Ranks(asked.nodes or RANKS_DEFAULT)
        if self._ranks is None and self._rate_bps is None:
            raise UsageError(
                "which network? Say --rate 1gbit, or start it on your ranks (torchrun, mpiexec, netoffload run), "
                "or --try ranks of this machine"
            )

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        asked, ranks = self._asked, self._ranks
        if ranks is not None and ranks.rank != 0:
            progress = lambda _said, _share=None: None  # noqa: E731
        work, vectors, layout = self._workload(progress)
        progress("loading what rings run")
        prepare()
        network = None
        if self._rate_bps is not None:
            count = asked.nodes or (ranks.size if ranks else RANKS_DEFAULT)
            network = Network(count, self._rate_bps, asked.delay * 1e-3)
        elif ranks is not None:
            progress("measuring the network")
            network = ranks.run(None, path)
            if not ranks.are_launched:
                network = replace(network, source="loopback of this machine")
        assert network is not None
        tried: dict[str, float] = {}
        if asked.is_tried and ranks is not None:
            progress("trying rings")
            tried = try_rings(ranks, vectors, asked.bound)
        if ranks is not None and ranks.rank != 0:
            return
        progress("measuring codecs")
        codings = {name: coding_of(Precision(name, asked.bound), vectors, network.ranks) for name in advice.INLINE}
        codings |= {name: coding_by(name, vectors[0], layout) for name in advice.GATHERED}
        rows = [
            replace(row, measured_s=work.compute_s + tried[row.exchange]) if row.exchange in tried else row
            for row in advice.predict(network, work, codings)
        ]
        best, said = advice.recommended(rows, asked.error), advice.in_words(rows, asked.error)
        machine = versions("numba"), cpu_model(), os.cpu_count() or 1, self._load_1min
        self.found = Findings(network, work, codings, rows, best.exchange, said, *machine)

    def _workload(self, progress: Progress) -> tuple[Workload, Float32Array, Layout]:
        """Return what a step is, gradients float32[vectors, n], and their layers."""
        asked = self._asked
        if asked.gradients is not None:
            held = read_gradients(asked.gradients)
            vectors = held.reshape(-1, held.shape[-1])
            name, layout, compute_s = asked.gradients.name, Layout.flat(vectors.shape[1]), 0.0
        elif asked.script:
            name, (vectors, layout, compute_s) = Path(asked.script[0]).name, _observed(asked, progress)
        else:
            worker = 0 if self._ranks is None else self._ranks.rank
            name, (vectors, layout, compute_s) = asked.model, _trained(asked, worker, progress)
        if asked.compute is not None:
            compute_s = asked.compute * 1e-3
        return Workload(name, vectors[0].nbytes, compute_s), vectors, layout


def _trained(asked: AdviseSettings, worker: int, progress: Progress) -> tuple[Float32Array, Layout, float]:
    """Return a model's latest gradients, its layers, and the median seconds of a step."""
    from netoffload.lab.training.config import TrainSettings
    from netoffload.lab.training.inprocess import train_alone

    settings = TrainSettings("inc", nodes=1, model=asked.model, batch=asked.batch)
    settings = replace(settings, iterations=asked.steps or STEPS_OF_MODEL)
    progress(f"training {asked.model} for {settings.iterations} steps")
    kept, times_s = [], []
    for gradient, took_s in train_alone(settings, worker):
        times_s.append(took_s)
        if len(times_s) > settings.iterations - VECTORS_KEPT:
            kept.append(gradient.copy())
    layout = Layout(settings.model_spec.layer_sizes(settings.sample_shape))
    return np.stack(kept), layout, statistics.median(times_s)


def _observed(asked: AdviseSettings, progress: Progress) -> tuple[Float32Array, Layout, float]:
    """Return a script's latest gradients, its layers, and the median seconds of a step."""
    from netoffload.lab.training.observed import observe

    found = observe(asked.script, asked.steps or STEPS_OF_SCRIPT, progress)
    return np.stack(found.gradients), Layout(found.layer_sizes), statistics.median(found.times_s)


def path(exchange: TcpExchange) -> Network:
    """Measure the network between ranks that do not compress; collective, with the same answer on all ranks."""
    octets, longest_octets = PROBE_OCTETS
    while True:
        values = np.zeros(octets // 4, np.float32)
        spans = partition(values.size, exchange.size)
        times_s = []
        for _ in range(REPEATS):
            barrier(exchange)
            started_s = time.perf_counter()
            ring_allgather(exchange, values, spans, tagged=True)
            times_s.append(time.perf_counter() - started_s)
        took_s = _median_of_slowest(exchange, times_s)
        if took_s >= PROBE_S or octets >= longest_octets:
            break
        octets *= 8
    round_trip_s = _median_of_slowest(exchange, [exchange.round_trip_s()])
    found = Network(exchange.size, math.inf, round_trip_s / 2, "measured between ranks")
    moved_s = took_s - found.meeting_s - ring_delays_s(found.link(), found.ranks) / 2
    sent_octets = octets * (exchange.size - 1) / exchange.size
    return replace(found, rate_bps=sent_octets * 8 / (moved_s if moved_s > 0 else took_s))


def try_rings(ranks: Ranks, vectors: Float32Array, bound_k: int) -> dict[str, float]:
    """Return the median seconds of the slowest rank's exchange, by name in the table; collective."""
    precisions = {advice.PLAIN: None} | {f"{name} inline": Precision(name, bound_k) for name in advice.INLINE}
    return {
        name: ranks.run(precision, lambda exchange, precision=precision: _ring_s(exchange, vectors, precision))  # type: ignore[misc]
        for name, precision in precisions.items()
    }


def _ring_s(exchange: TcpExchange, vectors: Float32Array, precision: Precision | None) -> float:
    own = vectors[exchange.rank % len(vectors)]
    quantise = None if precision is None else precision.quantiser()
    factor = auto_factor(vectors[0], precision)
    times_s = []
    for _ in range(REPEATS + 1):
        values = own * factor
        barrier(exchange)
        started_s = time.perf_counter()
        ring_allreduce(exchange, values, tagged=precision is not None, quantise=quantise)
        times_s.append(time.perf_counter() - started_s)
    return _median_of_slowest(exchange, times_s[1:])


def _median_of_slowest(exchange: TcpExchange, times_s: Sequence[float]) -> float:
    """Return the median over the rounds of the slowest rank's time; collective."""
    slowest = np.array(times_s)
    ring_allreduce(exchange, slowest, tagged=False, operation=Operation.MAX)
    return float(np.median(slowest))


def coding_of(precision: Precision, vectors: Float32Array, ranks: int) -> Coding:
    """Measure a codec as an inline ring uses it on gradients float32[v, n]; rank r has row r modulo v."""
    factor = auto_factor(vectors[0], precision)
    scaled = vectors[0] * factor
    encode_s, decode_s, _, decoded = min(
        (_coded(scaled, precision) for _ in range(REPEATS)), key=lambda one: one[0] + one[1]
    )
    octets = 0
    for count in (-(-ranks // 2), ranks):
        partial: Float32Array = vectors[np.arange(count) % len(vectors)].sum(axis=0)
        octets += _coded(np.multiply(partial, factor), precision)[2]
    exact = scaled.astype(np.float64)
    error, power = np.abs(np.subtract(decoded, exact)), float(exact @ exact)
    return Coding(
        2 * scaled.nbytes / octets,
        scaled.nbytes / encode_s,
        scaled.nbytes / decode_s,
        math.sqrt(float(error @ error) / power) if power else 0.0,
        float(error.max()) * 2**precision.bound_k,
        f'codec="{precision.codec}", bound={precision.bound_k}',
    )


def coding_by(name: str, values: Float32Array, layout: Layout) -> Coding:
    """Measure a compressor on one gradient."""
    compressor = registry.parse(name)
    seen = quality(compressor, values, layout, repeats=2)
    encode_gbps, decode_gbps = speeds(compressor, values, layout, repeats=REPEATS)
    error = math.sqrt(seen.variance_ratio)
    return Coding(seen.ratio, encode_gbps * 1e9, decode_gbps * 1e9, error, None, f'compressor="{name}"')


def auto_factor(values: Float32Array, precision: Precision | None) -> np.float32:
    """Return the factor by which ``scale="auto"`` multiplies a gradient like this one."""
    rms = None if precision is None else codec_rms(precision.codec)
    exponent = None if rms is None else exponent_for(rms, root_mean_square(values))
    return np.float32(2.0 ** (exponent or 0))


def _coded(values: Float32Array, precision: Precision) -> tuple[float, float, int, Float32Array]:
    """Encode and decode a vector in chunks; return seconds of either, octets, and the decoded float32[n]."""
    coding = chunks.make_coding(int(precision.quantiser().codec_id), precision.bound_k)
    source, state = values.view(np.uint8), coding.state
    arrived = np.empty(values.size + LANES, np.float32)
    encode_s = decode_s = 0.0
    octets = 0
    for first in range(0, values.size, chunks.CODED_FLOATS):
        started_s = time.thread_time()
        chunks.pack(coding, source, 4 * first, min(values.size - first, chunks.CODED_FLOATS))
        packed_s = time.thread_time()
        length = int(state[chunks.OUT_END])
        chunks.count_sent(coding, length)
        coding.incoming[:length] = coding.outgoing[:length]
        for part in (chunks.HEADER_OCTETS, length - chunks.HEADER_OCTETS):
            chunks.count_received(coding, part, chunks.CODED_FLOATS)
        received_s = time.thread_time()
        chunks.unpack(coding, arrived.view(np.uint8), 4 * first)
        encode_s, decode_s = encode_s + packed_s - started_s, decode_s + time.thread_time() - received_s
        octets += length
    return max(encode_s, SHORTEST_S), max(decode_s, SHORTEST_S), octets, arrived[: values.size]
