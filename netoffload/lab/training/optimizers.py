"""The optimizers, by name: torch's. Each works value by value, so one vector does as well as many tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
