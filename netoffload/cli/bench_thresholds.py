"""``netoffload bench thresholds``: the threshold of each threshold method that ``train --exchange papers`` takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

import netoffload
from netoffload import results
from netoffload.cli.app import add_columns, console
from netoffload.cli.bench import bench_app
from netoffload.cli.train import Data, DataDir, LearningRate, Model
from netoffload.cli.verify import shown_progress

if TYPE_CHECKING:
    from netoffload.training.config import TrainSettings
    from netoffload.training.search import Trial


@bench_app.command("thresholds")
def bench_thresholds(
    model: Model,
    data: Data = "digits",
    data_dir: DataDir = None,
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="Workers.")] = 4,
    iterations: Annotated[int, typer.Option(help="Batches per worker.")] = 64,
    learning_rate: LearningRate = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches.")] = 1,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Try this one; repeat for several; default: 0.0001 to 0.2.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Append the result to this file of JSON lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train in this process with many thresholds for wgt, bgt and qgt, and say which is best.

    No NIC, no link, no root: ranks are threads. Best is the threshold that
    sends least among those within one point of the highest accuracy.

    Example: netoffload bench thresholds hdc --data mnist --data-dir DIR --learning-rate 0.05
    """
    from netoffload.training import data as datasets
    from netoffload.training import search
    from netoffload.training.config import TrainSettings

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
    dataset, grid = datasets.load(asked), threshold or list(search.GRID)
    if out is not None:
        results.check_writable(out)
    trials: list[Trial] = []
    with shown_progress("thresholds", len(search.METHODS) * len(grid)) as show:

        def on_trial(trial: Trial) -> None:
            trials.append(trial)
            show(len(trials))

        search.search(asked, dataset, grid=grid, on_trial=on_trial)
    best = {method: search.best([one for one in trials if one.method == method]) for method in search.METHODS}
    report = _report(asked, trials, best)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(trials, set(best.values()))


def _report(asked: TrainSettings, trials: list[Trial], best: dict[str, Trial]) -> dict[str, Any]:
    asked_for = {key: value for key, value in asdict(asked.resolved()).items() if key not in ("method", "data_dir")}
    return {
        "configuration": asked_for,
        "best": {method: trial.threshold for method, trial in best.items()},
        "trials": [asdict(trial) for trial in trials],
        "netoffload": netoffload.__version__,
    }


def _print_table(trials: list[Trial], best: set[Trial]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    add_columns(table, ("method", "threshold", "accuracy %", "octets %", ""), ["method", ""])
    for trial in trials:
        table.add_row(
            *(trial.method, f"{trial.threshold:g}", f"{100 * trial.accuracy:.1f}", f"{100 * trial.efficiency:.2f}"),
            "best" if trial in best else "",
        )
    console.print(table)
