"""The options of ``netoffload train`` and ``netoffload demo``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from netoffload import config
from netoffload.cli.app import console
from netoffload.lab.bench.settings import DATA_DIR_HELP, DATA_HELP, LEARNING_RATE_HELP, MODEL_HELP, RATE_HELP

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Workers; wa adds an aggregator on a node of its own.")]
Rate = Annotated[str, typer.Option(help=RATE_HELP)]
LearningRate = Annotated[float | None, typer.Option(help=LEARNING_RATE_HELP)]
LearningRateInterval = Annotated[
    int | None,
    typer.Option(help="Iterations after which the learning rate is divided by 5. Default: the model's, 2000."),
]
Data = Annotated[str | None, typer.Option(help=DATA_HELP, show_default=False)]
DataDir = Annotated[Path | None, typer.Option(help=DATA_DIR_HELP)]
Sharing = Annotated[
    str,
    typer.Option(
        help="Training data: partitioned among the workers, shared by all of them, or dirichlet:alpha=0.5 (the "
        "smaller alpha is, the more the workers' classes differ)."
    ),
]
Mtu = Annotated[int, typer.Option(help="MTU of every link, octets.")]
Seed = Annotated[int, typer.Option(help="Seed of weights, batches, and the digits' test set.")]
Seeds = Annotated[
    str | None, typer.Option(help="Several seeds, such as 1,2,3: run each method with each.", show_default=False)
]
LossScale = Annotated[
    float, typer.Option(help="Power of two: multiplies gradients on the wire, and so divides the error.")
]
Baselines = Annotated[
    str, typer.Option(help="Uncompressed methods run direct (without NICs), through NICs (nic), or both.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Model = Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)]
Exchanges = Annotated[
    list[str] | None,
    typer.Option(
        "--exchange",
        help="inc+c (default), any other of --list with its parameters, or papers: one of each. May be repeated.",
        show_default=False,
    ),
]
ErrorFeedback = Annotated[
    bool, typer.Option("--error-feedback", help="Host-side compressors add what they left unsent to the next gradient.")
]
BucketMb = Annotated[
    float, typer.Option(help="Sum layers in buckets of up to this many MB during backward; 0: all at once, after it.")
]
Offload = Annotated[
    config.Offload, typer.Option(help="Who compresses: the NICs, or (inline) the ranks, by --codec and --bound.")
]


def _list_methods(asked: bool) -> None:
    if asked:
        from netoffload import compressors, methods
        from netoffload.lab.training.models import MODELS

        known = compressors.registry
        text = "\n".join((methods.registry.__doc__ or "").splitlines()[2:])
        text += "\ncompressors: " + ", ".join((*known.names(), *known.ALIASES)) + "\n\n"
        text += "\n".join(f"model {model}" for model in MODELS.values())
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit


ShowList = Annotated[
    bool, typer.Option("--list", is_eager=True, callback=_list_methods, help="List methods and models, and stop.")
]


@dataclasses.dataclass(frozen=True)
class LearningOptions:
    """How a run learns; the fields are those of :class:`~netoffload.lab.training.config.TrainSettings`."""

    learning_rate: LearningRate = None
    learning_rate_interval: LearningRateInterval = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="sgd, adam, adamw, rmsprop or adagrad, with parameters: sgd:momentum=0.9,weight_decay=1e-4. "
            "Default: the model's own.",
            show_default=False,
        ),
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Schedule of the learning rate: step:divisor=5,interval=2000, cosine, polynomial:power=0.5 or "
            "constant; each takes warmup=ITERATIONS. Default: the model's own.",
            show_default=False,
        ),
    ] = None
    clip_norm: Annotated[
        float | None, typer.Option(help="Shorten mean gradients to this norm.", show_default=False)
    ] = None
    loss_scale: LossScale = 1.0
    eval_every: Annotated[
        int,
        typer.Option(
            "--evaluate-every", "--eval-every", help="Iterations from one accuracy to the next; 0: only at the end."
        ),
    ] = 0
    stop_at_accuracy: Annotated[
        float | None, typer.Option(help="0..1: end the run when an accuracy reaches it.", show_default=False)
    ] = None
    parallel: Annotated[
        str,
        typer.Option(
            help="What a worker has: the whole model (data), a part of each layer (model), or a part of each layer "
            "behind the convolutions (hybrid)."
        ),
    ] = "data"
    activations: Annotated[
        str,
        typer.Option(
            help="Type of the activations that a split model exchanges: float32, 8bit-dynamic, 8bit-static, "
            "8bit-mantissa, or 8bit-linear with parameters."
        ),
    ] = "float32"
    sub_batches: Annotated[
        int, typer.Option(help="Exchange activations in this many pieces, each during the multiplication of another.")
    ] = 1


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What is kept of the runs."""

    out: Annotated[
        Path | None, typer.Option(help="Append the records to this file of JSON lines.", show_default=False)
    ] = None
    capture: Annotated[
        Path | None,
        typer.Option(
            help="Keep gradients of worker 0 in this .npy file (at most 32), and the place of each layer beside it.",
            show_default=False,
        ),
    ] = None
    capture_every: Annotated[int, typer.Option(help="Iterations from one kept gradient to the next.")] = 50
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep checkpoints in this folder, one folder per run.", show_default=False)
    ] = None
    checkpoint_every: Annotated[int, typer.Option(help="Iterations from one checkpoint to the next.")] = 100
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoints; the result is the same, bit for bit.")
    ] = False
    tensorboard: Annotated[
        Path | None, typer.Option(help="Keep scalars and histograms in this folder.", show_default=False)
    ] = None
