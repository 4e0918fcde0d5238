"""What a training run is asked for; the defaults are INCEPTIONN's Table I for HDC."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Final

from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.results import decode_dataclass
from netoffload.methods import registry as systems

LEARNING_RATES: Final = {"hdc": 0.1, "cnn": 0.02}
"""At the start, by model. INCEPTIONN trains HDC with 0.1, with which the CNN diverges after a few steps."""

SYSTEM_LEARNING_RATES: Final = {"terngrad": 0.01}
"""At the start at most, by system. Ternary gradients are noise for the most part, and with 0.1 HDC diverges on bright
images; Wen et al. train on MNIST with 0.01 and this momentum (Fig. 3)."""

MODELS: Final = tuple(LEARNING_RATES)
DATASETS: Final = ("digits", "mnist", "cifar10")
SHARINGS: Final = ("partitioned", "shared")
"""Whether a worker has its own part of the training set, or draws from all of it (Jiang and Agrawal, 3.1)."""
NEED_A_FOLDER: Final = {"mnist": "its four IDX files", "cifar10": "its .npz file"}
GREY: Final = ("digits", "mnist")
"""Data sets of 28x28 grey images, HDC's input."""

MAX_WORKERS: Final = 63
"""One node less than a testbed can have: the aggregator needs one too."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """One training run.

    ``exchange`` is a name of :mod:`netoffload.methods.registry` with its parameters. ``nodes`` is the number of
    workers; an aggregator or a parameter server comes on top. ``error_feedback`` lets host-side compressors add what
    they left unsent to the next gradient. ``sharing`` says whose the training data is: :data:`SHARINGS`.
    ``loss_scale`` is the term of mixed-precision training: gradients are multiplied by it before they are exchanged
    and divided after, so that an error bound of 2^-k on the wire is one of 2^-k / loss_scale for the gradient; a power
    of two, so that it changes no other bit. ``learning_rate`` None is the model's own of :data:`LEARNING_RATES`, or
    that of :data:`SYSTEM_LEARNING_RATES` if it is less. ``eval_every`` iterations
    worker 0 measures the accuracy, outside the timed part; 0 means at the end only.
    """

    exchange: str
    nodes: int = 4
    iterations: int = 200
    seed: int = 1
    model: str = "hdc"
    data: str = "digits"
    data_dir: str | None = None
    batch: int = 25
    learning_rate: float | None = None
    learning_rate_divisor: float = 5.0
    learning_rate_interval: int = 2000
    momentum: float = 0.9
    weight_decay: float = 5e-5
    loss_scale: float = 1.0
    eval_every: int = 0
    error_feedback: bool = False
    sharing: str = "partitioned"

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: naming the field and what it accepts.
        """
        system = self.system  # an unknown exchange is refused first
        check_choice("model", self.model, MODELS)
        check_choice("data set", self.data, DATASETS)
        check_choice("sharing", self.sharing, SHARINGS)
        if not 1 <= self.nodes <= MAX_WORKERS:
            raise UsageError(f"{self.nodes} workers: choose 1..{MAX_WORKERS}")
        for name in ("iterations", "batch", "learning_rate_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("seed", "eval_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must not be negative")
        if not (self.first_learning_rate > 0 and self.learning_rate_divisor >= 1):
            raise UsageError("the learning rate must be more than 0 and its divisor at least 1")
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise UsageError("momentum must be in 0..1 (1 excluded) and weight decay not negative")
        if self.loss_scale <= 0 or math.frexp(self.loss_scale)[0] != 0.5:
            raise UsageError(f"loss scale {self.loss_scale} is not a power of two")
        if self.data in NEED_A_FOLDER and self.data_dir is None:
            raise UsageError(f"{self.data} needs --data-dir with {NEED_A_FOLDER[self.data]} (nothing is downloaded)")
        if self.model == "hdc" and self.data not in GREY:
            raise UsageError(f"hdc takes 28x28 grey images ({', '.join(GREY)}), not {self.data}: choose the model cnn")
        if self.error_feedback and not system.keeps_residual:
            raise UsageError(f"{self.exchange} keeps no residual: error feedback is for gathered and served payloads")

    @functools.cached_property
    def system(self) -> systems.System:
        """What ``exchange`` stands for."""
        return systems.parse(self.exchange, batch=self.batch, shared=self.sharing == "shared")

    @property
    def ranks(self) -> int:
        """MPI ranks: the workers, then the aggregator or server if there is one."""
        return self.nodes + int(self.system.has_server)

    @property
    def compressed(self) -> bool:
        """Whether gradients travel on tagged connections."""
        return self.system.tagged

    @property
    def first_learning_rate(self) -> float:
        """Learning rate at the start: as asked for, else the model's own, or less where the system wants less."""
        if self.learning_rate is not None:
            return self.learning_rate
        own = LEARNING_RATES[self.model]
        return min(own, SYSTEM_LEARNING_RATES.get(self.system.family, own))

    def learning_rate_at(self, iteration: int) -> float:
        """Learning rate of an iteration, counted from 0: divided once per interval."""
        steps = iteration // self.learning_rate_interval
        return self.first_learning_rate / self.learning_rate_divisor**steps


@dataclasses.dataclass(frozen=True)
class RankJob:
    """What the launcher hands to every rank, as a file: the run, and where its data is."""

    settings: TrainSettings
    dataset: str
    """Folder with the prepared data set (:func:`netoffload.training.data.save`)."""
    capture_every: int = 0
    """Rank 0 keeps its gradient every so many iterations (:mod:`netoffload.training.capture`); 0: never."""

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
