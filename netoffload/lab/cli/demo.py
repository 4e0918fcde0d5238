"""``netoffload demo``: what a compressing NIC does to training, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from netoffload.cli.app import app, notes, told_anyway
from netoffload.cli.nic_parameters import shows_nic_options
from netoffload.errors import UsageError
from netoffload.lab.cli.report import print_summary
from netoffload.lab.cli.training_options import AsJson, Baselines, LossScale, Nodes, Rate, Seed
from netoffload.lab.cli.training_runs import Found, prepared, print_missing, run_series, testbed_settings
from netoffload.nic_options import NicSettings

RECORDS_FILE: Final = "records.jsonl"

DEMO_EXCHANGES: Final = ("wa", "wa+c", "inc", "inc+c")


@app.command()
@shows_nic_options
def demo(
    nic: NicSettings,
    out: Annotated[Path, typer.Option(help="Folder for records, table, figure and summary.json.")] = Path(
        "results/demo"
    ),
    nodes: Nodes = 4,
    rate: Rate = "1gbit",
    iterations: Annotated[int, typer.Option(help="Batches per worker, in each of the four runs.")] = 240,
    seed: Seed = 1,
    loss_scale: LossScale = 8.0,
    baselines: Baselines = "direct",
    as_json: AsJson = False,
) -> None:
    """Show what a compressing NIC does to training: four methods, side by side.

    Worker-aggregator and ring, each without and with compression, train HDC on real digits over shaped links. Methods
    without compression run without NICs. The learning rate starts at 0.05 and falls to a fifth after two thirds of the
    iterations, because digits is too small for the paper's 0.1 over 10,000 iterations.

    Example: netoffload demo --rate 1gbit --out results/demo
    """
    from netoffload.lab import reports
    from netoffload.lab.training.config import TrainSettings

    runs = [
        TrainSettings(
            method=name,
            nodes=nodes,
            iterations=iterations,
            seed=seed,
            learning_rate=0.05,
            learning_rate_interval=max(1, iterations * 2 // 3),
            loss_scale=loss_scale,
        )
        for name in DEMO_EXCHANGES
    ]
    settings = testbed_settings(runs, rate, nic, 1500)
    records_file = out / RECORDS_FILE
    found = Found.of(runs, baselines)

    def tell(reason: str | None) -> None:
        if not found.records:
            return
        print_summary(reports.write_report(found.records, out), as_json=as_json)
        if not as_json:
            print_missing(found.missing(reason))
        notes.print(f"figure, table, summary.json and records are in {out}", highlight=False)

    with prepared(), _folder(out), told_anyway(tell):
        run_series(runs, settings, found, records_file, anew=True, baselines=baselines)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder for results, with its parents; if nothing is left in them at the end, remove them again."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path}: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # not empty
            for folder in new:
                folder.rmdir()
