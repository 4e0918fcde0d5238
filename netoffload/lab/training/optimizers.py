"""The optimizers, by name: torch's, over one vector of all parameters.

Each works value by value, so one vector does as well as many tensors. It gets the *sum* of the workers' scaled
gradients, which is ``total`` times their mean, and steps as torch does with the mean. So a number that is added to a
gradient or compared with one is multiplied by ``total``. If the step grows with the gradient, the learning rate is
divided by ``total``. If ``total`` is a power of two, the result has the same bits as with the mean.
"""

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
    """The base of all optimizers.

    Attributes:
        learning_rate: learning rate at the start.
        torch_name: name in ``torch.optim``.
        has_fused: whether torch can do a step in one pass over memory.
    """

    learning_rate: float = 0.001

    torch_name: ClassVar[str]
    has_fused: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: naming the value and what it accepts.
        """
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

    def options(self, total: float) -> dict[str, Any]:
        """Return torch's options without the learning rate, if gradients are ``total`` times too large."""
        raise NotImplementedError

    def rate(self, learning_rate: float, total: float) -> float:
        """Return torch's learning rate if gradients are ``total`` times too large."""
        del total
        return learning_rate

    def make(
        self, parameters: Iterable[torch.Tensor], total: float = 1.0, *, fused: bool = False
    ) -> torch.optim.Optimizer:
        """Return torch's optimizer.

        Args:
            parameters: the parameters that it changes.
            total: factor by which the gradients are too large.
            fused: step in one pass over memory, if torch can do that.
        """
        import torch

        kind = getattr(torch.optim, self.torch_name)
        options = self.options(total) | ({"fused": True} if fused and self.has_fused else {})
        made: torch.optim.Optimizer = kind(parameters, lr=self.rate(self.learning_rate, total), **options)
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
        """Refuse what cannot be.

        Raises:
            UsageError: naming the value and what it accepts.
        """
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UsageError("Nesterov's momentum needs a momentum: sgd:momentum=0.9,nesterov=true")

    @property
    def vectors(self) -> int:
        """See :attr:`Optimizer.vectors`."""
        return int(self.momentum > 0)

    def options(self, total: float) -> dict[str, Any]:
        """See :meth:`Optimizer.options`."""
        return {"momentum": self.momentum, "weight_decay": self.weight_decay * total, "nesterov": self.nesterov}

    def rate(self, learning_rate: float, total: float) -> float:
        """See :meth:`Optimizer.rate`: momentum and step are ``total`` times too large."""
        return learning_rate / total


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

    def options(self, total: float) -> dict[str, Any]:
        """See :meth:`Optimizer.options`."""
        betas = (self.beta1, self.beta2)
        return {"betas": betas, "eps": self.epsilon * total, "weight_decay": self.weight_decay * total}


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the weights themselves (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    torch_name = "AdamW"

    def options(self, total: float) -> dict[str, Any]:
        """See :meth:`Optimizer.options`."""
        return super().options(total) | {"weight_decay": self.weight_decay}


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

    def options(self, total: float) -> dict[str, Any]:
        """See :meth:`Optimizer.options`."""
        added = {"eps": self.epsilon * total, "weight_decay": self.weight_decay * total}
        return {"alpha": self.alpha, "momentum": self.momentum, **added}


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011)."""

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    weight_decay: float = 0.0

    torch_name = "Adagrad"

    def options(self, total: float) -> dict[str, Any]:
        """See :meth:`Optimizer.options`."""
        return {"eps": self.epsilon * total, "weight_decay": self.weight_decay * total}


OPTIMIZERS: Final[dict[str, type[Optimizer]]] = {
    "sgd": Sgd,
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RmsProp,
    "adagrad": Adagrad,
}
"""The optimizers by their names in ``--optimizer``; their fields are the parameters."""
