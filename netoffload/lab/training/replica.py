"""A replica: one model whose parameters, gradients and optimizer's state are flat buffers.

A method needs one contiguous float32 array, and the update is fastest with few long vector operations. So the tensors
that torch trains are views::

    parameters  |W1          |b1|W2       |b2| ... |W5|b5|    float32[1,149,010]
                  |            |                                param.data views it
    gradient    |W1          |b1|W2       |b2| ... |W5|b5|
                                                                param.grad views it: backward() writes what is sent

An iteration makes no copy: the NumPy arrays and the torch tensors of a replica share memory. (The sizes are HDC's.)
"""

import contextlib
import dataclasses
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from netoffload.collectives import Exchange
from netoffload.compiled.arrays import Float32Array
from netoffload.lab.training.capture import Layer
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.networks import FullyConnected, cross_entropy
from netoffload.methods import Sent

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

Observe = Callable[[int, Float32Array], None]
"""Takes a part of a worker's own gradient: where it begins in the vector of all, and its values."""

PASS_SAMPLES: Final = 1000
PASS_VALUES: Final = 1000 * 3 * 32 * 32
PASS_LABELS: Final = 16_000
"""Limits of one pass of an evaluation, which bound its memory."""


_drawing = threading.Lock()
"""Held from seeding torch's random numbers until a forward has drawn them, and while torch's layers draw their first
weights: ranks may be threads of one process."""


def build_model(settings: TrainSettings) -> nn.Module:
    """Return the model that ``settings`` names, with the weights of its seed."""
    with _drawing:
        return settings.model_spec.build(settings.seed, settings.sample_shape)


@dataclasses.dataclass(frozen=True)
class Travel:
    """Seconds: ``waited_s`` of waiting for data of other ranks, ``hidden_s`` in which it came during computing."""

    waited_s: float = 0.0
    hidden_s: float = 0.0


