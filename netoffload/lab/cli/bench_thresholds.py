"""``netoffload bench thresholds``: finds the thresholds that ``train --exchange papers`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload.cli.app import console
from netoffload.lab.cli.bench_command import AsJson, run
from netoffload.lab.cli.data_options import Data, DataDir
from netoffload.lab.cli.figures import percent, table
from netoffload.lab.cli.training_options import LearningRate, Model

if TYPE_CHECKING:
    from netoffload.lab.bench.thresholds import Findings


def command(
    model: Model,
    data: Data = None,
    data_dir: DataDir = None,
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="Workers.")] = 4,
    iterations: Annotated[int, typer.Option(help="Batches per worker.")] = 64,
    learning_rate: LearningRate = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 1,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Try this threshold; repeat for several; default: 0.0001 to 0.2.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Append the result to this file of JSON lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train in this process with many thresholds for wgt, bgt and qgt, and say which is best.

    It needs no NIC, no link and no root: ranks are threads. The best threshold
    sends least among those within one point of the highest accuracy.

    Example: netoffload bench thresholds hdc --data mnist --data-dir DIR --learning-rate 0.05
    """
    from netoffload.lab.bench.thresholds import Thresholds
    from netoffload.lab.training.config import TrainSettings

    asked = TrainSettings(
        "inc",
        nodes=nodes,
        iterations=iterations,
        seed=seed,
        model=model,
        data=data,
        data_dir=str(data_dir) if data_dir else None,
        learning_rate=learning_rate,
    )
    run(Thresholds(asked, threshold or (), out), _print_table, as_json=as_json)


def _print_table(found: Findings) -> None:
    rows = table(None, ("method", "threshold", "accuracy %", "octets %", ""), ("method", ""))
    for trial in found.trials:
        shares = percent(trial.accuracy), percent(trial.efficiency, ".2f")
        rows.add_row(trial.method, f"{trial.threshold:g}", *shares, "best" if found.is_best(trial) else "")
    console.print(rows)
