"""The rank program of ``netoffload bench ddp``: replicas of one model that take turns, each with another hook.

Every replica trains the same steps from the same weights. The first steps are not timed: DDP builds its buckets in
them, and our hook sends exact values. Before a step all ranks meet in a barrier, which puts some kilobytes on the
wires. The slowest rank's time counts. If replicas differ in a bit between ranks, no time is reported.

In a *race* one replica after the other trains whole, until its accuracy on the test set is high enough. Its time is
that between two barriers, with drawing batches and without measuring accuracies. The accuracy is that of rank 0's
replica. A learning rate with which a trial ends in an error counts as one that learns nothing.
"""

import argparse
import functools
import json
import os
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from netoffload.compiled.programs import end_at_once
from netoffload.config import ENV_METER
from netoffload.errors import NetOffloadError, ReplicaError, RunError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.jobs import ALONE, DDP_HOOKS, DdpHook, DdpRecord, DdpResult, RacePoint, RaceResult
from netoffload.lab.results import read_file
from netoffload.lab.testbed.build import octets_on_wires
from netoffload.lab.training import ddp
from netoffload.lab.training.config import RankJob
from netoffload.lab.training.data import Dataset, open_saved
from netoffload.machine.environment import system_versions, versions

UNTIMED_STEPS: Final = 3


