"""``netoffload bench ddp``: training under torch's DDP, with its own exchange, its hooks and ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import console, notes
from netoffload.cli.codec_options import Bound
from netoffload.lab.bench.jobs import DDP_HOOKS
from netoffload.lab.cli.bench_command import AsJson, run
from netoffload.lab.cli.data_options import Data, DataDir
from netoffload.lab.cli.figures import mega, milli, percent, table
from netoffload.lab.cli.training_options import Rate

if TYPE_CHECKING:
    from netoffload.lab.bench.ddp import Findings

COLUMNS = ("what", "step", "compute", "communicate", "wire MB", "fp16 / wire", "payload", "accuracy", "loss")


def command(
    model: Annotated[str, typer.Option(help="hdc, or another of `netoffload train --list`.")] = "hdc",
    data: Data = None,
    data_dir: DataDir = None,
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Ranks, one per node.")] = 4,
    rate: Rate = "1gbit",
    steps: Annotated[int, typer.Option(help="Training steps per contender; the first 3 are not timed.")] = 60,
    batch: Annotated[int, typer.Option(help="Samples per rank and step.")] = 25,
    learning_rate: Annotated[float | None, typer.Option(help="Initial rate. Default: the model's own.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds into which the steps are cut.")] = 3,
    what: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(DDP_HOOKS)}; repeat for several; default: all.")
    ] = None,
    bound: Bound = config.BOUND_K_DEFAULT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, batches, and the digits' test set.")] = 1,
    figure: Annotated[Path | None, typer.Option(help="Also draw the table into this file: .png, .svg, .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train under torch's DDP over shaped links: its own exchange, its fp16 and PowerSGD hooks, and ours.

    inline_...: the ranks compress by themselves; _ef: with error feedback.
    nic_...: emulated NICs compress, and share the cores with the ranks. qsgd:
    every rank gathers payloads of QSGD with 15 levels. powersgd has one
    bucket, because gloo aborts with more.

    All contenders train the same steps from the same weights, and take turns.
    Replicas must be bit-identical before a time is reported. compute is the
    time of a step in which nothing travels. communicate is how much longer a
    step takes: compressing and waiting, without the part hidden behind
    backward. Octets are those on all wires, headers included. fp16 / wire says
    how many times fewer they are than the fp16 hook's. payload is a plain
    ring's octets over those that our hook sent.

    Example: netoffload bench ddp -n 4 --rate 1gbit --model hdc --steps 30

    Example: netoffload bench ddp -n 2 --rate 100mbit --what gloo --what inline_bounded --json
    """
    from netoffload.lab.bench import ddp
    from netoffload.lab.testbed import TestbedSettings
    from netoffload.lab.training.config import TrainSettings

    settings = TrainSettings(
        method="inc",
        nodes=nodes,
        iterations=steps,
        seed=seed,
        model=model,
        data=data,
        data_dir=None if data_dir is None else str(data_dir),
        batch=batch,
        learning_rate=learning_rate,
    )
    bed = TestbedSettings(nodes, config.parse_rate_bps(rate), nic=None)
    asked = ddp.Asked(bed, settings, tuple(dict.fromkeys(what or DDP_HOOKS)), repeat, bound)

    experiment = ddp.Ddp(asked)
    run(experiment, _print_table, as_json=as_json)
    if figure is not None and (found := experiment.findings(None)) is not None:
        _draw(found, figure)


def _title(found: Findings) -> str:
    asked = found.configuration
    training, measured = asked["training"], config.format_rate(found.rate_bps_measured)
    return (
        f"{training['model']} on {training['data']}, {asked['nodes']} nodes, batch {training['batch']}, "
        f"{training['iterations']} steps, {config.format_rate(asked['rate_bps'])} (measured {measured})"
    )


def _print_table(found: Findings) -> None:
    made = table(_title(found), COLUMNS, ("what",), "medians in ms per step; accuracy in %")
    for row in found.results:
        ratios = (row.ratio_to_fp16, row.payload_ratio)
        made.add_row(
            row.what,
            *map(milli, (row.s_per_iteration, row.compute_s, row.communicate_s)),
            mega(row.wire_bytes_per_iteration, ".3g"),
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            percent(row.accuracy),
            f"{row.loss:.3f}",
        )
    console.print(made)
    for name, reason in found.failed.items():
        console.print(f"{name}: missing: {reason}", highlight=False, markup=False, soft_wrap=True)


def _draw(found: Findings, path: Path) -> None:
    from netoffload.lab.reports import draw_rows

    draw_rows([(row.what, row) for row in found.results], "DDP's gradients", _title(found), path)
    notes.print(f"the figure is in {path}", highlight=False)
