"""A small GPT (Radford et al., 2019) of characters: four blocks of 128 values with four heads.

Normalisation comes before each part of a block. The embedding is also the weight of the output.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import TEXT, ModelSpec, Sgd, StepDecay, Tokens

if TYPE_CHECKING:
    from torch import nn

BLOCKS: Final = 4
WIDTH: Final = 128
HEADS: Final = 4
DEVIATION: Final = 0.02


def build_gpt(seed: int, shape: Tokens) -> nn.Module:
    """Return the GPT with the weights of a seed: 822,016 parameters for 128 of 96 characters."""
    import torch
    from torch import nn

    from netoffload.lab.training.layers import Transformer, draw_normal

    model = Transformer(shape, BLOCKS, WIDTH, HEADS)
    generator = torch.Generator().manual_seed(seed)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            # The more blocks add to the residual stream, the smaller their last weights are drawn.
            draw_normal(layer.weight, DEVIATION / (math.sqrt(2 * BLOCKS) if name.endswith("out") else 1), generator)
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return model


SPEC: Final = ModelSpec(
    name="gpt",
    summary="a small GPT",
    build=build_gpt,
    usual_shape=TEXT,
    data="text",
    weight_uses=128,
    optimizer=Sgd(learning_rate=0.02, momentum=0.9, weight_decay=0.0),
    schedule=StepDecay(divisor=2.0, interval=5000),
)
