"""The settings of a training run. The model decides those that are left out."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from netoffload import compressors, methods
from netoffload.compressors import Compressor
from netoffload.compressors.eight_bit import EightBit
from netoffload.config import Offload, check_choice
from netoffload.errors import UsageError
from netoffload.lab.training import models
from netoffload.lab.training.data_spec import (
    DATASETS,
    SYNTHETIC,
    DataSpec,
    SampleShape,
    Tokens,
    parse_alpha,
    parse_data,
)
from netoffload.lab.training.models import ModelSpec
from netoffload.lab.training.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, Schedule, choose, spelt

if TYPE_CHECKING:
    from torch import nn

WORKERS_MAX: Final = 64  # most ranks of a run: the most nodes of a testbed
SEED_MAX: Final = 2**63 - 1  # the largest seed that torch and NumPy both take
FLOAT32: Final = "float32"  # name of the activations' type that is not compressed

LEARNING_RATE_MAX: Final = {"terngrad": 0.01}
"""Methods that need a smaller learning rate than models begin with. Ternary gradients are mostly noise, and with 0.1
HDC diverges on bright images. Wen et al. train on MNIST with 0.01 and momentum 0.9 (Fig. 3)."""

PAPERS: Final = (
    *("wa", "wa+c", "inc", "inc+c", "16b-T"),
    "terngrad:exempt=2",  # weights and biases of the last layer stay floats (Wen et al., 4.2)
    *("qsgd:rule=mn,norm=l2,bucket=0", "psgd", "rsgd", "pqasgd"),
    *("wgt", "bgt", "qgt"),
    *("8bit-dynamic", "8bit-static", "8bit-mantissa", "8bit-linear"),
)
"""One method of every kind in the five papers, with the parameters that they recommend."""


class Parallel(enum.StrEnum):
    """The part of the model that a worker has."""

    DATA = "data"
    MODEL = "model"
    HYBRID = "hybrid"


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """One training run. The model decides data, optimizer, schedule and their parameters where they are None.

    The help of ``netoffload train`` explains the fields, which have the names of its options.

    ``loss_scale`` is a term of mixed-precision training: gradients are multiplied by it before the method gets them and
    divided by it afterwards. So an error bound of 2^-k on the wire is 2^-k / loss_scale for the gradient. It is a power
    of two, so that it changes only exponents.
    """

    method: str  # of :mod:`netoffload.methods.registry`, with its parameters; ``--exchange`` on the command line
    nodes: int = 4
    iterations: int = 200
    seed: int = 1
    model: str = "hdc"
    data: str | None = None
    data_dir: str | None = None
    batch: int = 25
    learning_rate: float | None = None  # at the start; None: the model's own, or the largest that the method takes
    optimizer: str | None = None
    schedule: str | None = None
    learning_rate_divisor: float | None = None
    learning_rate_interval: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    loss_scale: float = 1.0
    eval_every: int = 0  # accuracies on the way are those of worker 0, outside the timed part
    stop_at_accuracy: float | None = None
    error_feedback: bool = False
    sharing: str = "partitioned"  # one of :data:`~netoffload.lab.training.data_spec.SHARINGS`
    offload: str = Offload.NIC.value
    bucket_mb: float = 0.0
    parallel: str = Parallel.DATA.value  # :mod:`netoffload.lab.training.parallel`
    activations: str = FLOAT32
    sub_batches: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        # Unknown names are refused first.
        spec, model, data, _ = self.spec, self.model_spec, self.data_spec, self.dirichlet_alpha
        check_choice("offload", self.offload, (Offload.NIC, Offload.INLINE))
        if not 1 <= self.nodes <= WORKERS_MAX:
            raise UsageError(f"{self.nodes} workers: choose 1..{WORKERS_MAX}")
        for name in ("iterations", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for name in ("seed", "eval_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: it must not be negative")
        if self.seed > SEED_MAX:
            raise UsageError(f"seed is {self.seed}: it must be at most {SEED_MAX}")
        self._check_learning()
        if self.loss_scale <= 0 or math.frexp(self.loss_scale)[0] != 0.5:
            raise UsageError(f"loss scale {self.loss_scale} is not a power of two")
        if data.folder_holds and self.data_dir is None:
            raise UsageError(f"{data.name} needs --data-dir with {data.folder_holds} (nothing is downloaded)")
        if self.data_dir is not None and not data.folder_holds:
            raise UsageError(f"--data {data.name} reads no folder: leave out --data-dir, or name a data set of files")
        if not model.takes(data.shape):
            fitting = ", ".join(name for name, known in DATASETS.items() if model.takes(known.shape)) or SYNTHETIC
            others = ", ".join(name for name, known in models.MODELS.items() if known.takes(data.shape))
            raise UsageError(
                f"{self.model} takes {model.wants} ({fitting}), not {data.name}: choose the model {others}"
            )
        spec.groups_of(self.nodes)
        if not 0 <= self.bucket_mb < math.inf or (self.bucket_mb and not spec.takes_buckets):
            raise UsageError(
                f"bucket_mb is {self.bucket_mb:g}: give 0, or more if {self.method} sums gradients and names no layers"
            )
        if self.error_feedback and not spec.keeps_residual:
            raise UsageError(f"{self.method} keeps no residual: error feedback is for gathered and served payloads")

        self._check_parallel()

    def _check_parallel(self) -> None:
        check_choice("parallel", self.parallel, tuple(Parallel))
        _ = self.activation_compressor
        if self.parallel == Parallel.DATA:
            if self.activations != FLOAT32 or self.sub_batches != 1:
                raise UsageError("--activations and --sub-batches need --parallel model or hybrid")
            return
        if self.parallel == Parallel.MODEL and self.method != "inc":
            raise UsageError(
                f"--parallel model exchanges no gradients, so {self.method} has nothing to do: leave it out"
            )
        if self.bucket_mb:
            raise UsageError("buckets need --parallel data: leave --bucket-mb out")
        if self.spec.has_server or not issubclass(self.spec.family.worker, methods.GradientReducer):
            raise UsageError(f"--parallel hybrid sums gradients between workers: use inc, not {self.method}")
        if self.clip_norm is not None:
            raise UsageError("no rank has all of a split model's gradient: leave --clip-norm out")
        if self.sub_batches < 1 or self.batch % self.sub_batches:
            raise UsageError(f"a batch of {self.batch} cannot be cut into {self.sub_batches} equal sub-batches")
        import torch

        with torch.device("meta"):
            self.first_fully_connected(self.model_spec.build(0, self.sample_shape))

    def first_fully_connected(self, module: nn.Module) -> int:
        """Return the index of a model's first fully connected layer, from which on the layers can be split."""
        from torch import nn

        name, layers = self.model, list(module.children()) if isinstance(module, nn.Sequential) else []
        first = next((place for place, layer in enumerate(layers) if isinstance(layer, nn.Linear)), len(layers))
        rest = layers[first:]
        by_value = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Dropout)
        is_sequence = isinstance(self.sample_shape, Tokens)
        if not rest or is_sequence or not all(isinstance(layer, by_value) for layer in rest):
            raise UsageError(f"{name} does not end with fully connected layers: use --parallel data")
        least = min(layer.out_features for layer in rest if isinstance(layer, nn.Linear))
        if least < self.nodes:
            raise UsageError(f"{name} has a layer of {least} outputs: {self.nodes} workers cannot split it")
        has_convolutions = any(list(layer.parameters()) for layer in layers[:first])
        if has_convolutions and self.parallel == Parallel.MODEL:
            raise UsageError(f"{name} has layers that are not fully connected: use --parallel hybrid")
        if not has_convolutions and self.parallel == Parallel.HYBRID:
            raise UsageError(f"{name} has only fully connected layers: use --parallel model")
        return first

    def _check_learning(self) -> None:
        _ = self.optimizer_spec, self.schedule_spec
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise UsageError(f"clip_norm is {self.clip_norm}: it must be more than 0")
        if self.stop_at_accuracy is not None:
            if not 0 < self.stop_at_accuracy <= 1:
                raise UsageError(f"stop_at_accuracy is {self.stop_at_accuracy}: it must be in 0..1, such as 0.97")
            if not self.eval_every:
                raise UsageError("to stop at an accuracy, measure it: --evaluate-every N")

    @functools.cached_property
    def spec(self) -> methods.MethodSpec:
        """The specification of ``method``."""
        return methods.parse(self.method, batch=self.batch, shared=self.sharing == "shared")

    @property
    def model_spec(self) -> ModelSpec:
        """The specification of ``model``."""
        return models.get(self.model)

    @functools.cached_property
    def data_spec(self) -> DataSpec:
        """The specification of ``data``."""
        model = self.model_spec
        return parse_data(self.data or model.data, model.usual_shape)

    @property
    def sample_shape(self) -> SampleShape:
        """Shape of the data set's samples."""
        return self.data_spec.shape

    @functools.cached_property
    def dirichlet_alpha(self) -> float | None:
        """Alpha of a sharing by Dirichlet's distribution: how alike the workers' classes are; None: another sharing."""
        return parse_alpha(self.sharing)

    @property
    def ranks(self) -> int:
        """Number of ranks: the workers, then aggregators or a server if there are any."""
        return self.nodes + self.spec.servers

    @functools.cached_property
    def activation_compressor(self) -> Compressor | None:
        """The compressor that ``activations`` names; None: float32."""
        if self.activations == FLOAT32:
            return None
        chosen = compressors.registry.parse(self.activations)
        if not isinstance(chosen, EightBit):
            raise UsageError(f"activations {self.activations!r}: choose {FLOAT32}, 8bit-dynamic or another 8-bit type")
        return chosen

    @property
    def compressed(self) -> bool:
        """Whether gradients travel on tagged connections."""
        return self.spec.tagged

    @property
    def is_inline(self) -> bool:
        """Whether the ranks compress by themselves."""
        return self.compressed and self.offload == Offload.INLINE

    @functools.cached_property
    def optimizer_spec(self) -> Optimizer:
        """The optimizer that ``optimizer`` names, with the model's defaults and a rate that the method takes."""
        own = self.model_spec.optimizer
        most = LEARNING_RATE_MAX.get(self.spec.short, own.learning_rate)
        own = dataclasses.replace(own, learning_rate=min(own.learning_rate, most))
        given = {name: getattr(self, name) for name in ("learning_rate", "momentum", "weight_decay")}
        return choose("optimizer", OPTIMIZERS, self.optimizer, own, **given)

    @functools.cached_property
    def schedule_spec(self) -> Schedule:
        """The schedule that ``schedule`` names, with the model's defaults."""
        given = {"divisor": self.learning_rate_divisor, "interval": self.learning_rate_interval}
        chosen = choose("schedule", SCHEDULES, self.schedule, self.model_spec.schedule, **given)
        return chosen.for_run(self.iterations)

    def resolved(self) -> TrainSettings:
        """Return the same run with every default written out; fields that optimizer or schedule lack stay None."""
        optimizer, schedule = self.optimizer_spec, self.schedule_spec
        return dataclasses.replace(
            self,
            data=self.data_spec.name,
            optimizer=spelt(OPTIMIZERS, optimizer, without="learning_rate"),
            schedule=spelt(SCHEDULES, schedule),
            learning_rate=optimizer.learning_rate,
            momentum=getattr(optimizer, "momentum", None),
            weight_decay=getattr(optimizer, "weight_decay", None),
            learning_rate_divisor=getattr(schedule, "divisor", None),
            learning_rate_interval=getattr(schedule, "interval", None),
        )

    def learning_rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        return self.schedule_spec.rate_at(self.optimizer_spec.learning_rate, iteration)


