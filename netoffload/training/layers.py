"""A fully connected layer that writes its gradients where they are wanted, and the initialisation of all models.

He initialisation (normal, mean 0, variance 2 / inputs; biases 0) is not a matter of taste here. With torch's default
(uniform, variance 1 / (3 inputs)) the gradients of HDC start below 2^-7, and the paper's 8-bit form has no bit for
such values: it decodes them to 0, and compressed training never leaves chance level. With He initialisation it
learns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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
    """``nn.Linear`` that overwrites ``weight.grad`` and ``bias.grad`` where they are there, instead of adding."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        if self.weight.grad is None:  # as under DDP, which wants to hear of every gradient
            return super().forward(inputs)
        outputs: torch.Tensor = LinearInPlace.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, self.weight.grad, self.bias.grad
        )
        return outputs


def he_initialise(model: nn.Module, seed: int) -> None:
    """Draw the weights of every convolution and fully connected layer, in their order; set biases to 0."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
