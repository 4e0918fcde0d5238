"""The program of one rank: ``python -m mpi4py -m netoffload.lab.training.rank JOB.json RESULT_DIR``.

All ranks train. Rank 0 also reads the meter before and after the timed iterations, prints its progress, and writes
captures and TensorBoard files. Every rank leaves ``rank<r>.json``, a :class:`RankOutcome`, from which the parent makes
the record.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Final

import numpy as np
import torch

import netoffload
from netoffload.codec.kernels import KERNEL
from netoffload.collectives import barrier
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.programs import end_at_once
from netoffload.config import Offload
from netoffload.errors import NetOffloadError, UsageError
from netoffload.lab.machine import cpu_model
from netoffload.lab.results import ClassCounts, Learning, Versions, read_file, write_file
from netoffload.lab.training.capture import Board, Kept
from netoffload.lab.training.config import RankJob
from netoffload.lab.training.data import open_saved
from netoffload.lab.training.loop import RankRun, warm_up
from netoffload.lab.training.memory import peak_memory_octets
from netoffload.lab.training.outcome import NOT_TAGGED, Coded, RankOutcome, read_meter, traffic_between
from netoffload.lab.training.replica import Watch
from netoffload.transport import Lane
from netoffload_mpi import MPI, CompComm

HISTOGRAMS: Final = 10
"""Histograms of a layer in a run without ``eval_every``; with it, there is one with every accuracy."""


def run_rank(job: RankJob, comm: CompComm, folder: Path) -> RankOutcome:
    """Train as one rank and return its result; all ranks call it together."""
    settings, exchange = job.settings, comm.exchange()
    run = RankRun(settings, open_saved(Path(job.dataset)), comm.calls(), job.checkpointing)
    rank, replica = exchange.rank, run.replica
    if rank == 0:
        run.on_step = lambda step: print(json.dumps(dataclasses.asdict(step)), flush=True)
    warm_up(settings, replica, comm.calls(), run.new_batches())
    run.begin()
    kept = _watch(job, run) if rank == 0 else None
    barrier(exchange)
    coded_before = _coded(comm)
    before = read_meter() if rank == 0 else None
    barrier(exchange)
    run.iterate()
    barrier(exchange)
    traffic = traffic_between(before, read_meter()) if before is not None else None
    coded = _coded(comm) - coded_before
    barrier(exchange)
    run.finish()
    if kept is not None:
        kept.write(folder, replica.layers)
    if run.board is not None:
        run.board.close()
    return RankOutcome(
        rank=rank,
        is_worker=run.is_worker,
        wall_s=tuple(run.timeline.wall_s),
        parts=tuple(run.timeline.parts),
        sha256=replica.digest(),
        learning=Learning(run.measure(), run.accuracy_after, run.loss, run.loss_after) if rank == 0 else None,
        traffic=traffic,
        versions=_versions() if rank == 0 else None,
        parameters=replica.parameter_count,
        sent=run.sent,
        coded=coded,
        peak_memory_octets=peak_memory_octets(),
        first_iteration=run.first,
    )


def _watch(job: RankJob, run: RankRun) -> Kept | None:
    """Show this rank's gradients to TensorBoard and to a capture, which is returned, as the job says."""
    replica, kept = run.replica, Kept() if job.capture_every else None
    if kept is not None:
        run.watches.append(Watch(replica, job.capture_every, kept.keep))
    if job.tensorboard:
        board = run.board = Board(Path(job.tensorboard), replica.layers)

        def add_histograms(iteration: int, gradient: Float32Array) -> None:
            board.add_histograms(iteration, "gradient", gradient)
            board.add_histograms(iteration, "weight", replica.parameters)

        every = job.settings.eval_every or max(1, job.settings.iterations // HISTOGRAMS)
        run.watches.append(Watch(replica, every, add_histograms))
    return kept


def _coded(comm: CompComm) -> Coded:
    """Return what was compressed of this rank's octets so far, by its NIC (0 without one) and by the rank itself."""
    totals, exchange = comm.totals(), comm.exchange()
    counters = totals.nic_counters
    raw_octets = exchange.sent_octets([Lane.TAGGED]) if comm.offload() is Offload.INLINE else 0
    saved_octets, codec_s = exchange.coding()
    return Coded(
        nic_octets=totals.nic.raw_octets if totals.nic else 0,
        raw_segments={
            reason: count
            for reason, count in (counters or {}).items()
            if reason.startswith("bypass_") and reason not in NOT_TAGGED
        },
        raw_octets=raw_octets,
        payload_octets=raw_octets - saved_octets,
        classes=ClassCounts(*exchange.coded_classes().tolist()),
        codec_s=codec_s,
    )


def _versions() -> Versions:
    return Versions(
        netoffload=netoffload.__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        torch=torch.__version__,
        mpi=MPI.Get_library_version().split("\n")[0].strip("\0 "),
        kernel=platform.release(),
        codec_kernel=KERNEL,
        cpu=cpu_model(),
        cores=os.cpu_count() or 0,
        machine=_machine(),
    )


def _machine() -> str:
    """Return 12 hexadecimal digits that name this machine in records, because machine-id(5) must stay secret."""
    for path in ("/etc/machine-id", "/sys/class/dmi/id/product_uuid"):
        with contextlib.suppress(OSError):
            if identity := Path(path).read_bytes().strip():
                break
    else:
        identity = platform.node().encode()
    return hashlib.sha256(b"netoffload" + identity).hexdigest()[:12]


def main(arguments: list[str]) -> None:
    """Train as this process's rank of MPI's world."""
    if len(arguments) != 2:
        raise UsageError("usage: python -m mpi4py -m netoffload.lab.training.rank JOB.json RESULT_DIR")
    end_at_once()
    job, folder = read_file(RankJob, Path(arguments[0])), Path(arguments[1])
    torch.set_num_threads(1)  # ranks share the machine's cores, so more threads would only compete for them
    offload = job.settings.offload if job.settings.compressed else Offload.OFF
    with CompComm(MPI.COMM_WORLD, job.codec, job.bound_k, offload=offload) as comm:
        outcome = run_rank(job, comm, folder)
        write_file(outcome.path(folder, outcome.rank), outcome)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NetOffloadError as found:
        print(f"netoffload: rank {MPI.COMM_WORLD.rank}: {found}", file=sys.stderr, flush=True)
        sys.exit(found.exit_code)
