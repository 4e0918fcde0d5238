"""A run without a testbed: the ranks are threads, and their octets go through memory.

The methods are those of a real run, so a run learns what it would learn over links, and each rank counts what it
sends. There are no NICs: only methods of the hosts themselves work here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import torch

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.errors import UsageError
from netoffload.methods import Sent
from netoffload.training import data
from netoffload.training.config import TrainSettings
from netoffload.training.dataset import Dataset
from netoffload.training.loop import Batches, method_of, run_server, run_worker
from netoffload.training.replica import Replica

TIMEOUT_S: Final = 120.0
"""A rank waits that long for another one's computing."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """How a run ended.

    Attributes:
        accuracy: on the test set, 0..1.
        final_loss: of worker 0's last batch; None: not finite.
        efficiency: octets of worker 0's vectors over those of one float32 gradient per iteration.
        sha256: of worker 0's parameters and buffers.
    """

    accuracy: float
    final_loss: float | None
    efficiency: float
    sha256: str


def train(settings: TrainSettings, dataset: Dataset) -> Learned:
    """Train as ``settings`` say and return what came out; torch's threads are set to one.

    Raises:
        UsageError: the method needs NICs.
    """
    if settings.compressed:
        raise UsageError(f"{settings.method} needs NICs: it cannot be trained in one process")
    torch.set_num_threads(1)

    def one_rank(exchange: Exchange) -> tuple[Replica, float | None, Sent]:
        torch.set_num_threads(1)
        replica = Replica(settings)
        own = method_of(settings, exchange, None, replica.layer_sizes)
        if exchange.rank >= settings.nodes:
            run_server(replica, own, settings.iterations)
            loss = None
        else:
            loss = run_worker(replica, own, batches_of(settings, dataset, exchange.rank), settings.iterations).last_loss
        sent = dataclasses.replace(own.sent)
        own.finish(replica.parameters)
        return replica, loss, sent

    replica, loss, sent = run_ranks(settings.ranks, one_rank, timeout_s=TIMEOUT_S)[0]
    images, labels = torch.from_numpy(dataset.test_images), torch.from_numpy(dataset.test_labels)
    return Learned(
        replica.accuracy(images, labels),
        loss if loss is not None and math.isfinite(loss) else None,
        sent.vector_octets / (replica.parameters.nbytes * settings.iterations),
        replica.digest(),
    )


def batches_of(settings: TrainSettings, dataset: Dataset, worker: int) -> Batches:
    """Return a worker's batches: of its part of the training set, or of all of it if that is shared."""
    return data.batches(*data.share(settings, dataset, worker), settings.batch, settings.seed, worker)
