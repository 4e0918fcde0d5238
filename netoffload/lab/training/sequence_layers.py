"""Networks over sequences of tokens, int64[batch, length] in, float32[batch, length, classes] out.

The output at a place predicts the next token, and does not depend on later ones.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from netoffload.lab.training.model_spec import Tokens


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
