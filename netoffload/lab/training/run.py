"""The parent's side of a run: a testbed, ranks on it, and the record.

Several runs share a testbed, one after the other; in runs of a ring the aggregator's node is idle. Uncompressed methods
run on a testbed without NICs, because on one machine NICs take cores from the ranks.
"""

import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import NetOffloadError, ReplicaError, RunError, UsageError
from netoffload.lab import results
from netoffload.lab.results import Record, Spread, Timing, Traffic
from netoffload.lab.testbed import (
    NicSettings,
    Testbed,
    TestbedSettings,
    make_plan,
    new_run_id,
    prepared_ranks,
    run_ranks,
)
from netoffload.lab.testbed.launch import pass_on_stdout
from netoffload.lab.training import IMPORTED, data
from netoffload.lab.training.config import RankJob, TrainSettings
from netoffload.lab.training.data import Dataset, save
from netoffload.lab.training.memory import check_memory
from netoffload.lab.training.outcome import Parts, RankOutcome, Step, check_traffic, with_coded
from netoffload.lab.training.plan import BASELINES, NO_OUTPUTS, Outputs, Planned, plan_runs
from netoffload.methods import Topology

START_S: Final = 120.0
"""Time allowed for a run's start and end: importing torch on all ranks of a small machine takes seconds."""

SLOW_CORE_FLOPS: Final = 5e9  # operations per second of a rank that shares an old core

Progress = Callable[[str, Step], None]
"""Called with the name of the run (:attr:`Planned.name`) and its progress."""

EVALUATION_S: Final = 60.0  # time allowed for measuring an accuracy


def run_all(
    runs: Sequence[TrainSettings],
    testbed: TestbedSettings,
    *,
    baselines: str = BASELINES[0],
    on_phase: Callable[[str], None] = lambda _phrase: None,
    on_progress: Progress = lambda _name, _step: None,
    on_record: Callable[[str, Record], None] = lambda _name, _record: None,
    on_failure: Callable[[str, NetOffloadError], None] = lambda _name, _error: None,
    outputs: Outputs = NO_OUTPUTS,
) -> list[Record]:
    """Do the runs one after the other, in a testbed without NICs and in one with them; undo both.

    If a run fails, the others are still done. A run that is finished according to its checkpoint is not repeated.

    Args:
        runs: at least one; they may differ in everything but data set and number of workers.
        testbed: settings with NICs, and with at least as many nodes as the runs need (:func:`nodes_needed`).
        on_progress: called a few times per second, from another thread.
        on_record: called after every run, so that an interrupted series keeps its records.
    """
    _check_together(runs, testbed)
    planned, datasets = plan_runs(runs, baselines), OneDataset()
    outputs.check(planned, testbed.nic)
    needed_octets = check_memory(runs)
    for run in planned:
        datasets.of(run.settings)
    on_phase(f"up to {needed_octets / 1e9:.1f} GB of memory per rank")
    records: list[Record] = []
    failed: dict[str, NetOffloadError] = {}

    def keep(run: Planned, record: Record) -> None:
        records.append(record)
        on_record(run.name, record)

    # The fork server imports torch while the first testbed is built; both testbeds use it.
    with prepared_ranks(IMPORTED):
        for settings, left in _beds(planned, testbed, outputs, keep):
            with Testbed(make_plan(settings, new_run_id()), progress=on_phase) as bed:
                for run in left:
                    try:
                        keep(run, run_one(run, testbed, bed, datasets, on_progress, outputs))
                    except NetOffloadError as error:
                        failed[run.name] = error
                        on_failure(run.name, error)
                        bed.replace_ended_nics()  # the run may have ended with one
    _check_none(failed, len(planned))
    return records


def _beds(
    planned: Sequence[Planned], testbed: TestbedSettings, outputs: Outputs, keep: Callable[[Planned, Record], None]
) -> Iterator[tuple[TestbedSettings, list[Planned]]]:
    """Yield the testbed without NICs and the one with them, each with its unfinished runs; pass on finished records."""
    for settings in (dataclasses.replace(testbed, nic=None), testbed):
        left = []
        for run in (run for run in planned if run.has_nics == (settings is testbed)):
            if (record := outputs.finished(run, testbed.nic)) is None:
                left.append(run)
            else:
                keep(run, record)
        if left:
            yield settings, left


