"""The rank program of ``netoffload bench ddp``: replicas of one model that take turns, each with another hook.

Every replica trains the same steps from the same weights. The first steps are not timed: DDP builds its buckets in
them, and our hook sends exact values. Before a step all ranks meet in a barrier, which puts some kilobytes on the
wires. The slowest rank's time counts. If replicas differ in a bit between ranks, no time is reported.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload.compiled.programs import end_at_once
from netoffload.config import ENV_METER
from netoffload.errors import ReplicaError, RunError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.jobs import ALONE, DDP_HOOKS, DdpHook, DdpRecord, DdpResult
from netoffload.lab.results import read_file
from netoffload.lab.testbed.build import octets_on_wires
from netoffload.lab.training import ddp
from netoffload.lab.training.config import RankJob
from netoffload.lab.training.dataset import Dataset, open_saved
from netoffload.machine.environment import system_versions, versions

UNTIMED_STEPS: Final = 3


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


def measure(job: RankJob, names: list[str], rounds: int) -> DdpRecord:
    """Train all replicas; return the record (only rank 0's has all octets)."""
    dataset, settings = open_saved(Path(job.dataset)), job.settings
    hooks = {ALONE: DdpHook(ALONE)} | {name: DDP_HOOKS[name] for name in names}
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


def _options(hook: DdpHook, bound_k: int | None) -> dict[str, Any]:
    return {**hook.options, "bound": bound_k} if hook.is_bounded else dict(hook.options)


def _slowest_s(contender: Contender[Sample]) -> tuple[float, ...]:
    mine = [time_s for one in contender.samples for time_s in one.times_s]
    return tuple(max(times_s) for times_s in zip(*ddp.gathered(mine), strict=True))


def _result(contender: Contender[Sample], replica: ddp.DdpReplica, dataset: Dataset, compute_s: float) -> DdpResult:
    name, samples = contender.name, contender.samples
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
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--what", action="append", required=True)
    asked = parser.parse_args()
    with ddp.joined():
        record = measure(read_file(RankJob, asked.job), asked.what, asked.rounds)
        if ddp.rank() == 0:
            asked.out.write_text(json.dumps(record.to_record()), encoding="utf-8")
        ddp.barrier()


if __name__ == "__main__":
    main()