def expand(chosen: Sequence[str], thresholds: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names in ``chosen``, each once, with ``papers`` replaced by :data:`PAPERS`.

    ``thresholds`` has, by name, those of methods in ``papers`` that need one.
    """
    papers = [f"{name}:threshold={thresholds[name]:g}" if name in thresholds else name for name in PAPERS]
    return tuple(dict.fromkeys(name for one in chosen for name in (papers if one == "papers" else (one,))))


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """Where a run's checkpoints are (:mod:`netoffload.lab.training.checkpoint`)."""

    folder: str
    every: int  # iterations from one checkpoint to the next; there is one at the end as well
    resume: bool  # go on from the checkpoint in the folder; if false, the folder must have none
    run: dict[str, str]


@dataclasses.dataclass(frozen=True)
class RankJob:
    """The job that every rank gets as a file: the run, and the place of its data."""

    settings: TrainSettings
    dataset: str  # folder with the prepared data set (:func:`netoffload.lab.training.data.save`)
    capture_every: int = 0  # iterations from one gradient that rank 0 keeps to the next; 0: never
    codec: str | None = None
    bound_k: int | None = None  # error bound 2^-bound_k of ranks that compress by themselves; None: they do not
    checkpointing: Checkpointing | None = None
    tensorboard: str | None = None  # folder for this run's event file