class OneDataset:
    """The data set of the latest run. Digits and noise depend on the seed, so another run may need another set."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._dataset: Dataset | None = None
        self._saved: dict[tuple[str, int], Path] = {}

    def of(self, settings: TrainSettings) -> Dataset:
        """Return the data set of a run."""
        if self._dataset is None or settings.seed != self._seed:
            self._dataset = None  # so that memory never has two
            self._dataset, self._seed = data.load(settings), settings.seed
        return self._dataset

    def saved(self, settings: TrainSettings, bed: Testbed) -> Path:
        """Save a run's data set into a folder of the testbed for its ranks, and return the folder."""
        key = (bed.plan.run_id, settings.seed)
        if key not in self._saved:
            folder = bed.make_scratch()
            save(self.of(settings), folder)
            self._saved[key] = folder
        return self._saved[key]


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
    if len({(run.data_spec, run.data_dir, run.nodes) for run in runs}) > 1:
        raise UsageError("the runs need different data sets or numbers of workers: start one command for each")
    if alone := [run.method for run in runs if run.ranks == 1]:
        raise UsageError(f"1 worker exchanges nothing by {alone[0]}: use at least 2")
    if testbed.nodes < nodes_needed(runs):
        raise UsageError(f"the runs need {nodes_needed(runs)} nodes, the testbed has {testbed.nodes}")
    if testbed.nic is None and any(run.compressed for run in runs):
        raise UsageError("a compressed method needs NICs: build the testbed with them")


def run_one(
    run: Planned,
    testbed: TestbedSettings,
    bed: Testbed,
    datasets: OneDataset,
    on_progress: Progress,
    outputs: Outputs = NO_OUTPUTS,
) -> Record:
    """Do one run on a testbed that is up; see :func:`run_all`."""
    settings, folder, nic = run.settings, bed.make_scratch(), testbed.nic
    coding = nic if settings.is_inline else None
    job = RankJob(
        settings,
        str(datasets.saved(settings, bed)),
        capture_every=outputs.capture_every if outputs.capture else 0,
        codec=coding.codec if coding else None,
        bound_k=coding.bound_k if coding else None,
        checkpointing=outputs.checkpointing(run, nic),
        tensorboard=str(outputs.tensorboard.absolute() / run.folder) if outputs.tensorboard else None,
    )
    job_file = folder / "job.json"
    results.write_file(job_file, job)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    argv = ["-m", "netoffload.lab.training.rank", str(job_file), str(folder)]
    on_progress(run.name, Step(0))

    def show(rank: int, lines: bytes) -> None:
        for line in lines.splitlines(keepends=True):
            try:
                on_progress(run.name, Step(**json.loads(line)))
            except (ValueError, TypeError):  # a library's words
                pass_on_stdout(rank, line)

    limit_s = time_limit_s(settings, testbed.rate_bps)
    run_ranks(bed, range(settings.ranks), argv, timeout_s=limit_s, on_stdout=show)
    outputs.keep_capture(folder)
    outcomes = [
        results.read_file(
            RankOutcome, RankOutcome.path(folder, rank), f"rank {rank} did not leave its result", error=RunError
        )
        for rank in range(settings.ranks)
    ]
    # A run without NICs must not look like one with their codec, unless the ranks used the codec themselves.
    used = testbed if run.has_nics or settings.is_inline else dataclasses.replace(testbed, nic=None)
    record = make_record(settings, used, bed.rate_bps_measured, started, outcomes)
    outputs.keep(run, nic, record)
    return record


