"""The layers that models have beside torch's own, and the initialisation of all models.

Compressed training needs He initialisation (normal, mean 0, variance 2 / inputs; biases 0). With torch's default
(uniform, variance 1 / (3 inputs)) the gradients of HDC start below 2^-7. The paper's 8-bit form decodes such values to
0, and compressed training never leaves chance level. With He initialisation it learns.

Networks over sequences take tokens, int64[batch, length], and return float32[batch, length, classes]. The output at a
place predicts the next token, and does not depend on later ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from netoffload.lab.training.model_spec import Shape, Tokens


class LinearInPlace(torch.autograd.Function):
    """A fully connected layer whose backward pass writes the gradients of weight and bias into given memory.

    Autograd would make them in new memory (whose pages the kernel must clear) and then add them to the flat buffer.
    That takes a quarter of HDC's time per batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        layer: FullyConnected,
    ) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        ctx.save_for_backward(inputs, weight)
        ctx.layer = layer
        return torch.addmm(bias, inputs, weight.t())

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        """Overwrite both gradients, and return the gradient of the inputs if autograd needs it.

        torch calls the hooks of weight and bias after this, although it has nothing to add to their gradients.
        """
        (outward,) = output_gradients
        inputs, weight = ctx.saved_tensors
        layer = ctx.layer
        torch.mm(outward.t(), inputs, out=layer.weight.grad)
        torch.sum(outward, 0, out=layer.bias.grad)
        return (outward.mm(weight) if ctx.needs_input_grad[0] else None), None, None, None


class FullyConnected(nn.Linear):
    """``nn.Linear`` that overwrites ``weight.grad`` and ``bias.grad``, if they exist, instead of adding to them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs · weightᵀ + bias, float32[batch, outputs]."""
        if self.weight.grad is None:  # as under DDP, whose hooks must see every gradient
            return super().forward(inputs)
        outputs: torch.Tensor = LinearInPlace.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, self
        )
        return outputs


class LocallyConnected(nn.Module):
    """A convolution of 3x3 whose weights differ at every place (Krizhevsky's cuda-convnet: ``local``).

    Attributes:
        weight: float32[places, outputs, 9 * inputs].
        bias: float32[outputs, places].
    """

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        """Take ``inputs`` planes of ``side`` x ``side``, padded with zeros; weights are not initialised."""
        super().__init__()
        self.side = side
        self.weight = nn.Parameter(torch.empty(side * side, outputs, 9 * inputs))
        self.bias = nn.Parameter(torch.empty(outputs, side * side))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float32[batch, outputs, side, side]."""
        patches = nn.functional.unfold(inputs, 3, padding=1)
        outputs: torch.Tensor = torch.einsum("bip,poi->bop", patches, self.weight) + self.bias
        return outputs.view(-1, len(self.bias), self.side, self.side)


class Residual(nn.Module):
    """ReLU of the sum of a body and its shortcut."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        """Take a body and a shortcut whose outputs have the same shape."""
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ReLU of the sum."""
        return nn.functional.relu(self.body(inputs) + self.shortcut(inputs), inplace=True)


class Subsample(nn.Module):
    """Every second row and column, and ``planes`` more planes of zeros."""

    def __init__(self, planes: int) -> None:
        """Put half of the new planes before the others, and half behind them."""
        super().__init__()
        self.padding = (0, 0, 0, 0, planes // 2, planes - planes // 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float32[batch, inputs + planes, half, half]."""
        return nn.functional.pad(inputs[:, :, ::2, ::2], self.padding)


class Branches(nn.ModuleList):
    """Branches with the same inputs, whose outputs are concatenated plane by plane."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__(branches)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return all their planes."""
        return torch.cat([branch(inputs) for branch in self], 1)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution without bias, which keeps the side except for its stride, and its batch normalisation."""
    padding = kernel // 2
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.BatchNorm2d(outputs)]


def as_images(shape: Shape) -> nn.Unflatten:
    """Return the layer that turns float32[batch, features] into float32[batch, channels, side, side]."""
    return nn.Unflatten(1, (shape.channels, shape.side, shape.side))


def draw_normal(tensor: torch.Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill a tensor from a normal distribution around 0; one on the meta device has nothing to fill."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, 0.0, deviation, generator)


def he_initialise(model: nn.Module, seed: int) -> None:
    """Draw the weights of every convolution and fully connected layer, in their order; set biases to 0."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | LocallyConnected):
            fan_in = layer.weight.shape[-1] if isinstance(layer, LocallyConnected) else layer.weight[0].numel()
            draw_normal(layer.weight, math.sqrt(2.0) / math.sqrt(fan_in), generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class CharacterLstm(nn.Module):
    """Layers of LSTM between an embedding and a fully connected layer; every sequence begins with a state of zeros."""

    def __init__(self, classes: int, units: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, units)
        self.recur = nn.LSTM(units, units, layers, batch_first=True)
        self.guess = nn.Linear(units, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the guesses, float32[batch, length, classes]."""
        guesses: torch.Tensor = self.guess(self.recur(self.embed(tokens))[0])
        return guesses


class Block(nn.Module):
    """A block of a transformer: attention to earlier places, then a layer of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_widening = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.widening_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """Return the stream, float32[batch, length, width], with what the block adds."""
        split = self.query_key_value(self.before_attention(stream)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(seen.transpose(1, 2).flatten(-2))
        widened: torch.Tensor = self.widening_out(functional.gelu(self.widen(self.before_widening(stream))))
        return stream + widened


class Transformer(nn.Module):
    """Blocks between an embedding of tokens and places and the same embedding of tokens."""

    def __init__(self, shape: Tokens, blocks: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.classes, width), nn.Embedding(shape.length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the guesses, float32[batch, length, classes]."""
        stream = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return functional.linear(self.last(self.blocks(stream)), self.tokens.weight)
