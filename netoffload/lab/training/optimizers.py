"""The optimizers, torch's, and the schedules of the learning rate, by name: ``adam:beta2=0.99``, ``cosine:warmup=100``.

Each optimizer works value by value, so one vector does as well as many tensors. Iterations are counted from 0.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from netoffload.config import check_choice, parse_parameters
from netoffload.errors import UsageError

if TYPE_CHECKING:
    import torch

Limit = tuple[Callable[[float], bool], str]

SHARE: Final[Limit] = (lambda value: 0 <= value < 1, "in 0..1 (1 excluded)")
POSITIVE: Final[Limit] = (lambda value: 0 < value < math.inf, "more than 0")
NOT_NEGATIVE: Final[Limit] = (lambda value: 0 <= value < math.inf, "0 or more")
AT_LEAST_1: Final[Limit] = (lambda value: 1 <= value < math.inf, "at least 1")
LIMITS: Final[Mapping[str, Limit]] = {
    **dict.fromkeys(("momentum", "beta1", "beta2", "alpha"), SHARE),
    **dict.fromkeys(("learning_rate", "epsilon"), POSITIVE),
    **dict.fromkeys(("weight_decay", "power", "last", "warmup", "iterations"), NOT_NEGATIVE),
    **dict.fromkeys(("interval", "divisor"), AT_LEAST_1),
}
"""The values that parameters of optimizers and schedules may have."""


@dataclasses.dataclass(frozen=True)
class Limited:
    """A dataclass whose fields obey :data:`LIMITS`."""

    def __post_init__(self) -> None:
        """Refuse other values."""
        for name, value in dataclasses.asdict(self).items():
            is_right, words = LIMITS.get(name, (lambda _: True, ""))
            if not is_right(value):
                raise UsageError(f"{name} is {value}: it must be {words}")


@dataclasses.dataclass(frozen=True)
class Optimizer(Limited):
    """The base of all optimizers, whose fields but the rate are torch's options."""

    learning_rate: float = 0.001

    torch_name: ClassVar[str]  # its class in ``torch.optim``
    memory_vectors: ClassVar[int] = 1  # as long as the parameters, that it keeps besides that of the momentum
    has_fused: ClassVar[bool] = True  # torch can do a step in one pass over memory

    @property
    def vectors(self) -> int:
        """Number of vectors as long as the parameters that it keeps."""
        return self.memory_vectors + (getattr(self, "momentum", 0) > 0)

    def make(self, parameters: Iterable[torch.Tensor], *, fused: bool = False) -> torch.optim.Optimizer:
        """Return torch's optimizer; ``fused``: it steps in one pass over memory, if torch can do that."""
        import torch

        options: dict[str, Any] = dataclasses.asdict(self)
        options["lr"] = options.pop("learning_rate")
        if "epsilon" in options:
            options["eps"] = options.pop("epsilon")
        if "beta1" in options:
            options["betas"] = options.pop("beta1"), options.pop("beta2")
        if fused and self.has_fused:
            options["fused"] = True
        made: torch.optim.Optimizer = getattr(torch.optim, self.torch_name)(parameters, **options)
        return made


@dataclasses.dataclass(frozen=True)
class Sgd(Optimizer):
    """Momentum SGD with weight decay, as ``torch.optim.SGD`` defines it."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    torch_name = "SGD"
    memory_vectors = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UsageError("Nesterov's momentum needs a momentum: sgd:momentum=0.9,nesterov=true")


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    torch_name = "Adam"
    memory_vectors = 2


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


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011)."""

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    weight_decay: float = 0.0

    torch_name = "Adagrad"


OPTIMIZERS: Final = {kind.torch_name.lower(): kind for kind in (Sgd, Adam, AdamW, RmsProp, Adagrad)}
"""The optimizers by their names in ``--optimizer``; their fields are the parameters."""


@dataclasses.dataclass(frozen=True)
class Schedule(Limited):
    """The base of all schedules, whose rate is constant after it has risen in ``warmup`` equal steps."""

    warmup: int = dataclasses.field(default=0, kw_only=True)

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

    def _rate_at(self, first: float, iteration: int) -> float:
        return first / self.divisor ** (iteration // self.interval)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine, over ``iterations``, down to ``last`` times the first rate (Loshchilov and Hutter, 2017)."""

    iterations: int = 0  # 0: the run's
    last: float = 0.0

    def _rate_at(self, first: float, iteration: int) -> float:
        turn = math.pi * min(1.0, iteration / self.iterations)
        return first * (self.last + (1 - self.last) * (1 + math.cos(turn)) / 2)


@dataclasses.dataclass(frozen=True)
class Polynomial(Schedule):
    """A power of the share of ``iterations`` that is left; 0.5 is that of Wen et al. (TernGrad), 4."""

    power: float = 0.5
    iterations: int = 0  # 0: the run's

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
