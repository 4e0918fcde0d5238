"""``netoffload verify methods``: checks what the papers promise about TernGrad and QSGD."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from netoffload import config
from netoffload.cli.app import console
from netoffload.lab.cli.verify import MISMATCH, AsJson, shown_progress, verify_app

FLOATS_OF_MEANS: Final = 2000
"""Floats of each worker's gradient, whose means are judged."""

SIGMA: Final = 0.002


@verify_app.command("methods")
def verify_methods(
    draws: Annotated[int, typer.Option(min=1000, help="Ternary vectors of each worker.")] = 10_000,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers that share TernGrad's scaler.")] = 4,
    values: Annotated[str, typer.Option(help="Floats of QSGD's layer: 2M, 100M.")] = "2M",
    batch: Annotated[int, typer.Option(min=1, help="Samples per worker, which decide QSGD's levels.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of gradients and compressors.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Compare TernGrad's mean and QSGD's variance with their papers.

    The mean of a worker's ternary vectors must be its clipped gradient. The
    mean of the server's answers must be the mean of all clipped gradients.
    QSGD's variance ratio must be within min(N / 4s², √N / s) for N values,
    m samples and s = √(mN) / 2. The command ends with exit code 1 otherwise.
    100M values take 2 GB of memory.

    Example: netoffload verify methods --values 100M
    """
    from netoffload.collectives.samples import gradient_of
    from netoffload.compressors import verify

    count = config.parse_count(values)
    gradients = verify.gradients_like(workers, FLOATS_OF_MEANS, seed)
    with shown_progress("draws", draws) as show:
        done = 0

        def on_draw() -> None:
            nonlocal done
            done += 1
            if done % 100 == 0:
                show(done)

        means = verify.ternary_means(gradients, draws, seed=seed, on_draw=on_draw)
    bound = verify.qsgd_bound(gradient_of(0, count, SIGMA, seed), batch=batch, seed=seed)
    holds = bound.holds and all(mean.holds for mean in means)
    if as_json:
        told: dict[str, Any] = {"draws": draws, "seed": seed, "holds": holds}
        print(json.dumps(told | {"terngrad": [asdict(mean) for mean in means], "qsgd": asdict(bound)}, indent=2))
    else:
        for mean in means:
            who = f"worker {mean.worker}" if mean.worker < workers else "the server"
            console.print(
                f"terngrad, {who}: {mean.values} means of {draws} draws, largest z {mean.largest_z:.2f}, "
                f"mean z² {mean.mean_square:.3f}: {'as promised' if mean.holds else 'WRONG'}",
                soft_wrap=True,
            )
        console.print(
            f"qsgd, {bound.values} values, s = {bound.levels:.0f}: variance ratio {bound.variance_ratio:.3g}, bound "
            f"{bound.bound:.3g}: {'as promised' if bound.holds else 'WRONG'}",
            soft_wrap=True,
        )
    if not holds:
        raise typer.Exit(MISMATCH)
