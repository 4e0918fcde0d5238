"""A replica: one model whose parameters, gradients and optimizer's state are flat buffers.

A method needs one contiguous float32 array, and the update is fastest with few long vector operations. So the tensors
that torch trains are views::

    parameters  |W1          |b1|W2       |b2| ... |W5|b5|    float32[1,149,010]
                  |            |                                param.data views it
    gradient    |W1          |b1|W2       |b2| ... |W5|b5|
                                                                param.grad views it: backward() writes what is sent

An iteration makes no copy: the NumPy arrays and the torch tensors of a replica share memory. (The sizes are HDC's.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from netoffload.collectives import Exchange
from netoffload.compiled.arrays import Float32Array
from netoffload.lab.training.capture import Layer
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.layers import FullyConnected

PASS_SAMPLES: Final = 1000
PASS_VALUES: Final = 1000 * 3 * 32 * 32
PASS_LABELS: Final = 16_000
"""Most labels of one pass of an evaluation; the two limits above count its samples and its values."""


@dataclasses.dataclass(frozen=True)
class Travel:
    """Seconds: ``waited_s`` of waiting for data of other ranks, ``hidden_s`` in which it came during computing."""

    waited_s: float = 0.0
    hidden_s: float = 0.0


class Replica:
    """A model over flat buffers, with the optimizer that changes it.

    Attributes:
        parameters: float32[n]; the workers must agree on it bit for bit.
        gradient: float32[n], written by :meth:`backward`, summed by the method, read by :meth:`update`.
        layers: every weight and every bias, in their order in both buffers.
        loss: loss of the latest batch; None: there was none.
        parameter_count: number of floats of the whole model.
    """

    def __init__(self, settings: TrainSettings, module: nn.Module | None = None) -> None:
        """Take ``module``, or build the model that ``settings`` names with the weights of its seed."""
        self._settings = settings
        self._rank: int | None = None
        self._iteration = 0
        self._module = module or settings.model_spec.build(settings.seed, settings.sample_shape)
        # Only FullyConnected overwrites its gradients; torch's own layers add to what is there.
        self._adds_gradients = any(
            list(layer.parameters(recurse=False)) and not isinstance(layer, FullyConnected)
            for layer in self._module.modules()
        )
        self.loss: float | None = None
        named = dict(self._module.named_parameters())
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
        # The optimizer sees one parameter, and the sum of scaled gradients instead of their mean.
        self._optimizer_view = nn.Parameter(self._flat_parameters)
        self._total = settings.nodes * settings.loss_scale
        optimizer = settings.optimizer_spec
        self._optimizer = optimizer.make([self._optimizer_view], self._total, fused=True)
        self.parameters: Float32Array = self._flat_parameters.numpy()
        self.gradient: Float32Array = self._flat_gradient.numpy()

    @property
    def travel(self) -> Travel:
        """The exchange with other ranks in forward and backward passes so far."""
        return Travel()

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Lengths of the layers."""
        return tuple(layer.size for layer in self.layers)

    def watch_gradients(self, written: Callable[[int], None]) -> None:
        """Call ``written`` with the number of each layer when backward has written its gradient, in any order."""
        numbers = {id(tensor): number for number, tensor in enumerate(self._module.parameters())}

        def telling(layers: list[int]) -> Callable[..., None]:
            def tell(*_: object) -> None:
                for layer in layers:
                    written(layer)

            return tell

        for module in self._module.modules():
            tensors = list(module.parameters(recurse=False))
            if isinstance(module, FullyConnected):
                module.written = telling([numbers[id(tensor)] for tensor in tensors])
                continue
            for tensor in tensors:
                tell = telling([numbers[id(tensor)]])
                tensor.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]

    def backward(self, images: torch.Tensor, labels: torch.Tensor, on_loss: Callable[[], None] = lambda: None) -> float:
        """Put the gradient of a batch's mean loss, times the loss scale, into ``gradient``; return the loss.

        ``on_loss`` is called between forward and backward.
        """
        if self._adds_gradients:
            self._flat_gradient.zero_()
        loss, factor = self.loss_of(self.training_outputs(images), labels)
        self._iteration += 1
        on_loss()
        (loss if factor == 1 else loss * factor).backward()  # type: ignore[no-untyped-call]
        self.loss = float(loss.detach())
        return self.loss

    def training_outputs(self, images: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs for a batch in training."""
        self._seed_layers_by(self._rank)
        outputs: torch.Tensor = self._module(images)
        return outputs

    def loss_of(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the mean loss as a tensor, and the factor by which it is multiplied before backward."""
        return self._settings.model_spec.loss(outputs, labels), self._settings.loss_scale

    def update(self, gradient_sum: Float32Array, iteration: int) -> None:
        """Change the parameters by one step of the optimizer, with the mean gradient.

        Args:
            gradient_sum: float32[n], the sum of the workers' scaled gradients; only clipping changes it.
            iteration: counted from 0; decides the learning rate.
        """
        settings, gradient = self._settings, torch.from_numpy(gradient_sum)
        if settings.clip_norm is not None:
            # As torch.nn.utils.clip_grad_norm_, except for its 1e-6 in the divisor.
            norm = float(torch.linalg.vector_norm(gradient))
            if norm > settings.clip_norm * self._total:
                gradient.mul_(settings.clip_norm * self._total / norm)
        rate = settings.optimizer_spec.rate(settings.learning_rate_at(iteration), self._total)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer_view.grad = gradient
        self._optimizer.step()

    def warm_up_update(self, zeros: Float32Array) -> None:
        """Let the optimizer take its first step, in which it allocates its vectors, without changing the model.

        Args:
            zeros: float32[n], 0 everywhere.
        """
        self._optimizer.param_groups[0]["lr"] = 0.0
        self._optimizer_view.grad = torch.from_numpy(zeros)
        self._optimizer.step()
        for state in self._optimizer.state.values():
            for vector in filter(torch.is_tensor, state.values()):
                vector.zero_()

    def seed_layers(self, rank: int, iteration: int = 0) -> None:
        """Let the run's seed, this rank and the iteration decide what layers draw (dropout), from ``iteration`` on."""
        self._rank, self._iteration = rank, iteration

    def _seed_layers_by(self, number: int | None) -> None:
        if number is not None:
            words = np.random.SeedSequence((self._settings.seed, number, self._iteration))
            # Not torch.manual_seed, which also looks for devices.
            torch.default_generator.manual_seed(int(words.generate_state(1, np.uint64)[0] >> np.uint64(1)))

    def collect(self, exchange: Exchange) -> None:
        """Gather the whole model on every rank; collective. A replica has the whole model already."""

    def buffers(self) -> Float32Array:
        """Return a copy of the model's buffers, such as BatchNorm's statistics, float32[m]."""
        parts = [buffer.detach().reshape(-1).to(torch.float32) for buffer in self._module.buffers()]
        return torch.cat(parts).numpy() if parts else np.empty(0, np.float32)

    def set_buffers(self, values: Float32Array) -> None:
        """Write values as :meth:`buffers` returns them; counters of the model get the nearest whole number."""
        offset, flat = 0, torch.from_numpy(values)
        for buffer in self._module.buffers():
            part = flat[offset : offset + buffer.numel()].view_as(buffer)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            offset += buffer.numel()

    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`load_state`: tensors that share this replica's memory."""
        return {
            "parameters": self._flat_parameters,
            "buffers": list(self._module.buffers()),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state of :meth:`state`; the optimizer keeps its tensors."""
        self._flat_parameters.copy_(state["parameters"])
        for buffer, saved in zip(self._module.buffers(), state["buffers"], strict=True):
            buffer.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])

    def digest(self) -> str:
        """Return the SHA-256 of parameters and buffers, as hexadecimal digits."""
        digest = hashlib.sha256(self.parameters.data)
        digest.update(self.buffers().data)
        return digest.hexdigest()

    def outputs(self, samples: torch.Tensor) -> list[Float32Array]:
        """Return the outputs of every layer with weights, after its ReLU if that works in place."""
        kept: list[torch.Tensor] = []
        layers = [layer for layer in self._module.modules() if list(layer.parameters(recurse=False))]
        hooks = [layer.register_forward_hook(lambda _layer, _in, out: kept.append(out)) for layer in layers]
        try:
            with torch.no_grad():
                self._module(samples)
        finally:
            for hook in hooks:
                hook.remove()
        return [tensor.numpy().copy() for tensor in kept]

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Return :func:`accuracy_of` the model."""
        return accuracy_of(self._module, images, labels)


def accuracy_of(module: nn.Module, samples: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of labels that are the largest output, of sequences over all their places.

    Layers that differ between training and use (dropout, BatchNorm) do as in use. A pass takes no more samples than
    :data:`PASS_SAMPLES`, nor more values or labels than bound its memory.

    Args:
        module: model with outputs float32[n, classes] or float32[n, length, classes].
        samples: float32[n, features] or int64[n, length].
        labels: int64[n] or int64[n, length].
    """
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
