"""Model parallelism: the models that can be split, a rank's part of a model, its method and its batches.

::

    --parallel data     every worker has the whole model and its own samples; gradients are exchanged
               model    every worker has a part of every layer and all samples; activations and errors are exchanged
               hybrid   data in the convolutions, model in the fully connected layers behind them

All workers together take the same samples as with ``data``. One iteration changes the model as one rank with all
samples would, up to float rounding. So learning rates and loss scale are the same.

Convolutions are replicas, whose gradients the run's method sums. Of the other layers every rank has and updates only
its part. The parts travel only before an accuracy is measured, before the final SHA-256, and after the last iteration.

Source: T. Dettmers, "8-bit approximations for parallelism in deep learning" (ICLR 2016), sections 2.2 and 2.4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from netoffload.collectives import Exchange, allgather_payloads
from netoffload.collectives.schedule import partition
from netoffload.lab.training import data
from netoffload.lab.training.config import Parallel, TrainSettings
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.parallel_layers import ActivationExchange, split_sequence
from netoffload.lab.training.replica import Batches, Replica, Travel, accuracy_of, build_model
from netoffload.methods import Sent


class SplitReplica(Replica):
    """A replica of the convolutions, and this rank's part of the fully connected layers behind them.

    The first ``shared`` floats of ``parameters`` and ``gradient`` are the convolutions'.
    """

    def __init__(self, settings: TrainSettings, exchange: Exchange) -> None:
        whole = build_model(settings)
        self._first = first = settings.first_fully_connected(whole)
        assert isinstance(whole, nn.Sequential)
        self._is_model = settings.parallel == Parallel.MODEL
        self.activations = ActivationExchange(exchange, settings.activation_compressor)
        part = split_sequence(
            whole,
            first,
            self.activations,
            has_whole_inputs=self._is_model,
            sub_batches=settings.sub_batches,
        )
        self.shared = sum(tensor.numel() for tensor in whole[:first].parameters())
        self._whole: nn.Module | None = None
        super().__init__(settings, part)
        self.parameter_count = sum(tensor.numel() for tensor in whole.parameters())
        if self.shared:  # the convolutions' gradients are divided when they are averaged
            self._loss_factor *= settings.nodes
        self._before, self._behind = part[:first], part[first:]

    @property
    def travelling(self) -> dict[str, nn.Parameter]:
        """See :attr:`Replica.travelling`: those of the convolutions."""
        layers = {layer.name for layer in self.layers if layer.offset < self.shared}
        return {name: one for name, one in super().travelling.items() if name in layers}

    @property
    def travel(self) -> Travel:
        """See :attr:`Replica.travel`."""
        return Travel(self.activations.waited_s, self.activations.hidden_s)

    def training_outputs(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`Replica.training_outputs`; returns the outputs for all workers' samples."""
        workers = self._settings.nodes
        # With --parallel model all ranks have the same samples, so the first layers must draw alike on all of them.
        self._seed_layers_by(workers if self._is_model else self._rank)
        inputs = self._before(images)
        self._seed_layers_by(None if self._rank is None else workers + 1 + self._rank)
        outputs: torch.Tensor = self._behind(inputs)
        return outputs

    def update(self) -> None:
        """See :meth:`Replica.update`."""
        if self.shared:
            np.divide(self.gradient[self.shared :], self._settings.nodes, out=self.gradient[self.shared :])
        super().update()

    def count_in(self, sent: Sent) -> None:
        """See :meth:`Replica.count_in`."""
        self.activations.sent = sent

    def collect(self, exchange: Exchange) -> None:
        """Gather the parts of all ranks on every rank."""
        own = self.parameters[self.shared :].view(np.uint8)
        parts = [torch.from_numpy(octets.view(np.float32)) for octets in allgather_payloads(exchange, own)]
        settings = self._settings
        whole = build_model(settings)
        assert isinstance(whole, nn.Sequential)
        whole[: self._first].load_state_dict(self._before.state_dict())
        with torch.no_grad():
            for tensor in whole[self._first :].parameters():
                for rank, span in enumerate(partition(len(tensor), exchange.size)):
                    rows = tensor[span.start : span.stop]
                    rows.copy_(parts[rank][: rows.numel()].view_as(rows))
                    parts[rank] = parts[rank][rows.numel() :]
        self._whole = whole

    def digest(self) -> str:
        """See :meth:`Replica.digest`; call :meth:`collect` first."""
        assert self._whole is not None
        digest = hashlib.sha256()
        for tensor in self._whole.parameters():
            digest.update(tensor.detach().numpy().data)
        digest.update(self.buffers().data)
        return digest.hexdigest()

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """See :meth:`Replica.accuracy`; call :meth:`collect` first."""
        assert self._whole is not None
        return accuracy_of(self._whole, images, labels)


def replica_of(settings: TrainSettings, exchange: Exchange) -> Replica:
    """Return this rank's replica of a run's model, or its part of one."""
    return Replica(settings) if settings.parallel == Parallel.DATA else SplitReplica(settings, exchange)


def batch_source(settings: TrainSettings, dataset: Dataset, worker: int) -> Callable[[int], Batches]:
    """Return a function that yields a worker's batches after a number of first ones.

    With ``data`` a worker has its own samples, with ``model`` all workers' samples. With ``hybrid`` it has its own
    samples and all workers' labels, in sub-batches.
    """
    if settings.parallel == Parallel.DATA:
        own = data.share(settings, dataset, worker)
        return lambda first: data.batches(*own, settings.batch, settings.seed, worker, first)
    is_hybrid = settings.parallel == Parallel.HYBRID
    shares = []
    for each in range(settings.nodes):
        images, labels = data.share(settings, dataset, each)
        # Only the labels of other workers' samples are needed; any array stands for their images.
        shares.append((labels if is_hybrid and each != worker else images, labels))
    pieces = settings.sub_batches if is_hybrid else 1

    def joint(first: int) -> Batches:
        every = [
            data.batches(*shares[each], settings.batch, settings.seed, each, first) for each in range(settings.nodes)
        ]
        for batches in zip(*every, strict=True):
            cut = zip(*(one[1].chunk(pieces) for one in batches), strict=True)
            images = batches[worker][0] if is_hybrid else torch.cat([one[0] for one in batches])
            yield images, torch.cat([labels for sub_batch in cut for labels in sub_batch])

    return joint
