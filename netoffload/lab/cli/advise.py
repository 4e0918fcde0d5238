"""``netoffload advise``: which exchange pays on a network, by how much, and with what error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, console
from netoffload.cli.codec_options import Bound
from netoffload.lab.cli.bench_command import AsJson, run
from netoffload.lab.cli.figures import mega, milli, percent, table

if TYPE_CHECKING:
    from netoffload.lab.bench.advice_measure import Findings


@app.command()
def advise(
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SCRIPT [ARGS]...]", help="Your training script, instead of a model."),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Rate of every link: 100mbit, 1gbit. Default: measured.")] = None,
    delay: Annotated[float, typer.Option(help="Delay of every link, one way, in ms; with --rate.")] = 0.0,
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", help="Ranks, without a launcher. Default: 4.")] = None,
    model: Annotated[str, typer.Option(help="Any of 'netoffload train --list'.")] = "hdc",
    gradients: Annotated[Path | None, typer.Option(help="Gradients from this float32 .npy file, one per row.")] = None,
    compute: Annotated[
        float | None, typer.Option(help="Computing time of a step, in ms. Default: measured; 0 with --gradients.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples per rank and step.")] = 25,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps: 50; 20 of a script.")] = None,
    bound: Bound = config.BOUND_K_DEFAULT,
    error: Annotated[float, typer.Option(help="Largest relative error of an exchange to recommend.")] = 0.1,
    is_tried: Annotated[bool, typer.Option("--try", help="Also time the plain ring and the inline rings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which exchange pays on a network, by how much, and with what error.

    It measures the codecs on this CPU, a model's computing, and the network
    between the ranks that a launcher started; without a launcher, give --rate.
    Then it predicts the time of a step with every exchange. --try also times
    four of them between the ranks, or between threads of this process. Your
    script runs unchanged, as one rank alone, for --steps steps of its
    optimizer.

    The prediction leaves out headers, computing that goes on while gradients
    are on their way, and what an error does to learning.

    Example: netoffload advise --rate 1gbit --delay 0.1 -n 8

    Example: netoffload advise --rate 100mbit --gradients captured.npy --compute 40

    Example: netoffload advise --rate 1gbit -- train.py --batch-size 64

    Example: torchrun --nnodes 2 --node-rank N --master-addr HOST -m netoffload advise --try

    Example: netoffload run -n 4 --rate 1gbit --no-nic -- -m netoffload advise --model cnn
    """
    from netoffload.lab.bench.advice_measure import Adviser, Asked

    asked = Asked(
        rate_bps=None if rate is None else config.parse_rate_bps(rate),
        delay_ms=delay,
        nodes=nodes,
        model=model,
        gradients=gradients,
        compute_ms=compute,
        batch=batch,
        steps=steps,
        bound=bound,
        error_max=error,
        is_tried=is_tried,
        script=tuple(script or ()),
    )
    run(Adviser(asked), _print_table, as_json=as_json)


def _print_table(found: Findings) -> None:
    network, work = found.network, found.workload
    console.print(
        f"{network.ranks} ranks, {config.format_rate(network.rate_bps)}, {config.format_ms(network.delay_s)} ms "
        f"one way ({network.source}); {work.name}: {mega(work.gradient_octets)} MB of gradients, "
        f"{milli(work.compute_s)} ms of computing",
        highlight=False,
        soft_wrap=True,
    )
    headings = ("exchange", "MB", "wire", "codec", "delays", "step", "x ring", "error %", "/ bound")
    is_tried = any(row.measured_s is not None for row in found.predictions)
    caption = "A step of each rank: MB that it sends; ms; worst error over the codec's bound"
    rows = table(None, (*headings, *(("tried",) if is_tried else ())), ("exchange",), caption)
    for row in found.predictions:
        rows.add_row(
            *(row.exchange, mega(row.wire_octets, ".3g")),
            *map(milli, (row.wire_s, row.codec_s, row.delays_s, row.step_s)),
            f"{row.speedup:.2f}",
            "-" if row.relative_error is None else percent(row.relative_error),
            "-" if row.worst_over_bound is None else f"{row.worst_over_bound:.2f}",
            *(("-" if row.measured_s is None else milli(row.measured_s),) if is_tried else ()),
        )
    console.print(rows)
    console.print(found.recommendation, highlight=False, markup=False, soft_wrap=True)
    if found.is_busy:
        console.print(f"The machine was busy: load {found.load_1min:.1f} on {found.cores} cores.", highlight=False)
