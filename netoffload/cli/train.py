"""``netoffload train``: training over emulated NICs, measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, told_anyway
from netoffload.cli.data_options import Data, DataDir, Sharing
from netoffload.cli.nic_parameters import shows_nic_options
from netoffload.cli.training_options import (
    AsJson,
    Baselines,
    CaptureFile,
    ErrorFeedback,
    Exchanges,
    LearningRate,
    LearningRateInterval,
    LossScale,
    Model,
    Mtu,
    Nodes,
    Offload,
    Rate,
    Seed,
    ShowList,
)
from netoffload.cli.training_runs import Found, capture_of, run_series, tell, testbed_settings
from netoffload.errors import UsageError
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.training.config import TrainSettings


@app.command()
@shows_nic_options
def train(
    model: Model,
    nic: NicSettings,
    exchange: Exchanges = None,
    nodes: Nodes = 4,
    rate: Rate = "1gbit",
    mtu: Mtu = 1500,
    iterations: Annotated[int, typer.Option(help="Batches per worker.")] = 200,
    seed: Seed = 1,
    data: Data = None,
    data_dir: DataDir = None,
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")] = 25,
    learning_rate: LearningRate = None,
    learning_rate_interval: LearningRateInterval = None,
    loss_scale: LossScale = 1.0,
    error_feedback: ErrorFeedback = False,
    sharing: Sharing = "partitioned",
    offload: Offload = config.Offload.NIC,
    eval_every: Annotated[int, typer.Option(help="Measure the accuracy every so many iterations; 0: at the end.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the records to this file of JSON lines.")] = None,
    capture: CaptureFile = None,
    capture_every: Annotated[int, typer.Option(help="Keep that of every so many iterations.")] = 50,
    baselines: Baselines = "direct",
    show_list: ShowList = False,
    as_json: AsJson = False,
) -> None:
    """Train a model over emulated NICs, by one or more methods, and record what it cost.

    Methods that compress in NICs have NICs, others do without: NICs take cores. After one that failed the others are
    still done; the exit code is then not 0.

    Example: netoffload train hdc --exchange inc --exchange inc+c --rate 1gbit --loss-scale 8 --iterations 200

    Example: netoffload train hdc --exchange inc+c --offload inline --codec bounded --loss-scale 8

    Example: netoffload train cnn --exchange terngrad --exchange qsgd:levels=15 --exchange pqasgd:p=8 --rate 100mbit
    """
    from netoffload.training.config import TrainSettings

    first = TrainSettings(
        method="inc",
        model=model,
        nodes=nodes,
        iterations=iterations,
        seed=seed,
        data=data,
        data_dir=str(data_dir) if data_dir else None,
        batch=batch,
        learning_rate=learning_rate,
        learning_rate_interval=learning_rate_interval,
        loss_scale=loss_scale,
        eval_every=eval_every,
        sharing=sharing,
        offload=offload.value,
    )
    runs = _one_per_exchange(first, exchange or ["inc+c"], error_feedback=error_feedback)
    testbed, found = testbed_settings(runs, rate, nic, mtu), Found.of(runs, baselines)
    with told_anyway(lambda reason: tell(found, reason, as_json=as_json)):
        run_series(runs, testbed, found, out, capture_of(capture, capture_every), baselines=baselines)


def _one_per_exchange(first: TrainSettings, asked: Sequence[str], *, error_feedback: bool) -> list[TrainSettings]:
    """Return the run that ``first`` describes for every method asked for; with a residual where it can be kept."""
    from netoffload.methods import expand

    runs = [dataclasses.replace(first, method=name) for name in expand(asked, first.model_spec.thresholds)]
    if not error_feedback:
        return runs
    if not any(run.spec.keeps_residual for run in runs):
        raise UsageError(f"none of {', '.join(asked)} can keep a residual: --error-feedback is for compressors")
    return [dataclasses.replace(run, error_feedback=run.spec.keeps_residual) for run in runs]
