"""What a training run is asked for; what it leaves open is the model's."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Final

from netoffload import methods
from netoffload.config import Offload, check_choice
from netoffload.errors import UsageError
from netoffload.methods.registry import LEARNING_RATE_MAX
from netoffload.results import decode_dataclass
from netoffload.training import models
from netoffload.training.model_spec import GREY_28, ModelSpec, Sgd, Shape, StepDecay

SHARINGS: Final = ("partitioned", "shared")
"""Whether a worker has its own part of the training set, or draws from all of it (Jiang and Agrawal, 3.1)."""


OFFLOADS: Final = (Offload.NIC.value, Offload.INLINE.value)
"""Who may compress a run's gradients. What is not to be compressed says its method."""


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """A data set: the shape of its images, and what ``data_dir`` must hold; empty: it needs none."""

    shape: Shape
    folder_holds: str = ""


DATASETS: Final = {
    "digits": DatasetSpec(GREY_28),
    "mnist": DatasetSpec(GREY_28, "its four IDX files"),
    "cifar10": DatasetSpec(Shape(3, 32), "its .npz file"),
}
"""By name; :mod:`netoffload.training.data` reads them."""

MAX_WORKERS: Final = 63
"""One node less than a testbed can have: the aggregator needs one too."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """One training run.

    Attributes:
        method: a name of :mod:`netoffload.methods.registry` with its parameters; ``--exchange`` on the command line.
        nodes: workers; an aggregator or a parameter server comes on top.
        iterations: batches per worker.
        seed: of weights, batches, compressors and the digits' test set.
        model: one of :data:`netoffload.training.models.MODELS`.
        data: one of :data:`DATASETS`.
        data_dir: folder or file of a data set that needs one.
        batch: samples per worker and iteration.
        learning_rate: at the start. None: the model's own, or the most that the method takes.
        learning_rate_divisor: the learning rate is divided by it once per interval. None: the model's own.
        learning_rate_interval: iterations. None: the model's own.
        momentum: None: the model's own.
        weight_decay: None: the model's own.
        loss_scale: a term of mixed-precision training. Gradients are multiplied by it before the method has them and
            divided after, so an error bound of 2^-k on the wire is one of 2^-k / loss_scale for the gradient; a power
            of two, so that it changes no other bit.
        eval_every: iterations from one accuracy of worker 0 to the next, outside the timed part; 0: at the end only.
        error_feedback: host-side compressors add what they left unsent to the next gradient.
        sharing: one of :data:`SHARINGS`.
        offload: who compresses what is tagged: the NICs, or (``inline``) the ranks by themselves.
    """

    method: str
    nodes: int = 4
    iterations: int = 200
    seed: int = 1
    model: str = "hdc"
    data: str = "digits"
    data_dir: str | None = None
    batch: int = 25
    learning_rate: float | None = None
    learning_rate_divisor: float | None = None
    learning_rate_interval: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    loss_scale: float = 1.0
    eval_every: int = 0
    error_feedback: bool = False
    sharing: str = "partitioned"
    offload: str = Offload.NIC.value

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: naming the field and what it accepts.
        """
        spec, model = self.spec, self.model_spec  # unknown names are refused first
        check_choice("data set", self.data, tuple(DATASETS))
        check_choice("sharing", self.sharing, SHARINGS)
        check_choice("offload", self.offload, OFFLOADS)
        if not 1 <= self.nodes <= MAX_WORKERS:
            raise UsageError(f"{self.nodes} workers: choose 1..{MAX_WORKERS}")
        counts = {"iterations": self.iterations, "batch": self.batch, "learning_rate_interval": self.schedule.interval}
        for name, count in counts.items():
            if count < 1:
                raise UsageError(f"{name} is {count}: it must be at least 1")
        for name in ("seed", "eval_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must not be negative")
        if not (self.optimizer.learning_rate > 0 and self.schedule.divisor >= 1):
            raise UsageError("the learning rate must be more than 0 and its divisor at least 1")
        if not (0 <= self.optimizer.momentum < 1 and self.optimizer.weight_decay >= 0):
            raise UsageError("momentum must be in 0..1 (1 excluded) and weight decay not negative")
        if self.loss_scale <= 0 or math.frexp(self.loss_scale)[0] != 0.5:
            raise UsageError(f"loss scale {self.loss_scale} is not a power of two")
        holds = DATASETS[self.data].folder_holds
        if holds and self.data_dir is None:
            raise UsageError(f"{self.data} needs --data-dir with {holds} (nothing is downloaded)")
        if not model.takes(self.image_shape):
            fitting = ", ".join(name for name, known in DATASETS.items() if model.takes(known.shape))
            others = ", ".join(name for name, known in models.MODELS.items() if known.takes(self.image_shape))
            raise UsageError(
                f"{self.model} takes {model.input_shape} images ({fitting}), not {self.data}: choose the model {others}"
            )
        if self.error_feedback and not spec.keeps_residual:
            raise UsageError(f"{self.method} keeps no residual: error feedback is for gathered and served payloads")

    @functools.cached_property
    def spec(self) -> methods.MethodSpec:
        """What ``method`` stands for."""
        return methods.parse(self.method, batch=self.batch, shared=self.sharing == "shared")

    @property
    def model_spec(self) -> ModelSpec:
        """What ``model`` stands for."""
        return models.get(self.model)

    @property
    def image_shape(self) -> Shape:
        """Shape of the data set's images."""
        return DATASETS[self.data].shape

    @property
    def ranks(self) -> int:
        """Number of ranks: the workers, then the aggregator or server if there is one."""
        return self.nodes + int(self.spec.has_server)

    @property
    def compressed(self) -> bool:
        """Whether gradients travel on tagged connections."""
        return self.spec.tagged

    @property
    def is_inline(self) -> bool:
        """Whether the ranks compress by themselves."""
        return self.compressed and self.offload == Offload.INLINE

    @functools.cached_property
    def optimizer(self) -> Sgd:
        """The optimizer, with the model's defaults; its learning rate is no more than the method takes."""
        own = self.model_spec.optimizer
        first = min(own.learning_rate, LEARNING_RATE_MAX.get(self.spec.short, own.learning_rate))
        return Sgd(
            first if self.learning_rate is None else self.learning_rate,
            own.momentum if self.momentum is None else self.momentum,
            own.weight_decay if self.weight_decay is None else self.weight_decay,
        )

    @functools.cached_property
    def schedule(self) -> StepDecay:
        """The learning rate's way down, with the model's defaults."""
        own = self.model_spec.schedule
        return StepDecay(
            own.divisor if self.learning_rate_divisor is None else self.learning_rate_divisor,
            own.interval if self.learning_rate_interval is None else self.learning_rate_interval,
        )

    def resolved(self) -> TrainSettings:
        """Return the same run with every default written out."""
        return dataclasses.replace(
            self,
            **dataclasses.asdict(self.optimizer),
            learning_rate_divisor=self.schedule.divisor,
            learning_rate_interval=self.schedule.interval,
        )

    def learning_rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        return self.schedule.rate_at(self.optimizer.learning_rate, iteration)


@dataclasses.dataclass(frozen=True)
class RankJob:
    """What the launcher hands to every rank, as a file: the run, and where its data is."""

    settings: TrainSettings
    dataset: str
    """Folder with the prepared data set (:func:`netoffload.training.data.save`)."""
    capture_every: int = 0
    """Iterations from one gradient that rank 0 keeps to the next (:mod:`netoffload.training.capture`); 0: never."""
    codec: str | None = None
    bound_k: int | None = None
    """What ranks that compress by themselves do it by."""

    def write(self, path: Path) -> None:
        """Write it where a rank will read it."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> RankJob:
        """Read what :meth:`write` wrote.

        Raises:
            UsageError: unreadable, or not such a file.
        """
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the run's configuration {path}: {error}") from error
        return decode_dataclass(cls, value, str(path))
