"""The program of one rank: ``python -m mpi4py -m netoffload.training.rank JOB.json RESULT_DIR``.

All ranks train; rank 0 also reads the meter before and after the timed iterations, tells its progress in a file, and
measures the accuracy. Every rank leaves ``rank<r>.json``, an :class:`RankOutcome`, from which the parent makes the
record.
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

import numpy as np
import torch

import netoffload
from netoffload.codec.kernels import KERNEL
from netoffload.collectives import Exchange, barrier
from netoffload.config import Offload
from netoffload.environment import cpu_model
from netoffload.errors import UsageError
from netoffload.methods import Method
from netoffload.programs import end_at_once
from netoffload.results import ClassCounts, Versions
from netoffload.training import data
from netoffload.training.capture import CapturingMethod
from netoffload.training.config import RankJob, TrainSettings
from netoffload.training.dataset import Dataset, open_saved
from netoffload.training.loop import Batches, Timeline, average_buffers, method_of, run_server, run_worker, warm_up
from netoffload.training.measure import read_meter, traffic_between
from netoffload.training.memory import peak_memory_octets
from netoffload.training.outcome import PROGRESS_FILE, Coded, RankOutcome
from netoffload.training.replica import Replica
from netoffload.transport import Lane
from netoffload_mpi import MPI, CompComm


class Evaluation:
    """Rank 0's view between iterations: progress for the parent, accuracy where it was asked for.

    Every rank has one, so that all of them wait at the same iterations for rank 0 to finish measuring.
    """

    def __init__(self, settings: TrainSettings, replica: Replica, dataset: Dataset, exchange: Exchange) -> None:
        """Nothing is shown or measured yet."""
        self.accuracy_after: dict[str, float] = {}
        self._settings, self._replica, self._dataset, self._exchange = settings, replica, dataset, exchange
        self._progress: int | None = None

    def show_progress_in(self, folder: Path) -> None:
        """Keep the number of iterations done in a file, from now on."""
        self._progress = os.open(folder / PROGRESS_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def after_iteration(self, done: int) -> None:
        """Do what is due after ``done`` iterations."""
        if self._progress is not None:
            os.pwrite(self._progress, f"{done:12d}".encode(), 0)
        every = self._settings.eval_every
        if every and done % every == 0:
            if self._exchange.rank == 0:
                self.accuracy_after[str(done)] = self.measure()
            barrier(self._exchange)

    def measure(self) -> float:
        """Return the accuracy on the test set, 0..1."""
        images = torch.from_numpy(np.array(self._dataset.test_images))
        labels = torch.from_numpy(np.array(self._dataset.test_labels))
        return self._replica.accuracy(images, labels)


def run_rank(job: RankJob, comm: CompComm, folder: Path) -> RankOutcome:
    """Train as one rank and return what it saw; all ranks call it together."""
    settings, exchange, rank = job.settings, comm.exchange(), comm.exchange().rank
    dataset = open_saved(Path(job.dataset))
    replica = Replica(settings)

    def new_method() -> Method:
        return method_of(settings, exchange, comm.quantiser(), replica.layer_sizes)

    is_worker = rank < settings.nodes
    mine = data.share(settings, dataset, rank) if is_worker else None

    def new_batches() -> Batches | None:
        return data.batches(*mine, settings.batch, settings.seed, rank) if mine else None

    evaluation = Evaluation(settings, replica, dataset, exchange)
    if rank == 0:
        evaluation.show_progress_in(folder)
    warm_up(replica, new_method(), new_batches())
    method = new_method()
    replica.seed_layers(rank)
    barrier(exchange)
    compressed_before, coded_before = _compressed_octets(comm), _coded(comm)
    before = read_meter() if rank == 0 else None
    barrier(exchange)
    capture = CapturingMethod(method, job.capture_every) if job.capture_every and rank == 0 else None
    timeline = _iterate(job, replica, capture or method, new_batches(), evaluation)
    barrier(exchange)
    traffic = traffic_between(before, read_meter()) if before is not None else None
    coded = _coded(comm) - coded_before
    compressed = _compressed_octets(comm) - compressed_before + coded.raw_octets
    sent = dataclasses.replace(method.sent)
    barrier(exchange)
    # Behind the readings: the papers charge a method for its iterations, not for making one model of the replicas.
    method.finish(replica.parameters)
    average_buffers(replica, exchange, settings.nodes)
    if capture is not None:
        capture.write(folder)
    loss = timeline.last_loss
    return RankOutcome(
        rank=rank,
        is_worker=is_worker,
        wall_s=tuple(timeline.wall_s),
        parts=tuple(timeline.parts),
        sha256=replica.digest(),
        final_loss=loss if loss is not None and math.isfinite(loss) else None,
        accuracy=evaluation.measure() if rank == 0 else None,
        accuracy_after=evaluation.accuracy_after,
        traffic=traffic,
        versions=_versions() if rank == 0 else None,
        parameters=replica.parameters.size,
        sent=sent,
        compressed_octets=compressed,
        coded=coded,
        peak_memory_octets=peak_memory_octets(),
    )


def _compressed_octets(comm: CompComm) -> int:
    """Return what this rank's NIC has compressed of this communicator's tagged connections; 0 without a NIC."""
    nic = comm.totals().nic
    return 0 if nic is None else nic.raw_octets


def _coded(comm: CompComm) -> Coded:
    """Return what this rank has coded by itself so far."""
    exchange, is_coding = comm.exchange(), comm.offload() is Offload.INLINE
    raw_octets = exchange.sent_octets([Lane.TAGGED]) if is_coding else 0
    classes = ClassCounts(*exchange.coded_classes().tolist())
    saved_octets, codec_s = exchange.coding()
    return Coded(raw_octets, raw_octets - saved_octets, classes, codec_s)


def _iterate(
    job: RankJob, replica: Replica, method: Method, batches: Batches | None, evaluation: Evaluation
) -> Timeline:
    iterations = job.settings.iterations
    if batches is None:
        return run_server(replica, method, iterations, after_iteration=evaluation.after_iteration)
    return run_worker(replica, method, batches, iterations, after_iteration=evaluation.after_iteration)


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
    """Return 12 hexadecimal digits that are the same in every run on this machine; machine-id(5) is not to be shown."""
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
        UsageError: not two arguments, or a job that cannot be read.
    """
    if len(arguments) != 2:
        raise UsageError("usage: python -m mpi4py -m netoffload.training.rank JOB.json RESULT_DIR")
    end_at_once()
    job, folder = RankJob.read(Path(arguments[0])), Path(arguments[1])
    torch.set_num_threads(1)  # ranks share the machine's cores; one more thread each only fights over them
    with CompComm(MPI.COMM_WORLD, job.codec, job.bound_k, offload=job.settings.offload) as comm:
        run_rank(job, comm, folder).write(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
