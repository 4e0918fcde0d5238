"""What a model declares, and all that it declares it with; a module of :mod:`netoffload.training.models` holds each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from netoffload.training.optimizers import Adam, Optimizer, RmsProp, Sgd
from netoffload.training.schedules import Polynomial, Schedule, StepDecay

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "CLASSES",
    "COLOUR_32",
    "GREY_28",
    "IMAGENET",
    "TEXT",
    "Adam",
    "ModelSpec",
    "Polynomial",
    "PrintedSize",
    "RmsProp",
    "SampleShape",
    "Schedule",
    "Sgd",
    "Shape",
    "StepDecay",
    "Tokens",
    "cross_entropy",
]

CLASSES: Final = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one image of a data set is: ``channels`` planes of ``side`` x ``side`` values, of one of ``classes``."""

    channels: int
    side: int
    classes: int = CLASSES

    @property
    def features(self) -> int:
        """Values of one image."""
        return self.channels * self.side * self.side

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.side}x{self.side} {'grey' if self.channels == 1 else 'colour'} images"


@dataclasses.dataclass(frozen=True)
class Tokens:
    """What one sequence of a data set is: ``length`` numbers in 0..``classes`` - 1; the label of each is the next."""

    length: int
    classes: int

    @property
    def features(self) -> int:
        """Numbers of one sequence."""
        return self.length

    def __str__(self) -> str:
        """Say it in words."""
        return "sequences of tokens"


SampleShape = Shape | Tokens

GREY_28: Final = Shape(1, 28)
COLOUR_32: Final = Shape(3, 32)
IMAGENET: Final = Shape(3, 224, 1000)
TEXT: Final = Tokens(128, 96)
"""Of the text corpus: printable ASCII and the line's end."""


@dataclasses.dataclass(frozen=True)
class PrintedSize:
    """The size that a paper prints for a model: octets, and where."""

    octets: int
    place: str

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.octets / 1e6:g} MB in {self.place}"


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of outputs, float32[batch, classes], and labels, int64[batch].

    Of sequences, with a dimension for the place behind ``batch``, it is the mean over all places.
    """
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model and how it is trained unless a run says otherwise.

    Attributes:
        name: on the command line.
        summary: a few words for lists.
        build: seed and shape of a sample in, the network with that seed's weights out: the same on every rank. On
            torch's meta device it has no weights.
        optimizer: its defaults.
        schedule: of the learning rate.
        input_shape: the only shape that it takes; None: images of any, or sequences of any.
        usual_shape: what its paper trains it on, and what synthetic data has unless told otherwise.
        smallest_side: of the images that it takes.
        data: the data set of a run that names none.
        weight_uses: multiplications by a weight per usual sample, on average over the weights, or more.
        printed: the size in its paper, if one prints it.
        loss: outputs and labels in, the mean loss of a batch out.
        thresholds: by method, what ``netoffload bench thresholds`` finds best.
    """

    name: str
    summary: str
    build: Callable[[int, Any], nn.Module]
    optimizer: Optimizer
    schedule: Schedule
    input_shape: SampleShape | None = None
    usual_shape: SampleShape = GREY_28
    smallest_side: int = 1
    data: str = "digits"
    weight_uses: int = 1
    printed: PrintedSize | None = None
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = cross_entropy
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        """Say in a line what it is."""
        printed = f"; {self.printed}" if self.printed else ""
        rate = f"{type(self.optimizer).__name__}, learning rate {self.optimizer.learning_rate:g}"
        return f"{self.name}: {self.summary}; {rate}; trains on {self.data}{printed}"

    def takes(self, shape: SampleShape) -> bool:
        """Whether it can be built for such samples."""
        if self.input_shape is not None:
            return shape == self.input_shape
        return (
            type(shape) is type(self.usual_shape) and getattr(shape, "side", self.smallest_side) >= self.smallest_side
        )

    @property
    def wants(self) -> str:
        """The samples that it takes, in words."""
        if self.input_shape is not None or isinstance(self.usual_shape, Tokens):
            return str(self.input_shape or self.usual_shape)
        return f"images of {self.smallest_side}x{self.smallest_side} or more"

    def layer_sizes(self, shape: SampleShape) -> tuple[int, ...]:
        """Return the length of every weight and every bias, in their order, without making them."""
        import torch

        with torch.device("meta"):
            return tuple(tensor.numel() for tensor in self.build(0, shape).parameters())
