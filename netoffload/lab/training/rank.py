"""The program of one rank: ``python -m mpi4py -m netoffload.lab.training.rank JOB.json RESULT_DIR``.

All ranks train. Rank 0 also reads the meter before and after the timed iterations, and writes captures and TensorBoard
files. Every rank leaves ``rank<r>.json``, a :class:`RankOutcome`, from which the parent makes the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
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
from netoffload.config import Offload
from netoffload.environment import cpu_model
from netoffload.errors import NetOffloadError, UsageError
from netoffload.lab.results import ClassCounts, Versions
from netoffload.lab.training.board import Board
from netoffload.lab.training.capture import CapturingMethod, ObservedMethod
from netoffload.lab.training.checkpoint import Checkpoints
from netoffload.lab.training.config import RankJob
from netoffload.lab.training.dataset import open_saved
from netoffload.lab.training.loop import Batches, make_one_model, warm_up
from netoffload.lab.training.measure import read_meter, traffic_between
from netoffload.lab.training.memory import peak_memory_octets
from netoffload.lab.training.milestones import Milestones, iterate
from netoffload.lab.training.outcome import Coded, RankOutcome
from netoffload.lab.training.parallel import batch_source, method_with, replica_of
from netoffload.lab.training.replica import Replica
from netoffload.methods import Method
from netoffload.programs import end_at_once
from netoffload.transport import Lane
from netoffload_mpi import MPI, CompComm

HISTOGRAMS: Final = 10
"""Histograms of a layer in a run without ``eval_every``; with it, there is one with every accuracy."""


def run_rank(job: RankJob, comm: CompComm, folder: Path) -> RankOutcome:
    """Train as one rank and return its result; all ranks call it together."""
    settings, exchange, rank = job.settings, comm.exchange(), comm.exchange().rank
    dataset = open_saved(Path(job.dataset))
    replica = replica_of(settings, exchange)

    def new_method() -> Method:
        return method_with(replica, settings, exchange, comm.quantiser())

    source = batch_source(settings, dataset, rank) if rank < settings.nodes else None

    def new_batches(first: int = 0) -> Batches | None:
        return source(first) if source else None

    checkpoints = Checkpoints(job.checkpointing, exchange) if job.checkpointing else None
    milestones = Milestones(settings, replica, dataset, exchange, checkpoints)
    if rank == 0:
        milestones.show_progress_in(folder)
    warm_up(replica, new_method(), new_batches())
    method = new_method()
    milestones.begin(method)
    watched = Watched(job, replica, method, milestones) if rank == 0 else None
    barrier(exchange)
    compressed_before = Compressed.of(comm)
    before = read_meter() if rank == 0 else None
    barrier(exchange)
    batches = new_batches(milestones.first)
    timeline = iterate(settings, replica, watched.method if watched else method, batches, milestones)
    barrier(exchange)
    traffic = traffic_between(before, read_meter()) if before is not None else None
    compressed = Compressed.of(comm) - compressed_before
    sent = dataclasses.replace(method.sent)
    barrier(exchange)
    # After the last reading: the papers count a method's iterations, not the averaging of the replicas at the end.
    method.finish(replica.parameters)
    make_one_model(replica, exchange, settings.nodes)
    if watched is not None:
        watched.write(folder)
    loss = timeline.last_loss
    return RankOutcome(
        rank=rank,
        is_worker=source is not None,
        wall_s=tuple(timeline.wall_s),
        parts=tuple(timeline.parts),
        sha256=replica.digest(),
        final_loss=loss if loss is not None and math.isfinite(loss) else None,
        accuracy=milestones.measure() if rank == 0 else None,
        accuracy_after=milestones.accuracy_after,
        traffic=traffic,
        versions=_versions() if rank == 0 else None,
        parameters=replica.parameter_count,
        sent=sent,
        compressed_octets=compressed.nic_octets + compressed.coded.raw_octets,
        no_gain_segments=compressed.no_gain_segments,
        coded=compressed.coded,
        peak_memory_octets=peak_memory_octets(),
        first_iteration=milestones.first,
        loss_after=milestones.loss_after,
    )


class Watched:
    """Rank 0's method, wrapped so that a capture and TensorBoard get its gradients.

    Attributes:
        method: the wrapped method, to call instead.
    """

    def __init__(self, job: RankJob, replica: Replica, method: Method, milestones: Milestones) -> None:
        """Begin the capture and the TensorBoard file, if ``job`` asks for them."""
        self.method = method
        self._replica = replica
        self._board: Board | None = None
        self._capture: CapturingMethod | None = None
        if job.capture_every:
            self.method = self._capture = CapturingMethod(method, job.capture_every, milestones.first)
        if job.tensorboard:
            self._board = milestones.board = Board(Path(job.tensorboard), replica.layers)
            every = job.settings.eval_every or max(1, job.settings.iterations // HISTOGRAMS)
            self.method = ObservedMethod(self.method, every, self._add_histograms, milestones.first)

    def write(self, folder: Path) -> None:
        """Write the rest of the TensorBoard file, and the capture into the result folder."""
        if self._capture is not None:
            self._capture.write(folder, self._replica.layers)
        if self._board is not None:
            self._board.close()

    def _add_histograms(self, iteration: int, gradient: Float32Array) -> None:
        assert self._board is not None
        self._board.add_histograms(iteration, "gradient", gradient)
        self._board.add_histograms(iteration, "weight", self._replica.parameters)


@dataclasses.dataclass(frozen=True)
class Compressed:
    """Counts of this rank's compressed data so far: by its NIC, and by the rank itself.

    Attributes:
        nic_octets: raw octets of this communicator's tagged connections that the NIC compressed; 0 without a NIC.
        no_gain_segments: number of segments that the NIC did not compress because they would not shrink.
        coded: what the rank compressed by itself.
    """

    nic_octets: int
    no_gain_segments: int
    coded: Coded

    @classmethod
    def of(cls, comm: CompComm) -> Compressed:
        """Read the counts, from the NIC if there is one."""
        totals = comm.totals()
        if totals.nic is None or totals.nic_counters is None:
            return cls(0, 0, _coded(comm))
        return cls(totals.nic.raw_octets, totals.nic_counters["bypass_no_gain"], _coded(comm))

    def __sub__(self, other: Compressed) -> Compressed:
        """Return the increase since ``other``."""
        segments = self.no_gain_segments - other.no_gain_segments
        return Compressed(self.nic_octets - other.nic_octets, segments, self.coded - other.coded)


def _coded(comm: CompComm) -> Coded:
    """Return what this rank has compressed by itself so far."""
    exchange, is_coding = comm.exchange(), comm.offload() is Offload.INLINE
    raw_octets = exchange.sent_octets([Lane.TAGGED]) if is_coding else 0
    classes = ClassCounts(*exchange.coded_classes().tolist())
    saved_octets, codec_s = exchange.coding()
    return Coded(raw_octets, raw_octets - saved_octets, classes, codec_s)


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
    """Train as this process's rank of MPI's world.

    Raises:
        NetOffloadError: not two arguments, a job that cannot be read, or what ended the training.
    """
    if len(arguments) != 2:
        raise UsageError("usage: python -m mpi4py -m netoffload.lab.training.rank JOB.json RESULT_DIR")
    end_at_once()
    job, folder = RankJob.read(Path(arguments[0])), Path(arguments[1])
    torch.set_num_threads(1)  # ranks share the machine's cores, so more threads would only compete for them
    with CompComm(MPI.COMM_WORLD, job.codec, job.bound_k, offload=job.settings.offload) as comm:
        run_rank(job, comm, folder).write(folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except NetOffloadError as found:
        print(f"netoffload: rank {MPI.COMM_WORLD.rank}: {found}", file=sys.stderr, flush=True)
        sys.exit(found.exit_code)