class Replica:
    """A model over flat buffers, with the optimizer that changes it.

    ``module`` is the network, whose parameters and gradients are views of the buffers. Accuracy and digest are those of
    ``whole``: that network, or all ranks' parts after :meth:`collect`. ``layers`` are the weights and biases, in their
    order in both buffers.
    """

    def __init__(self, settings: TrainSettings, module: nn.Module | None = None) -> None:
        self._settings = settings
        self.rank: int | None = None  # decides, with seed and iteration, what layers draw; None: torch's own draw
        self.iteration = 0  # the one under way; decides learning rate and dropout
        self.observe: Observe = lambda _start, _values: None  # gets every part of the gradient before that travels
        self._loss_factor = settings.loss_scale
        self.module = self.whole = module or build_model(settings)
        # Only FullyConnected overwrites its gradients; torch's own layers add to what is there.
        self._adds_gradients = any(
            list(layer.parameters(recurse=False)) and not isinstance(layer, FullyConnected)
            for layer in self.module.modules()
        )
        self._draws = any(isinstance(layer, nn.Dropout) for layer in self.module.modules())
        self.loss: float | None = None
        named = dict(self.module.named_parameters())
        offsets = itertools.accumulate((tensor.numel() for tensor in named.values()), initial=0)
        self.layers = tuple(
            Layer(name, tuple(tensor.shape), offset, tensor.numel())
            for (name, tensor), offset in zip(named.items(), offsets, strict=False)
        )
        count = sum(self.layer_sizes)
        self.parameter_count = count
        self._flat_parameters = torch.empty(count)
        self._flat_gradient = torch.zeros(count)
        for layer, tensor in zip(self.layers, named.values(), strict=True):
            part = slice(layer.offset, layer.offset + layer.size)
            self._flat_parameters[part] = tensor.detach().reshape(-1)
            tensor.data = self._flat_parameters[part].view_as(tensor)
            tensor.grad = self._flat_gradient[part].view_as(tensor)
        # torch's optimizer sees one parameter: each works value by value.
        self._optimizer_view = nn.Parameter(self._flat_parameters)
        self._optimizer = settings.optimizer_spec.make([self._optimizer_view], fused=True)
        self.parameters: Float32Array = self._flat_parameters.numpy()  # workers must agree on them bit for bit
        # Written by backward, averaged by the run's door, read by update.
        self.gradient: Float32Array = self._flat_gradient.numpy()
        self.optimizer = ReplicaOptimizer(self)  # as the doors of ``netoffload.torch`` expect one

    @property
    def travelling(self) -> dict[str, nn.Parameter]:
        """The parameters whose gradients ranks exchange, by name: the first ones of both buffers."""
        return dict(self.module.named_parameters())

    @property
    def update_s(self) -> float:
        """Seconds of updates so far."""
        return self.optimizer.seconds

    @property
    def travel(self) -> Travel:
        """The exchange with other ranks in forward and backward passes so far."""
        return Travel()

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Lengths of the layers."""
        return tuple(layer.size for layer in self.layers)

    def backward(self, images: torch.Tensor, labels: torch.Tensor, on_loss: Callable[[], None] = lambda: None) -> float:
        """Put the gradient of a batch's mean loss, times the loss scale, into ``gradient``; return the loss.

        If a door sums gradients, it has replaced them by their mean over the workers. ``on_loss`` is called between
        forward and backward.
        """
        if self._adds_gradients:
            self._flat_gradient.zero_()
        loss, factor = cross_entropy(self.training_outputs(images), labels), self._loss_factor
        on_loss()
        (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self.loss = float(loss.detach())
        return self.loss

    def training_outputs(self, images: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs for a batch in training."""
        with _drawing if self._draws else contextlib.nullcontext():
            self._seed_layers_by(self.rank)
            outputs: torch.Tensor = self.module(images)
        return outputs

    def update(self) -> None:
        """Change the parameters by one step of the optimizer, with the mean gradient: unscale, clip, step."""
        settings, gradient = self._settings, self._flat_gradient
        if settings.loss_scale != 1:
            gradient.div_(settings.loss_scale)
        if settings.clip_norm is not None:
            # As torch.nn.utils.clip_grad_norm_, except for its 1e-6 in the divisor.
            norm = float(torch.linalg.vector_norm(gradient))
            if norm > settings.clip_norm:
                gradient.mul_(settings.clip_norm / norm)
        self._step(settings.learning_rate_at(self.iteration))

    def warm_up_update(self) -> None:
        """Let the optimizer take its first step, in which it allocates its vectors, without changing the model."""
        self._flat_gradient.zero_()
        self._step(0.0)
        for state in self._optimizer.state.values():
            for vector in filter(torch.is_tensor, state.values()):
                vector.zero_()

    def _step(self, learning_rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer_view.grad = self._flat_gradient
        self._optimizer.step()

    def _seed_layers_by(self, number: int | None) -> None:
        if number is not None:
            words = np.random.SeedSequence((self._settings.seed, number, self.iteration))
            # Not torch.manual_seed, which also looks for devices.
            torch.default_generator.manual_seed(int(words.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def count_in(self, sent: Sent) -> None:
        """Count what passes send in ``sent``. A replica sends nothing."""

    def collect(self, exchange: Exchange) -> None:
        """Gather the whole model on every rank; collective. A replica has the whole model already."""

    def buffers(self) -> Float32Array:
        """Return a copy of the model's buffers, such as BatchNorm's statistics, float32[m]."""
        parts = [buffer.detach().reshape(-1).to(torch.float32) for buffer in self.module.buffers()]
        return torch.cat(parts).numpy() if parts else np.empty(0, np.float32)

    def set_buffers(self, values: Float32Array) -> None:
        """Write values as :meth:`buffers` returns them; counters of the model get the nearest whole number."""
        offset, flat = 0, torch.from_numpy(values)
        for buffer in self.module.buffers():
            part = flat[offset : offset + buffer.numel()].view_as(buffer)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            offset += buffer.numel()

    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state`: tensors that share this replica's memory."""
        return {
            "parameters": self._flat_parameters,
            "buffers": list(self.module.buffers()),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state of :meth:`state`; the optimizer keeps its tensors."""
        self._flat_parameters.copy_(state["parameters"])
        for buffer, saved in zip(self.module.buffers(), state["buffers"], strict=True):
            buffer.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])

    def digest(self) -> str:
        """Return the SHA-256 of parameters and buffers, as hexadecimal digits."""
        digest = hashlib.sha256()
        for tensor in self.whole.parameters():
            digest.update(tensor.detach().numpy().data)
        digest.update(self.buffers().data)
        return digest.hexdigest()

    def outputs(self, samples: torch.Tensor) -> list[Float32Array]:
        """Return the outputs of every layer with weights, after its ReLU if that works in place."""
        kept: list[torch.Tensor] = []
        layers = [layer for layer in self.module.modules() if list(layer.parameters(recurse=False))]
        hooks = [layer.register_forward_hook(lambda _layer, _in, out: kept.append(out)) for layer in layers]
        try:
            with torch.no_grad():
                self.module(samples)
        finally:
            for hook in hooks:
                hook.remove()
        return [tensor.numpy().copy() for tensor in kept]


class ReplicaOptimizer(torch.optim.Optimizer):
    """A replica's update as one of torch's optimizers; its parameters are those whose gradients travel."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self.seconds = replica, 0.0
        super().__init__(list(replica.travelling.values()) or [replica._optimizer_view], {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the replica."""
        del closure
        started = time.perf_counter()
        self._replica.update()
        self.seconds += time.perf_counter() - started


class Watch:
    """Shows ``see`` a copy of a worker's gradient of every n-th iteration, as it was before it travelled."""

    def __init__(self, replica: Replica, every: int, see: Callable[[int, Float32Array], None]) -> None:
        self._replica, self._every, self._see, self._others = replica, every, see, replica.observe
        self._copy: Float32Array | None = None
        replica.observe = self._observe

    def after_iteration(self, done: int) -> None:
        """Show the gradient of an iteration, if it was its turn."""
        if self._copy is not None:
            self._see(done, self._copy)
            self._copy = None

    def _observe(self, start: int, values: Float32Array) -> None:
        self._others(start, values)
        if (self._replica.iteration + 1) % self._every == 0:
            if self._copy is None:
                self._copy = np.zeros_like(self._replica.gradient)
            self._copy[start : start + values.size] = values


def accuracy_of(module: nn.Module, dataset: Dataset) -> float:
    """Return the share of test labels that are the largest output, 0..1, of sequences over all their places.

    Layers that differ between training and use (dropout, BatchNorm) do as in use.
    """
    samples, labels = (torch.from_numpy(np.array(part)) for part in (dataset.test_images, dataset.test_labels))
    each = (PASS_SAMPLES, PASS_VALUES // samples[0].numel(), PASS_LABELS // labels[0].numel())
    step = max(1, min(each))
    module.eval()
    try:
        with torch.no_grad():
            hits = sum(
                int((module(samples[at : at + step]).argmax(-1) == labels[at : at + step]).sum())
                for at in range(0, len(labels), step)
            )
    finally:
        module.train()
    return hits / labels.numel()
