"""HDC, and a replica: one model whose parameters, gradients and momentum are three flat buffers.

The exchange wants one contiguous float32 array and the update wants few long vector operations, so the tensors that
torch trains are views::

    parameters  |W1          |b1|W2       |b2| ... |W5|b5|    float32[1,149,010]
                  |            |                                param.data views it
    gradient    |W1          |b1|W2       |b2| ... |W5|b5|
                                                                param.grad views it: backward() writes what is sent

No copy is made in an iteration. The NumPy arrays and the torch tensors of a replica share their memory.

He initialisation (normal, mean 0, variance 2 / inputs; biases 0) is not a matter of taste here. With torch's default
(uniform, variance 1 / (3 inputs)) the gradients of HDC start below 2^-7, and the paper's 8-bit form has no bit for
such values: it decodes them to 0, and compressed training never leaves chance level. With He initialisation it
learns.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from netoffload.training.config import TrainSettings
from netoffload.training.data import CLASSES, FEATURES

Float32Array = npt.NDArray[np.float32]

HDC_WIDTHS: Final = (FEATURES, 500, 500, 500, 500, CLASSES)
"""INCEPTIONN, VII-A: five fully connected layers, hidden size 500."""


class LinearInPlace(torch.autograd.Function):
    """A fully connected layer whose backward pass writes the gradients of weight and bias where they are wanted.

    Autograd would make them in new memory (whose pages the kernel must clear) and then add them to the flat buffer: a
    quarter of HDC's time per batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        weight_gradient: torch.Tensor,
        bias_gradient: torch.Tensor,
    ) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        ctx.save_for_backward(inputs, weight)
        ctx.gradients = weight_gradient, bias_gradient
        return torch.addmm(bias, inputs, weight.t())

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None, None]:
        """Overwrite both gradients; return that of the inputs if anybody asks for it."""
        (outward,) = output_gradients
        inputs, weight = ctx.saved_tensors
        weight_gradient, bias_gradient = ctx.gradients
        torch.mm(outward.t(), inputs, out=weight_gradient)
        torch.sum(outward, 0, out=bias_gradient)
        return (outward.mm(weight) if ctx.needs_input_grad[0] else None), None, None, None, None


class FullyConnected(nn.Linear):
    """``nn.Linear`` that overwrites ``weight.grad`` and ``bias.grad``, which must be there, instead of adding."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        outputs: torch.Tensor = LinearInPlace.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, self.weight.grad, self.bias.grad
        )
        return outputs


def build_hdc(seed: int) -> nn.Sequential:
    """Return HDC with He initialisation; the same seed gives the same weights on every rank."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(HDC_WIDTHS):
        linear = FullyConnected(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])


class Replica:
    """A model over flat buffers, with the momentum SGD that changes it.

    Attributes:
        parameters: float32[n], what the workers must agree on bit for bit.
        gradient: float32[n], written by :meth:`backward`, summed in place by the exchange, read by :meth:`update`.
    """

    def __init__(self, settings: TrainSettings) -> None:
        """Build the model that ``settings`` names, with the weights of its seed."""
        self._settings = settings
        self._module = build_hdc(settings.seed)
        tensors = list(self._module.parameters())
        count = sum(tensor.numel() for tensor in tensors)
        self._flat_parameters = torch.empty(count)
        self._flat_gradient = torch.zeros(count)
        offset = 0
        for tensor in tensors:
            part = slice(offset, offset + tensor.numel())
            offset += tensor.numel()
            self._flat_parameters[part] = tensor.detach().reshape(-1)
            tensor.data = self._flat_parameters[part].view_as(tensor)
            tensor.grad = self._flat_gradient[part].view_as(tensor)
        # One fused pass over all parameters. The optimizer sees the sum of scaled gradients, not their average: its
        # momentum and weight decay are that much larger, its learning rate that much smaller.
        self._optimizer_view = nn.Parameter(self._flat_parameters)
        self._optimizer = torch.optim.SGD(
            [self._optimizer_view],
            momentum=settings.momentum,
            weight_decay=settings.weight_decay * settings.nodes * settings.loss_scale,
            fused=True,
        )
        self.parameters: Float32Array = self._flat_parameters.numpy()
        self.gradient: Float32Array = self._flat_gradient.numpy()

    def backward(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Put the gradient of a batch's mean loss, times the loss scale, into ``gradient``; return the loss."""
        loss = F.cross_entropy(self._module(images), labels)
        scale = self._settings.loss_scale
        (loss if scale == 1 else loss * scale).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def update(self, gradient_sum: Float32Array, iteration: int) -> None:
        """Change the parameters by one step of momentum SGD with weight decay, as ``torch.optim.SGD`` defines it.

        Args:
            gradient_sum: float32[n], the workers' scaled gradients added up; not changed.
            iteration: counted from 0; decides the learning rate.
        """
        total = self._settings.nodes * self._settings.loss_scale
        group = self._optimizer.param_groups[0]
        group["lr"] = self._settings.learning_rate_at(iteration) / total
        self._optimizer_view.grad = torch.from_numpy(gradient_sum)
        self._optimizer.step()

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the share of images, float32[n, 784], whose largest output is their label."""
        with torch.no_grad():
            hits = sum(
                int((self._module(images[at : at + 1000]).argmax(1) == labels[at : at + 1000]).sum())
                for at in range(0, len(labels), 1000)
            )
        return hits / len(labels)
