"""``netoffload train``: training over emulated NICs, measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, told_anyway
from netoffload.cli.grouped import shows_fields
from netoffload.cli.nic_parameters import shows_nic_options
from netoffload.errors import UsageError
from netoffload.lab.cli.training_options import (
    AsJson,
    Baselines,
    BucketMb,
    Data,
    DataDir,
    ErrorFeedback,
    Exchanges,
    LearningOptions,
    Model,
    Mtu,
    Nodes,
    Offload,
    OutputOptions,
    Rate,
    Seed,
    Seeds,
    Sharing,
    ShowList,
)
from netoffload.lab.cli.training_runs import Found, outputs_of, prepared, run_series, tell, testbed_settings
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.lab.training.config import TrainSettings


@app.command()
@shows_nic_options
@shows_fields("learning", "outputs")
def train(
    model: Model,
    nic: NicSettings,
    exchange: Exchanges = None,
    nodes: Nodes = 4,
    rate: Rate = "1gbit",
    mtu: Mtu = 1500,
    iterations: Annotated[int, typer.Option(help="Batches per worker.")] = 200,
    seed: Seed = 1,
    seeds: Seeds = None,
    data: Data = None,
    data_dir: DataDir = None,
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")] = 25,
    error_feedback: ErrorFeedback = False,
    sharing: Sharing = "partitioned",
    offload: Offload = config.Offload.NIC,
    bucket_mb: BucketMb = 0.0,
    *,
    learning: LearningOptions,
    baselines: Baselines = "direct",
    outputs: OutputOptions,
    show_list: ShowList = False,
    as_json: AsJson = False,
) -> None:
    """Train a model over emulated NICs, by one or more methods, and record time, octets and accuracy.

    Only methods that compress in NICs run with NICs. If one method fails, the others still run.

    Example: netoffload train hdc --exchange inc --exchange inc+c --rate 1gbit --loss-scale 8 --iterations 200

    Example: netoffload train hdc --exchange inc+c --offload inline --codec bounded --loss-scale 8

    Example: netoffload train hdc --exchange inc --optimizer adam --schedule cosine:warmup=50 --seeds 1,2,3

    Example: netoffload train hdc --parallel model --activations 8bit-dynamic --rate 100mbit

    Example: netoffload train cnn --exchange terngrad --exchange qsgd:levels=15 --exchange pqasgd:p=8 --rate 100mbit
    """
    from netoffload.lab.training.config import TrainSettings
    from netoffload.lab.training.plan import parse_seeds

    first = TrainSettings(
        method="inc",
        model=model,
        nodes=nodes,
        iterations=iterations,
        data=data,
        data_dir=str(data_dir) if data_dir else None,
        batch=batch,
        sharing=sharing,
        offload=offload.value,
        **vars(learning),
    )
    each = _one_per_exchange(first, exchange or [], error_feedback=error_feedback, bucket_mb=bucket_mb)
    runs = [dataclasses.replace(run, seed=one) for one in parse_seeds(seeds or str(seed)) for run in each]
    testbed, found, kept = testbed_settings(runs, rate, nic, mtu), Found.of(runs, baselines), outputs_of(outputs)
    # Every option has been checked: importing torch takes seconds.
    with prepared(model), told_anyway(lambda reason: tell(found, reason, as_json=as_json)):
        run_series(runs, testbed, found, outputs.out, kept, baselines=baselines)


def _one_per_exchange(
    first: TrainSettings, asked: Sequence[str], *, error_feedback: bool, bucket_mb: float
) -> list[TrainSettings]:
    """Return the run that ``first`` describes, for every method in ``asked``.

    A method gets residuals and buckets only if it supports them. Without ``asked`` the method is ``inc+c``, or the one
    of a run that exchanges no gradients.
    """
    from netoffload.lab.training.config import expand

    asked = asked or ["inc" if first.parallel == "model" else "inc+c"]
    runs = [dataclasses.replace(first, method=name) for name in expand(asked, first.model_spec.thresholds)]
    if bucket_mb:
        if not any(run.spec.sums_gradients for run in runs):
            raise UsageError(f"none of {', '.join(asked)} sums gradients: leave --bucket-mb out")
        runs = [dataclasses.replace(run, bucket_mb=bucket_mb * run.spec.sums_gradients) for run in runs]
    if not error_feedback:
        return runs
    if not any(run.spec.keeps_residual for run in runs):
        raise UsageError(f"none of {', '.join(asked)} can keep a residual: leave --error-feedback out")
    return [dataclasses.replace(run, error_feedback=run.spec.keeps_residual) for run in runs]
