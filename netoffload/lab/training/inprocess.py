"""A run without a testbed: the ranks are threads, and their octets go through memory.

The methods are those of a real run, so the run learns the same as over links, and each rank counts what it sends. There
are no NICs; if a codec is given, it rounds tagged floats as NICs would.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import torch

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.config import BOUND_K_DEFAULT
from netoffload.errors import UsageError
from netoffload.lab.training.checkpoint import Checkpoints
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.loop import Batches, Timeline, make_one_model
from netoffload.lab.training.measure import FLOAT_OCTETS
from netoffload.lab.training.milestones import Milestones, iterate
from netoffload.lab.training.parallel import batch_source, method_with, replica_of
from netoffload.lab.training.replica import Replica
from netoffload.methods import Sent

TIMEOUT_S: Final = 120.0
"""Time that a rank waits for another one's computing."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """The result of a run.

    Attributes:
        accuracy: accuracy on the test set, 0..1.
        final_loss: loss of worker 0's last batch; None: not finite.
        efficiency: octets of worker 0's vectors over those of one float32 gradient per iteration.
        sha256: SHA-256 of worker 0's parameters and buffers.
        accuracy_after: accuracies on the way, 0..1, by the number of iterations.
    """

    accuracy: float
    final_loss: float | None
    efficiency: float
    sha256: str
    accuracy_after: dict[str, float]


def train(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    codec_name: str | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    checkpointing: Checkpointing | None = None,
) -> Learned:
    """Train as ``settings`` say and return the result; torch's threads are set to one.

    Args:
        settings: settings of the run.
        dataset: the data set that they name.
        codec_name: codec that rounds tagged floats; None: there are no NICs.
        bound_k: error bound 2**-bound_k of the codec.
        checkpointing: place of the checkpoints; None: no checkpoints.

    Raises:
        UsageError: the method needs NICs, or a checkpoint cannot be read or written.
    """
    if settings.compressed and codec_name is None:
        raise UsageError(f"{settings.method} needs NICs: it cannot be trained in one process")
    torch.set_num_threads(1)
    chosen = codec.get(codec_name) if codec_name else None

    def quantise(block: Float32Array) -> None:
        assert chosen is not None
        chosen.round_trip(block, bound_k, out=block)

    def one_rank(exchange: Exchange) -> tuple[Replica, Timeline, Sent, Milestones]:
        torch.set_num_threads(1)
        replica = replica_of(settings, exchange)
        own = method_with(replica, settings, exchange, quantise if chosen else None)
        checkpoints = Checkpoints(checkpointing, exchange) if checkpointing else None
        milestones = Milestones(settings, replica, dataset, exchange, checkpoints)
        milestones.begin(own)
        is_worker = exchange.rank < settings.nodes
        batches = batches_of(settings, dataset, exchange.rank, milestones.first) if is_worker else None
        timeline = iterate(settings, replica, own, batches, milestones)
        sent = dataclasses.replace(own.sent)
        own.finish(replica.parameters)
        make_one_model(replica, exchange, settings.nodes)
        return replica, timeline, sent, milestones

    ranks = run_ranks(settings.ranks, one_rank, codec=chosen, bound_k=bound_k, timeout_s=TIMEOUT_S)
    replica, timeline, sent, milestones = ranks[0]
    loss = timeline.last_loss
    return Learned(
        milestones.measure(),
        loss if loss is not None and math.isfinite(loss) else None,
        (sent.vector_octets + sent.activation_octets)
        / (FLOAT_OCTETS * replica.parameter_count * max(1, len(timeline.wall_s))),
        replica.digest(),
        milestones.accuracy_after,
    )


def batches_of(settings: TrainSettings, dataset: Dataset, worker: int, first: int = 0) -> Batches:
    """Return a worker's batches after the ``first``, from its part of the training set or from a shared one."""
    return batch_source(settings, dataset, worker)(first)
