"""A model under torch's ``DistributedDataParallel``, whose steps ``netoffload bench ddp`` times.

It is a plain script's model and optimizer, in the loop of every run. One hook, torch's or ours, exchanges the gradients
during backward.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import Dataset, batches, share
from netoffload.lab.training.doors import Door
from netoffload.lab.training.loop import iterate
from netoffload.lab.training.networks import cross_entropy
from netoffload.lab.training.replica import Travel, accuracy_of
from netoffload.torch import CompressionState, Outer, Periodic, compress_hook, set_rank_environment

ONE_BUCKET_MB: Final = 1 << 20
"""Size of PowerSGD's only bucket. With several, its callbacks call gloo in different orders on the ranks, and gloo
aborts."""


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join torch's ranks, which talk by gloo; collective."""
    torch.set_num_threads(1)  # ranks share the machine's cores
    set_rank_environment()
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Return this rank's number."""
    return dist.get_rank()


def barrier() -> None:
    """Wait for all ranks; collective."""
    dist.barrier()


def gathered(value: Any) -> list[Any]:
    """Return every rank's value, by rank; collective."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


class DdpReplica:
    """This rank's replica of a model, and its samples.

    Args:
        settings: model, batch, optimizer, seed; the method in them is not used.
        hook: ``none`` (DDP's own all_reduce), ``fp16`` and ``powersgd`` (torch's), ``compress`` (ours), or ``alone``:
            no gradient travels. With ``periodic`` the weights travel every few steps (``netoffload.torch.Periodic``).
    """

    travel = Travel()
    update_s = 0.0

    def __init__(self, settings: TrainSettings, dataset: Dataset, hook: str, options: Mapping[str, Any]) -> None:
        self.loss, self.iteration = 0.0, 0
        self._settings, self._done = settings, 0
        self._state: CompressionState | None = None
        own = share(settings, dataset, rank())
        self._batches = batches(*own, settings.batch, settings.seed, rank())
        group = dist.new_group()  # its own group, whose calls do not wait for those of other replicas
        module = settings.model_spec.build(settings.seed, settings.sample_shape)
        cap_mb = ONE_BUCKET_MB if hook == "powersgd" else None
        self._model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=cap_mb)
        if hook == "fp16":
            self._model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        elif hook == "powersgd":
            rank_of = options.get("rank", 1)  # of the matrices that travel
            state = powersgd.PowerSGDState(group, rank_of, start_powerSGD_iter=2)  # torch allows no earlier step
            self._model.register_comm_hook(state, powersgd.powerSGD_hook)
        elif hook == "compress":
            self._state = CompressionState(group, **options)
            self._model.register_comm_hook(self._state, compress_hook)
        self._travelling: Callable[[], contextlib.AbstractContextManager[None]] = (
            self._model.no_sync if hook in ("alone", "periodic") else contextlib.nullcontext
        )
        self._optimizer = settings.optimizer_spec.make(module.parameters())
        self._periodic = self._averaging(module, group, **options) if hook == "periodic" else None
        self._door = Door(self._optimizer.step if self._periodic is None else self._periodic.step)

    def _averaging(
        self, module: torch.nn.Module, group: Any, *, method: str, every: int, momentum: float | None = None, **how: Any
    ) -> Periodic:
        self._state = CompressionState(group, batch=self._settings.batch, **how)
        outer = None if momentum is None else Outer(1.0, momentum)
        return Periodic(module, self._optimizer, every=every, method=method, outer=outer, state=self._state)

    def step(self) -> float:
        """Train on one batch; return the seconds that it took, without those of drawing it."""
        done, self._done = self._done, self._done + 1
        timeline = iterate(self, self._door, self._batches, self._done, first=done)
        return timeline.wall_s[0] - timeline.draw_s[0]

    def backward(self, images: torch.Tensor, labels: torch.Tensor, on_loss: Callable[[], None]) -> float:
        """Compute the gradients of a batch, which the hook averages; return the loss."""
        self._optimizer.param_groups[0]["lr"] = self._settings.learning_rate_at(self.iteration)
        self._optimizer.zero_grad()
        with self._travelling():
            loss = cross_entropy(self._model(images), labels)
            on_loss()
            loss.backward()  # type: ignore[no-untyped-call]
        self.loss = float(loss.detach())
        return self.loss

    def finish(self) -> None:
        """Make replicas equal: averaged weights, and buffers, as DDP does before a step; collective."""
        if self._periodic is not None:
            self._periodic.finish()
        for buffer in self._model.module.buffers():
            dist.broadcast(buffer, 0)

    def digest(self) -> str:
        """Return the SHA-256 of parameters and buffers, as hexadecimal digits."""
        digest = hashlib.sha256()
        for tensor in self._model.state_dict().values():
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
        return digest.hexdigest()

    def accuracy(self, dataset: Dataset) -> float:
        """Return the accuracy on the test set, 0..1."""
        return accuracy_of(self._model.module, dataset)

    def sent_octets(self) -> tuple[int, int]:
        """Return the octets that a plain ring would have sent, and those that our hook sent; both 0 for other hooks."""
        if self._state is None:
            return 0, 0
        report = self._state.report()
        return report.ring_octets, report.sent_octets

    def close(self) -> None:
        """Close our hook's connections."""
        if self._state is not None:
            self._state.close()
