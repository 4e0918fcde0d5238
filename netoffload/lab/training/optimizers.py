"""The optimizers, torch's, and the schedules of the learning rate, by name: ``adam:beta2=0.99``, ``cosine:warmup=100``.

Each optimizer works value by value, so one vector does as well as many tensors. Iterations are counted from 0.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from netoffload.config import check_choice, parse_parameters
from netoffload.errors import UsageError

if TYPE_CHECKING:
    import torch

SHARES: Final = ("momentum", "beta1", "beta2", "alpha")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The base of all optimizers; ``has_fused``: torch can do a step in one pass over memory."""

    learning_rate: float = 0.001

    torch_name: ClassVar[str]
    has_fused: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 0 < self.learning_rate < float("inf"):
            raise UsageError(f"the learning rate {self.learning_rate} must be more than 0")
        for name, value in dataclasses.asdict(self).items():
            if name in SHARES and not 0 <= value < 1:
                raise UsageError(f"{name} is {value}: it must be in 0..1 (1 excluded)")
            if name == "weight_decay" and not 0 <= value < float("inf"):
                raise UsageError(f"weight_decay is {value}: it must not be negative")
            if name == "epsilon" and not 0 < value < float("inf"):
                raise UsageError(f"epsilon is {value}: it must be more than 0")

    @property
    def vectors(self) -> int:
        """Number of vectors as long as the parameters that it keeps."""
        return 1

    @property
    def options(self) -> dict[str, Any]:
        """torch's options without the learning rate."""
        raise NotImplementedError

    def make(self, parameters: Iterable[torch.Tensor], *, fused: bool = False) -> torch.optim.Optimizer:
        """Return torch's optimizer; ``fused``: it steps in one pass over memory, if torch can do that."""
        import torch

        kind = getattr(torch.optim, self.torch_name)
        options = self.options | ({"fused": True} if fused and self.has_fused else {})
        made: torch.optim.Optimizer = kind(parameters, lr=self.learning_rate, **options)
        return made


@dataclasses.dataclass(frozen=True)
class Sgd(Optimizer):
    """Momentum SGD with weight decay, as ``torch.optim.SGD`` defines it."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    torch_name = "SGD"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UsageError("Nesterov's momentum needs a momentum: sgd:momentum=0.9,nesterov=true")

    @property
    def vectors(self) -> int:
        """See :attr:`Optimizer.vectors`."""
        return int(self.momentum > 0)

    @property
    def options(self) -> dict[str, Any]:
        """See :attr:`Optimizer.options`."""
        return {"momentum": self.momentum, "weight_decay": self.weight_decay, "nesterov": self.nesterov}


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    torch_name = "Adam"

    @property
    def vectors(self) -> int:
        """See :attr:`Optimizer.vectors`."""
        return 2

    @property
    def options(self) -> dict[str, Any]:
        """See :attr:`Optimizer.options`."""
        return {"betas": (self.beta1, self.beta2), "eps": self.epsilon, "weight_decay": self.weight_decay}


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the weights themselves (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    torch_name = "AdamW"


@dataclasses.dataclass(frozen=True)
class RmsProp(Optimizer):
    """RMSProp (Tieleman and Hinton, 2012)."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0

    torch_name = "RMSprop"
    has_fused = False

    @property
    def vectors(self) -> int:
        """See :attr:`Optimizer.vectors`."""
        return 1 + (self.momentum > 0)

    @property
    def options(self) -> dict[str, Any]:
        """See :attr:`Optimizer.options`."""
        more = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {"alpha": self.alpha, "eps": self.epsilon, **more}


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011)."""

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    weight_decay: float = 0.0

    torch_name = "Adagrad"

    @property
    def options(self) -> dict[str, Any]:
        """See :attr:`Optimizer.options`."""
        return {"eps": self.epsilon, "weight_decay": self.weight_decay}


OPTIMIZERS: Final[dict[str, type[Optimizer]]] = {
    "sgd": Sgd,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RmsProp,
    "adagrad": Adagrad,
}
"""The optimizers by their names in ``--optimizer``; their fields are the parameters."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The base of all schedules, whose rate is constant after it has risen in ``warmup`` equal steps."""

    warmup: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("warmup", "iterations"):
            if getattr(self, name, 0) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must not be negative")

    def rate_at(self, first: float, iteration: int) -> float:
        """Return the learning rate of an iteration if it starts at ``first``."""
        rate = self._rate_at(first, iteration)
        return rate * (iteration + 1) / self.warmup if iteration < self.warmup else rate

    def for_run(self, iterations: int) -> Schedule:
        """Return the schedule of a run of that length."""
        is_open = getattr(self, "iterations", None) == 0
        return dataclasses.replace(self, iterations=iterations) if is_open else self  # type: ignore[call-arg]

    def _rate_at(self, first: float, iteration: int) -> float:
        del iteration
        return first


