"""One run, from the parent's side: a testbed, ranks in it, and the record they leave.

Several runs share a testbed, one after the other; the ring's runs leave the aggregator's node idle. What is not
compressed has a testbed without NICs: on one machine NICs take cores from the ranks, which a baseline must not pay for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from netoffload import results
from netoffload.config import check_choice
from netoffload.errors import NetOffloadError, ReplicaError, RunError, UsageError
from netoffload.methods import Way
from netoffload.reports import INLINE, VIA_NICS
from netoffload.results import Record, Spread, Timing, Traffic
from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, run_ranks
from netoffload.training import data
from netoffload.training.capture import CAPTURE_FILE
from netoffload.training.config import RankJob, TrainSettings
from netoffload.training.dataset import save
from netoffload.training.measure import FLOAT_OCTETS, check_traffic, with_coded
from netoffload.training.memory import check_memory
from netoffload.training.outcome import PROGRESS_FILE, Parts, RankOutcome

PROGRESS_INTERVAL_S: Final = 0.2

START_S: Final = 120.0
"""Allowance for a run's start and end: importing torch on all ranks of a small machine takes seconds."""

SLOW_CORE_FLOPS: Final = 5e9
"""What a rank computes per second where it shares an old core."""

BASELINES: Final = ("direct", "nic", "both")
"""Where methods run that use no codec of a NIC: without NICs, through NICs that leave them alone, or both."""

Progress = Callable[[str, int], None]
"""Called with the name of the run (:attr:`Planned.name`) and the iterations it has done."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run, and whether its testbed has NICs."""

    settings: TrainSettings
    has_nics: bool

    @property
    def name(self) -> str:
        """As reports call it."""
        settings = self.settings
        way = INLINE if settings.is_inline else VIA_NICS if self.has_nics and not settings.compressed else ""
        buckets = f" {settings.bucket_mb:g} MB" if settings.bucket_mb else ""
        return settings.method + ("+ef" if settings.error_feedback else "") + buckets + way


def plan_runs(runs: Sequence[TrainSettings], baselines: str = BASELINES[0]) -> list[Planned]:
    """Return the runs in the order in which they are done: those without NICs first.

    Raises:
        UsageError: ``baselines`` is none of :data:`BASELINES`.
    """
    check_choice("baselines", baselines, BASELINES)
    plain = [run for run in runs if not run.compressed]
    coded = [run for run in runs if run.is_inline]
    through = [
        run for run in runs if (run.compressed and not run.is_inline) or (run in plain and baselines != "direct")
    ]
    direct = [run for run in runs if run in coded or (run in plain and baselines != "nic")]
    return [Planned(run, has_nics=False) for run in direct] + [Planned(run, has_nics=True) for run in through]


@dataclasses.dataclass(frozen=True)
class Capture:
    """Where gradients of rank 0 are kept (float32[vectors, n], .npy), and of which iterations: every ``every``-th.

    At most :data:`netoffload.training.capture.MAX_VECTORS` vectors are kept.
    """

    path: Path
    every: int = 50

    def check(self, runs: Sequence[Planned]) -> None:
        """Refuse before anything is built.

        Raises:
            UsageError: several runs, no iteration to capture, or a file that cannot be written.
        """
        if len(runs) != 1:
            raise UsageError("gradients are captured of one exchange at a time")
        iterations = runs[0].settings.iterations
        if not 1 <= self.every <= iterations:
            raise UsageError(f"no gradient to capture: every {self.every} of {iterations} iterations")
        results.check_writable(self.path)

    def keep(self, result_folder: Path) -> None:
        """Move what rank 0 wrote to where it was asked for.

        Raises:
            UsageError: it cannot be written there.
        """
        try:
            shutil.move(result_folder / CAPTURE_FILE, self.path)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error}") from error


def run_all(
    runs: Sequence[TrainSettings],
    testbed: TestbedSettings,
    *,
    baselines: str = BASELINES[0],
    on_phase: Callable[[str], None] = lambda _phrase: None,
    on_progress: Progress = lambda _name, _done: None,
    on_record: Callable[[Record], None] = lambda _record: None,
    on_failure: Callable[[str, NetOffloadError], None] = lambda _name, _error: None,
    capture: Capture | None = None,
) -> list[Record]:
    """Do the runs one after the other, in a testbed without NICs and in one with them; undo both.

    A run that fails does not keep the others from being done.

    Args:
        runs: at least one; they may differ in everything but data set, seed and number of workers.
        testbed: with at least as many nodes as the runs need (:func:`nodes_needed`), and with NICs.
        baselines: of :data:`BASELINES`.
        on_phase: called with a phrase whenever a step of building a testbed begins.
        on_progress: called a few times per second, from another thread.
        on_record: called after every run, so that an interrupted series leaves what it has.
        on_failure: called with the name of a run that failed, and why.
        capture: of one run, where gradients of rank 0 are kept.

    Raises:
        UsageError: settings that do not fit each other, or a data set that cannot be read.
        TestbedError: a testbed could not be built.
        RunError: at least one run failed; all others were done.
    """
    _check_together(runs, testbed)
    planned = plan_runs(runs, baselines)
    if capture is not None:
        capture.check(planned)
    dataset = data.load(runs[0])
    on_phase(f"up to {check_memory(runs) / 1e9:.1f} GB of memory per rank")
    records: list[Record] = []
    failed: dict[str, NetOffloadError] = {}
    for has_nics in (False, True):
        mine = [run for run in planned if run.has_nics == has_nics]
        settings = testbed if has_nics else dataclasses.replace(testbed, nic=None)
        if not mine:
            continue
        with Testbed(make_plan(settings, new_run_id()), progress=on_phase) as bed:
            folder = bed.make_scratch()
            save(dataset, folder)
            for number, run in enumerate(mine):
                result_folder = folder / f"run{number}"
                result_folder.mkdir()
                try:
                    record = run_one(run, settings, bed, folder, result_folder, on_progress, capture)
                except NetOffloadError as error:
                    failed[run.name] = error
                    on_failure(run.name, error)
                else:
                    records.append(record)
                    on_record(record)
    _check_none(failed, len(planned))
    return records