def time_limit_s(settings: TrainSettings, rate_bps: int | None) -> float:
    """Return the seconds after which a run is ended as hung.

    They are the sum of the start, the accuracies and the iterations. An iteration gets ten times the model's slowest
    method at that rate, and the time of a slow core for a batch, at least a second and a microsecond per parameter.
    """
    parameters = sum(settings.model_spec.layer_sizes(settings.sample_shape))
    slowest_s = 2 * settings.nodes * parameters * FLOAT_OCTETS * 8 / (rate_bps or 1_000_000_000)
    # Backward takes twice as long as forward; a multiplication and an addition are two operations.
    compute_s = 6 * settings.batch * settings.model_spec.weight_uses * parameters / SLOW_CORE_FLOPS
    measured_s = EVALUATION_S * (settings.iterations // settings.eval_every) if settings.eval_every else 0.0
    return START_S + measured_s + settings.iterations * (max(1.0, 1e-6 * parameters, compute_s) + 10 * slowest_s)


def make_record(
    settings: TrainSettings,
    testbed: TestbedSettings,
    rate_bps_measured: float | None,
    started: str,
    outcomes: Sequence[RankOutcome],
) -> Record:
    """Make the record from the results of the ranks."""
    has_weights = settings.spec.topology is not Topology.SERVER
    first = outcomes[0]
    replicas = [outcome for outcome in outcomes if outcome.is_worker or has_weights]
    if different := [str(outcome.rank) for outcome in replicas if outcome.sha256 != first.sha256]:
        raise ReplicaError(f"the parameters of rank {', '.join(different)} differ from those of rank 0")
    if first.traffic is None or first.learning is None or first.versions is None:
        raise RunError("rank 0 left an incomplete result")
    traffic = with_coded(first.traffic, outcomes)
    check_traffic(settings, traffic, outcomes)
    crossed_raw = (max(one.sent.tagged_octets - one.coded.compressed_octets, 0) for one in outcomes)
    traffic = dataclasses.replace(traffic, crossed_raw_octets=sum(crossed_raw))
    return Record(
        format=results.FORMAT,
        started=started,
        configuration=_configuration(settings, testbed, first.parameters),
        versions=first.versions,
        rate_bps_measured=rate_bps_measured,
        timing=_timing(outcomes, settings.spec.period),
        traffic=traffic,
        compression_efficiency=_efficiency(outcomes, traffic),
        learning=first.learning,
        parameter_sha256=first.sha256,
        first_iteration=first.first_iteration,
        timed_iterations=len(first.wall_s),
        peak_memory_octets=tuple(outcome.peak_memory_octets for outcome in outcomes),
    )


def _efficiency(outcomes: Sequence[RankOutcome], traffic: Traffic) -> float:
    sent = [outcome.sent for outcome in outcomes if outcome.is_worker]
    workers = [each.vector_octets / traffic.ratio + each.activation_octets for each in sent]
    whole = FLOAT_OCTETS * outcomes[0].parameters * len(outcomes[0].wall_s)
    return sum(workers) / len(workers) / whole


def _timing(outcomes: Sequence[RankOutcome], period: int) -> Timing:
    """Return the workers' mean times per iteration.

    The aggregator's update counts as computing, although the workers wait for it. Aggregators add at the same time, so
    the busiest one counts. A method that communicates every ``period`` iterations is measured by whole periods.
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
    """Return the mean of every ``period`` consecutive samples; fewer samples than a period give one mean."""
    ends = range(period, len(samples) + 1, period) if len(samples) >= period else (len(samples),)
    return [sum(samples[max(end - period, 0) : end]) / min(period, len(samples)) for end in ends]


def _mean_per_iteration(series: Sequence[Sequence[float]]) -> list[float]:
    return [sum(samples) / len(samples) for samples in zip(*series, strict=True)]


def _configuration(settings: TrainSettings, testbed: TestbedSettings, parameters: int) -> results.Configuration:
    nic: NicSettings | None = testbed.nic
    settings = settings.resolved()
    names = {field.name for field in dataclasses.fields(results.Configuration)}
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name in names}
    values |= {
        "exchange": settings.method,
        "learning_rate_divisor": settings.learning_rate_divisor or 1.0,
        "learning_rate_interval": settings.learning_rate_interval or settings.iterations,
        "momentum": settings.momentum or 0.0,
        "weight_decay": settings.weight_decay or 0.0,
        "parameters": parameters,
        "codec": nic.codec if nic else None,
        "bound_k": nic.bound_k if nic else None,
        "packing": nic.packing if nic and not settings.is_inline else None,
        "rate_bps": testbed.rate_bps,
        "mtu": testbed.mtu,
    }
    return results.Configuration(**values)
