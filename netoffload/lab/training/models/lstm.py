"""Five layers of LSTM with 800 units each (Jiang and Agrawal, 5), as a model of characters.

The paper trains it on the speech of AN4. Here an embedding replaces the sound's features, and a fully connected layer
predicts the next character.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from netoffload.lab.training.model_spec import TEXT, ModelSpec, Sgd, StepDecay, Tokens

if TYPE_CHECKING:
    from torch import nn

LAYERS: Final = 5
UNITS: Final = 800


def build_lstm(seed: int, shape: Tokens) -> nn.Module:
    """Return the LSTM with the weights of a seed: 25,785,696 parameters for 96 characters."""
    import torch

    from netoffload.lab.training.layers import CharacterLstm

    model = CharacterLstm(shape.classes, UNITS, LAYERS)
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(UNITS)  # as torch initialises an LSTM
    for tensor in model.parameters():
        if not tensor.is_meta:
            torch.nn.init.uniform_(tensor, -bound, bound, generator)
    return model


SPEC: Final = ModelSpec(
    name="lstm",
    summary="five layers of LSTM with 800 units",
    build=build_lstm,
    usual_shape=TEXT,
    data="text",
    weight_uses=128,
    optimizer=Sgd(learning_rate=0.1, momentum=0.9, weight_decay=0.0),
    schedule=StepDecay(divisor=2.0, interval=5000),
)