def _check_none(failed: Mapping[str, NetOffloadError], planned: int) -> None:
    if not failed:
        return
    first = next(iter(failed.values()))
    reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
    error = RunError(f"{len(failed)} of {planned} runs failed: {reasons}")
    error.exit_code = first.exit_code
    raise error from first


def nodes_needed(runs: Sequence[TrainSettings]) -> int:
    """Return the number of testbed nodes that a series of runs needs."""
    return max(settings.ranks for settings in runs)


def _check_together(runs: Sequence[TrainSettings], testbed: TestbedSettings) -> None:
    if not runs:
        raise UsageError("nothing to run: name at least one method")
    if len({(run.data_spec, run.data_dir, run.seed, run.nodes) for run in runs}) > 1:
        raise UsageError("runs on one testbed share their data set, seed and number of workers")
    if alone := [run.method for run in runs if run.ranks == 1]:
        raise UsageError(f"1 worker exchanges nothing by {alone[0]}: use at least 2")
    if testbed.nodes < nodes_needed(runs):
        raise UsageError(f"the runs need {nodes_needed(runs)} nodes, the testbed has {testbed.nodes}")
    if testbed.nic is None and any(run.compressed for run in runs):
        raise UsageError("a compressed method needs NICs")


def run_one(
    run: Planned,
    testbed: TestbedSettings,
    bed: Testbed,
    dataset_folder: Path,
    result_folder: Path,
    on_progress: Progress,
    capture: Capture | None = None,
) -> Record:
    """Do one run on a testbed that is up; see :func:`run_all`.

    Raises:
        RunError: a rank failed or hung, or did not talk over the testbed's wires as it was asked to.
        ReplicaError: the workers ended with different parameters.
    """
    settings = run.settings
    job = RankJob(settings, str(dataset_folder), capture.every if capture else 0)
    if settings.is_inline and testbed.nic is not None:
        job = dataclasses.replace(job, codec=testbed.nic.codec, bound_k=testbed.nic.bound_k)
    job_file = result_folder / "job.json"
    job.write(job_file)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    argv = ["-m", "netoffload.training.rank", str(job_file), str(result_folder)]
    on_progress(run.name, 0)
    with _watching(result_folder / PROGRESS_FILE, lambda done: on_progress(run.name, done)):
        run_ranks(bed, range(settings.ranks), argv, timeout_s=time_limit_s(settings, testbed.rate_bps))
    if capture is not None:
        capture.keep(result_folder)
    outcomes = [RankOutcome.read(result_folder, rank) for rank in range(settings.ranks)]
    return make_record(settings, testbed, bed.rate_bps_measured, started, outcomes)


def time_limit_s(settings: TrainSettings, rate_bps: int | None) -> float:
    """Return the seconds after which a run is ended as hung.

    They are the start, and per iteration ten times the model's slowest method at that rate, and computing: what a slow
    core takes for the batch, but a microsecond per parameter and a second at least.
    """
    parameters = sum(settings.model_spec.layer_sizes(settings.sample_shape))
    slowest_s = 2 * settings.nodes * parameters * FLOAT_OCTETS * 8 / (rate_bps or 1_000_000_000)
    # Backward takes twice what forward does; a multiplication and an addition are two operations.
    compute_s = 6 * settings.batch * settings.model_spec.weight_uses * parameters / SLOW_CORE_FLOPS
    return START_S + settings.iterations * (max(1.0, 1e-6 * parameters, compute_s) + 10 * slowest_s)


