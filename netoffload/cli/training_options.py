"""The options of ``netoffload train`` and ``netoffload demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netoffload import config
from netoffload.cli.app import console

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Workers; wa adds an aggregator on a node of its own.")]
Rate = Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit, 2.5gbit.")]
LearningRate = Annotated[
    float | None, typer.Option(help="At the start. Default: the model's own (see --list), 0.01 for terngrad.")
]
LearningRateInterval = Annotated[
    int | None, typer.Option(help="Iterations after which it is divided by 5. Default: the model's own, 2000.")
]
Mtu = Annotated[int, typer.Option(help="MTU of every link, octets.")]
Seed = Annotated[int, typer.Option(help="Of weights, batches, and the digits' test set.")]
LossScale = Annotated[
    float, typer.Option(help="Power of two: scales gradients on the wire, so the bound shrinks by it.")
]
Baselines = Annotated[
    str, typer.Option(help="Uncompressed methods run direct (without NICs), through NICs (nic), or both.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Model = Annotated[
    str, typer.Argument(help="The model: hdc (INCEPTIONN's perceptron), or another of --list.", show_default=False)
]
Exchanges = Annotated[
    list[str] | None,
    typer.Option(
        "--exchange",
        help="inc+c (default), any other of --list with its parameters, or papers: one of each. May be repeated.",
        show_default=False,
    ),
]
ErrorFeedback = Annotated[
    bool, typer.Option("--error-feedback", help="Host-side compressors keep what they leave unsent for later.")
]
Offload = Annotated[
    config.Offload, typer.Option(help="Who compresses: the NICs, or (inline) the ranks, by --codec and --bound.")
]
CaptureFile = Annotated[
    Path | None, typer.Option(help="Keep gradients of worker 0 in this .npy file (at most 32).", show_default=False)
]


def _list_methods(asked: bool) -> None:
    if asked:
        from netoffload import compressors, methods
        from netoffload.training.models import MODELS

        known = compressors.registry
        text = "\n".join((methods.registry.__doc__ or "").splitlines()[2:])
        text += "\ncompressors: " + ", ".join((*known.names(), *known.ALIASES)) + "\n\n"
        text += "\n".join(f"model {model}" for model in MODELS.values())
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit


ShowList = Annotated[
    bool, typer.Option("--list", is_eager=True, callback=_list_methods, help="List methods and models, and stop.")
]
