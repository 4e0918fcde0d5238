"""The data sets by their names, the shapes of samples, and how a worker's samples are chosen, without torch.

``synthetic`` is noise of the shape that the model usually takes, or of any other: ``synthetic:side=64,classes=10``,
``synthetic:length=32``. It is for measuring communication: a model can only memorise its samples. Its name in a record
has the whole shape. ``text:length=32`` has shorter samples.
"""

import dataclasses
from typing import Final

from netoffload.config import check_choice
from netoffload.errors import UsageError

CLASSES: Final = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of images: ``channels`` planes of ``side`` x ``side`` values; each image is of one of ``classes``."""

    channels: int
    side: int
    classes: int = CLASSES

    @property
    def features(self) -> int:
        """Number of values of one image."""
        return self.channels * self.side * self.side

    def __str__(self) -> str:
        """Describe it."""
        return f"{self.side}x{self.side} {'grey' if self.channels == 1 else 'colour'} images"


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The shape of sequences: ``length`` numbers in 0..``classes`` - 1; the label of each number is the next one."""

    length: int
    classes: int

    @property
    def features(self) -> int:
        """Number of tokens of one sequence."""
        return self.length

    def __str__(self) -> str:
        """Describe it."""
        return "sequences of tokens"


SampleShape = Shape | Tokens

GREY_28: Final = Shape(1, 28)
COLOUR_32: Final = Shape(3, 32)
IMAGENET: Final = Shape(3, 224, 1000)
TEXT: Final = Tokens(128, 96)  # characters of the text corpus: printable ASCII and the line's end

SYNTHETIC: Final = "synthetic"
SAMPLES: Final = "samples"
LENGTH: Final = "length"
DIRICHLET: Final = "dirichlet:alpha="

ALPHA_MAX: Final = 1e9
"""All workers get equal shares long before; near the largest float the draws are no numbers."""

SHARINGS: Final = ("partitioned", "shared", f"{DIRICHLET}A")
"""Whether a worker has its own part of the training set, draws from all of it (Jiang and Agrawal, 3.1), or has a part
whose classes Dirichlet's distribution decides: the smaller alpha is, the more the workers' classes differ."""


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """A data set."""

    name: str
    shape: SampleShape
    folder_holds: str = ""  # what ``data_dir`` must hold; empty: the set needs no ``data_dir``
    samples: int = 0  # number of training samples of synthetic data; 0: a batch for each worker


DATASETS: Final = {
    spec.name: spec
    for spec in (
        DataSpec("digits", GREY_28),
        DataSpec("mnist", GREY_28, "its four IDX files"),
        DataSpec("fashion-mnist", GREY_28, "its four IDX files"),
        DataSpec("cifar10", COLOUR_32, "its .npz file or its python batches"),
        DataSpec("text", TEXT),
    )
}
"""The data sets by name; :mod:`netoffload.lab.training.data` reads them."""


def parse_data(text: str, usual: SampleShape) -> DataSpec:
    """Return the data set of a name; ``usual`` is the shape of synthetic samples unless the name says otherwise."""
    name, _, rest = text.partition(":")
    check_choice("data set", name, (*DATASETS, SYNTHETIC))
    if name == SYNTHETIC:
        values = _parameters(name, rest, dataclasses.asdict(usual) | {SAMPLES: 0})
        samples = values.pop(SAMPLES)
        shape = type(usual)(**values)
        return DataSpec(_whole_name(name, values | {SAMPLES: samples}), shape, samples=samples)
    known = DATASETS[name]
    defaults = {LENGTH: known.shape.features} if isinstance(known.shape, Tokens) else {}
    values = _parameters(name, rest, defaults)
    if values == defaults:
        return known
    shape = Tokens(values[LENGTH], known.shape.classes)
    return dataclasses.replace(known, name=_whole_name(name, values), shape=shape)


def _parameters(name: str, rest: str, values: dict[str, int]) -> dict[str, int]:
    """Return ``values``, replaced by those that ``rest`` names (such as ``side=64,classes=10``)."""
    found = dict(values)
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in values or not value.isdecimal() or int(value) < 1:
            takes = ", ".join(f"{known}=N" for known in values) or "no parameters"
            raise UsageError(f"{name} data of this model takes {takes}, not {item}")
        found[key] = int(value)
    return found


def _whole_name(name: str, values: dict[str, int]) -> str:
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in values.items() if value)


def parse_alpha(sharing: str) -> float | None:
    """Return alpha of a sharing by Dirichlet's distribution; None for another sharing."""
    if not sharing.startswith(DIRICHLET):
        check_choice("sharing", sharing, SHARINGS)
        return None
    try:
        alpha = float(sharing.removeprefix(DIRICHLET))
    except ValueError:
        alpha = 0.0
    if not 0 < alpha <= ALPHA_MAX:
        raise UsageError(
            f"sharing {sharing!r}: alpha must be a number above 0 and at most {ALPHA_MAX:g}, such as {DIRICHLET}0.5"
        )
    return alpha