@contextlib.contextmanager
def _watching(progress_file: Path, on_done: Callable[[int], None]) -> Iterator[None]:
    finished = threading.Event()

    def watch() -> None:
        last = -1
        while not finished.wait(PROGRESS_INTERVAL_S):
            with contextlib.suppress(OSError, ValueError):
                done = int(progress_file.read_text() or -1)
                if done > max(last, 0):
                    on_done(last := done)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def make_record(
    settings: TrainSettings,
    testbed: TestbedSettings,
    rate_bps_measured: float | None,
    started: str,
    outcomes: Sequence[RankOutcome],
) -> Record:
    """Turn what the ranks left into the record.

    Raises:
        ReplicaError: the workers' parameters differ.
        RunError: rank 0 did not leave the traffic, the accuracy or the versions, or the traffic is not what the ranks
            sent.
    """
    has_weights = settings.spec.way is not Way.SERVER
    check_replicas([outcome for outcome in outcomes if outcome.is_worker or has_weights])
    first = outcomes[0]
    if first.traffic is None or first.accuracy is None or first.versions is None:
        raise RunError("rank 0 left an incomplete result")
    traffic = with_coded(first.traffic, outcomes)
    check_traffic(settings, traffic, outcomes)
    return Record(
        format=results.FORMAT,
        started=started,
        configuration=_configuration(settings, testbed, first.parameters),
        versions=first.versions,
        rate_bps_measured=rate_bps_measured,
        timing=_timing(outcomes, settings.spec.period),
        traffic=traffic,
        compression_efficiency=_efficiency(settings, outcomes, traffic),
        learning=results.Learning(first.accuracy, first.accuracy_after, first.final_loss),
        parameter_sha256=first.sha256,
        peak_memory_octets=tuple(outcome.peak_memory_octets for outcome in outcomes),
    )


def _efficiency(settings: TrainSettings, outcomes: Sequence[RankOutcome], traffic: Traffic) -> float:
    workers = [outcome.sent.vector_octets for outcome in outcomes if outcome.is_worker]
    whole = FLOAT_OCTETS * outcomes[0].parameters * settings.iterations
    return sum(workers) / len(workers) / whole / traffic.ratio


def check_replicas(outcomes: Sequence[RankOutcome]) -> None:
    """Compare the parameters of ranks, bit for bit by their SHA-256.

    Raises:
        ReplicaError: naming the ranks that differ from rank 0.
    """
    different = [str(outcome.rank) for outcome in outcomes if outcome.sha256 != outcomes[0].sha256]
    if different:
        raise ReplicaError(f"the parameters of rank {', '.join(different)} differ from those of rank 0")


def _timing(outcomes: Sequence[RankOutcome], period: int) -> Timing:
    """Mean over the workers per iteration; the aggregator's update counts as computing, at workers it was waiting.

    Aggregators add at the same time, so the busiest one counts.

    A method that communicates every ``period`` iterations is measured by whole periods.
    """
    workers = [outcome for outcome in outcomes if outcome.is_worker]
    servers = [outcome for outcome in outcomes if not outcome.is_worker]
    wall = _mean_per_period(_mean_per_iteration([outcome.wall_s for outcome in workers]), period)

    def parts(name: str) -> list[float]:
        mean = _mean_per_iteration([[getattr(part, name) for part in outcome.parts] for outcome in workers])
        above = zip(*([getattr(part, name) for part in outcome.parts] for outcome in servers), strict=True)
        if servers:
            mean = [own + max(others) for own, others in zip(mean, above, strict=True)]
        return _mean_per_period(mean, period)

    communicate = [whole - part for whole, part in zip(wall, parts("compute_s"), strict=True)]
    names = ("compute_s", *(field.name for field in dataclasses.fields(Parts)))
    spreads = {name: Spread.of(parts(name)) for name in names}
    return Timing(Spread.of(wall), communicate_s=Spread.of(communicate), **spreads)


def _mean_per_period(samples: Sequence[float], period: int) -> list[float]:
    """Return the mean of every ``period`` consecutive samples; what is left at the end counts if it is all there is."""
    ends = range(period, len(samples) + 1, period) if len(samples) >= period else (len(samples),)
    return [sum(samples[max(end - period, 0) : end]) / min(period, len(samples)) for end in ends]


def _mean_per_iteration(series: Sequence[Sequence[float]]) -> list[float]:
    return [sum(samples) / len(samples) for samples in zip(*series, strict=True)]


def _configuration(settings: TrainSettings, testbed: TestbedSettings, parameters: int) -> results.Configuration:
    nic: NicSettings | None = testbed.nic
    return results.Configuration(
        model=settings.model,
        exchange=settings.method,
        nodes=settings.nodes,
        iterations=settings.iterations,
        seed=settings.seed,
        batch=settings.batch,
        learning_rate=settings.optimizer.learning_rate,
        learning_rate_divisor=settings.schedule.divisor,
        learning_rate_interval=settings.schedule.interval,
        momentum=settings.optimizer.momentum,
        weight_decay=settings.optimizer.weight_decay,
        loss_scale=settings.loss_scale,
        data=settings.data_spec.name,
        parameters=parameters,
        codec=nic.codec if nic else None,
        bound_k=nic.bound_k if nic else None,
        packing=nic.packing if nic else None,
        rate_bps=testbed.rate_bps,
        mtu=testbed.mtu,
        error_feedback=settings.error_feedback,
        sharing=settings.sharing,
        offload=settings.offload,
        bucket_mb=settings.bucket_mb,
    )
