"""What a model declares; a module of :mod:`netoffload.training.models` holds each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from torch import nn

CLASSES: Final = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one image of a data set is: ``channels`` planes of ``side`` x ``side`` values."""

    channels: int
    side: int

    @property
    def features(self) -> int:
        """Values of one image."""
        return self.channels * self.side * self.side

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.side}x{self.side} {'grey' if self.channels == 1 else 'colour'}"


GREY_28: Final = Shape(1, 28)


@dataclasses.dataclass(frozen=True)
class PrintedSize:
    """The size that a paper prints for a model: octets, and where."""

    octets: int
    place: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.octets / 1e6:g} MB in {self.place}"


@dataclasses.dataclass(frozen=True)
class Sgd:
    """Momentum SGD with weight decay, as ``torch.optim.SGD`` defines it; the learning rate is that at the start."""

    learning_rate: float
    momentum: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class StepDecay:
    """A learning rate that is divided by ``divisor`` every ``interval`` iterations."""

    divisor: float
    interval: int

    def rate_at(self, first: float, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0, if it starts at ``first``."""
        return first / self.divisor ** (iteration // self.interval)


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of outputs, float32[batch, classes], and labels, int64[batch]."""
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model and how it is trained unless a run says otherwise.

    Attributes:
        name: on the command line.
        summary: a few words for lists.
        build: seed and shape of an image in, the network with that seed's weights out: the same on every rank.
        optimizer: its defaults.
        schedule: of the learning rate.
        input_shape: the only shape of images that it takes; None: any.
        printed: the size in its paper, if one prints it.
        loss: outputs and labels in, the mean loss of a batch out.
        thresholds: by method, what ``netoffload bench thresholds`` finds best.
    """

    name: str
    summary: str
    build: Callable[[int, Shape], nn.Module]
    optimizer: Sgd
    schedule: StepDecay
    input_shape: Shape | None = None
    printed: PrintedSize | None = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Say in a line what it is."""
        printed = f"; {self.printed}" if self.printed else ""
        return f"{self.name}: {self.summary}; learning rate {self.optimizer.learning_rate:g}{printed}"

    def takes(self, shape: Shape) -> bool:
        """Whether it can be built for such images."""
        return self.input_shape in (None, shape)

    def layer_sizes(self, shape: Shape) -> tuple[int, ...]:
        """Return the length of every weight and every bias, in their order."""
        return tuple(tensor.numel() for tensor in self.build(0, shape).parameters())
