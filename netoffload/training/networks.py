"""The networks: HDC of the INCEPTIONN paper and a small CNN, built from a seed alone.

``hdc``  five fully connected layers, hidden size 500 (INCEPTIONN, VII-A), for 28×28 grey images: 1,149,010 parameters
``cnn``  three convolutions of 3×3 with ReLU and 2×2 maximum pooling, two fully connected layers, for images of any
         number of channels: small enough to be trained by four workers on two cores

He initialisation (normal, mean 0, variance 2 / inputs; biases 0) is not a matter of taste here. With torch's default
(uniform, variance 1 / (3 inputs)) the gradients of HDC start below 2^-7, and the paper's 8-bit form has no bit for
such values: it decodes them to 0, and compressed training never leaves chance level. With He initialisation it
learns.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import torch
from torch import nn

from netoffload.training.data import CLASSES, FEATURES, Shape

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


CNN_CHANNELS: Final = (32, 64, 64)
CNN_HIDDEN: Final = 64


def build_cnn(seed: int, shape: Shape) -> nn.Sequential:
    """Return the small CNN for images of ``shape``, with He initialisation; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = [nn.Unflatten(1, (shape.channels, shape.side, shape.side))]
    side = shape.side
    for inputs, outputs in itertools.pairwise((shape.channels, *CNN_CHANNELS)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        side //= 2
    layers += [
        nn.Flatten(),
        nn.Linear(CNN_CHANNELS[-1] * side * side, CNN_HIDDEN),
        nn.ReLU(inplace=True),
        nn.Linear(CNN_HIDDEN, CLASSES),
    ]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def build(model: str, seed: int, shape: Shape) -> nn.Sequential:
    """Return the network that a run names, with the weights of its seed."""
    return build_hdc(seed) if model == "hdc" else build_cnn(seed, shape)