@dataclasses.dataclass(frozen=True)
class StepDecay(Schedule):
    """A learning rate that is divided by ``divisor`` every ``interval`` iterations."""

    divisor: float = 10.0
    interval: int = 1000

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.interval < 1:
            raise UsageError(f"learning_rate_interval is {self.interval}: it must be at least 1")
        if not 1 <= self.divisor < math.inf:
            raise UsageError(f"the learning rate's divisor is {self.divisor}: it must be at least 1")

    def _rate_at(self, first: float, iteration: int) -> float:
        return first / self.divisor ** (iteration // self.interval)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine down to ``last`` times the first rate (Loshchilov and Hutter, 2017).

    It ends after ``iterations``; 0: with the run.
    """

    iterations: int = 0
    last: float = 0.0

    def _rate_at(self, first: float, iteration: int) -> float:
        turn = math.pi * min(1.0, iteration / self.iterations)
        return first * (self.last + (1 - self.last) * (1 + math.cos(turn)) / 2)


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """A power of the share of ``iterations`` (0: the run's) that is left.

    With 0.5 it is the schedule of Wen et al. (TernGrad), 4.
    """

    power: float = 0.5
    iterations: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if not 0 <= self.power < math.inf:
            raise UsageError(f"power is {self.power}: it must not be negative")

    def _rate_at(self, first: float, iteration: int) -> float:
        return float(first * max(0.0, 1 - iteration / self.iterations) ** self.power)


SCHEDULES: Final[dict[str, type[Schedule]]] = {
    "constant": Schedule,
    "step": StepDecay,
    "cosine": Cosine,
    "polynomial": Polynomial,
}
"""The schedules by their names in ``--schedule``; their fields are the parameters."""


T = TypeVar("T")


def choose(what: str, kinds: Mapping[str, type[T]], text: str | None, own: T, **given: object) -> T:
    """Return the dataclass that ``text`` names.

    Args:
        text: a name, or ``name:parameter=value,...``. None: ``own``.
        own: the default; if ``text`` names its kind, its values are the defaults of the parameters.
        given: more values, by field; None: not given.
    """
    name, _, rest = (name_of(kinds, own) if text is None else text).partition(":")
    kind: Any = kinds[check_choice(what, name, tuple(kinds))]
    known = [field.name for field in dataclasses.fields(kind)]
    values = parse_parameters(name, rest, typing.get_type_hints(kind))
    values.update({key: value for key, value in given.items() if value is not None})
    if unknown := [key for key in values if key not in known]:
        raise UsageError(f"{name} has no parameter {unknown[0]!r}: it takes {', '.join(known) or 'none'}")
    chosen: T = dataclasses.replace(typing.cast(Any, own), **values) if type(own) is kind else kind(**values)
    return chosen


def name_of(kinds: Mapping[str, type[T]], value: T) -> str:
    """Return the name of a value's kind."""
    return next(name for name, kind in kinds.items() if kind is type(value))


def spelt(kinds: Mapping[str, type[T]], value: T, *, without: str = "") -> str:
    """Return the text that :func:`choose` reads as ``value``, with every parameter but ``without``."""
    fields = [field.name for field in dataclasses.fields(typing.cast(Any, value)) if field.name != without]
    values = {name: getattr(value, name) for name in fields}
    texts = [f"{name}={str(one).lower() if isinstance(one, bool) else one}" for name, one in values.items()]
    return name_of(kinds, value) + (f":{','.join(texts)}" if texts else "")