@dataclass(frozen=True)
class DdpJob(RankJob):
    """What every rank reads: contenders that take turns in rounds or, with ``until``, race to this accuracy.

    ``every`` is the number of steps between two accuracies, ``factors`` are of the learning rate.
    """

    names: tuple[str, ...] = ()
    rounds: int = 1
    until: float | None = None
    every: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Times of the steps of one turn, octets on all wires (0 but on rank 0), and octets of our hook.

    ``ring_octets`` are those that a plain ring would have sent from this rank instead.
    """

    times_s: list[float]
    wire_octets: int
    ring_octets: int
    sent_octets: int


def steps_of(number: int, steps: int, rounds: int) -> int:
    """Return how many of ``steps`` a round trains; round 0 trains the untimed ones."""
    if number < 1:
        return UNTIMED_STEPS
    timed = steps - UNTIMED_STEPS
    return timed * number // rounds - timed * (number - 1) // rounds


def measure(job: DdpJob) -> DdpRecord:
    """Train all replicas; return the record (only rank 0's has all octets)."""
    dataset, settings, rounds = open_saved(Path(job.dataset)), job.settings, job.rounds
    hooks = {ALONE: DdpHook(ALONE)} | {name: DDP_HOOKS[name] for name in job.names}
    replicas = {
        name: ddp.DdpReplica(settings, dataset, one.hook, _options(one, job.bound_k)) for name, one in hooks.items()
    }

    def turn(name: str, number: int) -> Sample:
        replica = replicas[name]
        ring_before, sent_before = replica.sent_octets()
        ddp.barrier()
        before, times_s = _wire_octets(), []
        for _ in range(steps_of(number, settings.iterations, rounds)):
            ddp.barrier()
            times_s.append(replica.step())
        ddp.barrier()
        octets = _wire_octets() - before
        ring, sent = replica.sent_octets()
        return Sample(times_s, octets, ring - ring_before, sent - sent_before)

    def tell(name: str, number: int) -> None:
        if ddp.rank() == 0:
            print(f"{name}: {'warming up' if number < 1 else f'round {number} of {rounds}'}", flush=True)

    contenders = [Contender(name, functools.partial(turn, name)) for name in replicas]
    take_turns(contenders, rounds, warm_ups=1, on_turn=tell)
    alone, *others = contenders
    compute_s = statistics.median(_slowest_s(alone))
    results = [_result(one, replicas[one.name], dataset, compute_s) for one in others]
    for replica in replicas.values():
        replica.close()
    return DdpRecord(system_versions() | versions("torch"), tuple(results))


def race(job: DdpJob, until: float) -> DdpRecord:
    """Train one contender after the other; return the record (only rank 0's has all octets)."""
    dataset, settings = open_saved(Path(job.dataset)), job.settings
    usual = settings.resolved().learning_rate
    assert usual is not None
    results = []
    for name in job.names:
        tried = dict[float, float]()
        if len(job.factors) > 1:
            apart, steps = held_out(dataset), max(1, settings.iterations // 4)
            for rate in (usual * one for one in job.factors):
                try:
                    tried[rate] = _run(job, name, rate, apart, steps, 2.0)[-1].accuracy
                except (NetOffloadError, RuntimeError):  # all ranks raise, from a hook as RuntimeError
                    tried[rate] = 0.0
        best = max(tried, key=tried.__getitem__, default=usual * job.factors[0])
        curve = _run(job, name, best, dataset, settings.iterations, until)
        end = curve[-1]
        results.append(
            RaceResult(
                what=name,
                is_reached=end.accuracy >= until,
                learning_rate=best,
                steps=end.steps,
                s_per_iteration=end.time_s / end.steps,
                time_s=end.time_s,
                wire_octets=end.wire_octets,
                accuracy=end.accuracy,
                tried={f"{rate:.6g}": accuracy for rate, accuracy in tried.items()},
                curve=tuple(curve),
            )
        )
    return DdpRecord(system_versions() | versions("torch"), raced=tuple(results))


def held_out(dataset: Dataset) -> Dataset:
    """Return nine tenths of the training samples, with the last tenth in place of the test set."""
    kept = len(dataset.train_labels) * 9 // 10
    images, labels = dataset.train_images, dataset.train_labels
    return Dataset(images[:kept], labels[:kept], images[kept:], labels[kept:])


def _run(job: DdpJob, name: str, rate: float, dataset: Dataset, steps: int, until: float) -> list[RacePoint]:
    """Train a replica and return its accuracies: of this many steps, or until one is high enough."""
    if ddp.rank() == 0:
        print(f"{name}: learning rate {rate:.3g}, {steps} steps", flush=True)
    hook = DDP_HOOKS[name]
    replica = ddp.DdpReplica(replace(job.settings, learning_rate=rate), dataset, hook.hook, _options(hook, job.bound_k))
    curve, done, time_s, octets, accuracy = list[RacePoint](), 0, 0.0, 0, 0.0
    while done < steps and accuracy < until:
        ddp.barrier()
        before, start_s = _wire_octets(), time.perf_counter()
        for _ in range(min(job.every, steps - done)):
            replica.step()
            done += 1
        ddp.barrier()
        time_s, octets = time_s + time.perf_counter() - start_s, octets + _wire_octets() - before
        accuracy = ddp.gathered(replica.accuracy(dataset) if ddp.rank() == 0 else 0.0)[0]
        curve.append(RacePoint(done, time_s, octets, accuracy))
    replica.finish()
    if len(set(ddp.gathered(replica.digest()))) > 1:
        raise ReplicaError(f"{hook.hook}: the replicas differ")
    replica.close()
    return curve


def _options(hook: DdpHook, bound_k: int | None) -> dict[str, Any]:
    return {**hook.options, "bound": bound_k} if hook.is_bounded else dict(hook.options)


def _slowest_s(contender: Contender[Sample]) -> tuple[float, ...]:
    mine = [time_s for one in contender.samples for time_s in one.times_s]
    return tuple(max(times_s) for times_s in zip(*ddp.gathered(mine), strict=True))


def _result(contender: Contender[Sample], replica: ddp.DdpReplica, dataset: Dataset, compute_s: float) -> DdpResult:
    name, samples = contender.name, contender.samples
    replica.finish()
    if len(set(ddp.gathered(replica.digest()))) > 1:
        raise ReplicaError(f"{name}: the replicas differ")
    ring, sent = sum(one.ring_octets for one in samples), sum(one.sent_octets for one in samples)
    if sent >= ring > 0:
        raise RunError(f"{name}: nothing was compressed")
    times_s = _slowest_s(contender)
    step_s = statistics.median(times_s)
    return DdpResult(
        what=name,
        s_per_iteration=step_s,
        compute_s=compute_s,
        communicate_s=max(0.0, step_s - compute_s),
        wire_bytes_per_iteration=sum(one.wire_octets for one in samples) / len(times_s),
        ratio_to_fp16=None,
        payload_ratio=ring / sent if sent else None,
        accuracy=replica.accuracy(dataset) if ddp.rank() == 0 else 0.0,
        loss=replica.loss,
        times_s=times_s,
    )


def _wire_octets() -> int:
    """Return the octets that all nodes have sent on their wires; 0 on other ranks than rank 0."""
    return octets_on_wires(os.environ[ENV_METER]) if ddp.rank() == 0 else 0


def main() -> None:
    """Measure as this process's rank; rank 0 writes the record."""
    end_at_once()
    parser = argparse.ArgumentParser(prog="python -m netoffload.lab.bench.rank_ddp", allow_abbrev=False)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    with ddp.joined():
        job = read_file(DdpJob, asked.job)
        record = measure(job) if job.until is None else race(job, job.until)
        if ddp.rank() == 0:
            asked.out.write_text(json.dumps(record.to_record()), encoding="utf-8")
        ddp.barrier()


if __name__ == "__main__":
    main()
