"""``netoffload train`` and ``netoffload demo``: training over emulated NICs, measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from netoffload import config, results
from netoffload.cli.app import app, console, notes
from netoffload.cli.report import print_summary
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.results import Record
    from netoffload.testbed import TestbedSettings
    from netoffload.training.config import TrainSettings
    from netoffload.training.run import Capture

RECORDS_FILE: Final = "records.jsonl"

DEMO_EXCHANGES: Final = ("wa", "wa+c", "inc", "inc+c")

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="Workers; wa adds an aggregator on a node of its own.")]
Rate = Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit, 2.5gbit.")]
Bound = Annotated[int, typer.Option(help="Error bound 2^-BOUND of the NICs' codec, 1..16.")]
Codec = Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")]
LearningRate = Annotated[float | None, typer.Option(help="At the start. Default: 0.1 for hdc, 0.02 for cnn.")]
Packing = Annotated[str, typer.Option(help=f"How NICs fill frames: {', '.join(config.PACKINGS)}.")]
Mtu = Annotated[int, typer.Option(help="MTU of every link, octets.")]
Seed = Annotated[int, typer.Option(help="Of weights, batches, and the digits' test set.")]
LossScale = Annotated[
    float, typer.Option(help="Power of two: scales gradients on the wire, so the bound shrinks by it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


Model = Annotated[
    str, typer.Argument(help="hdc (INCEPTIONN's five-layer perceptron) or cnn (a small one).", show_default=False)
]
Exchanges = Annotated[
    list[str] | None,
    typer.Option(
        "--exchange",
        help="inc+c (default), any other of --list with its parameters, or papers: one of each. May be repeated.",
        show_default=False,
    ),
]
Data = Annotated[str, typer.Option(help="digits (comes with scikit-learn), mnist or cifar10.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with MNIST's four IDX files, or CIFAR-10's .npz file.")]
ErrorFeedback = Annotated[
    bool, typer.Option("--error-feedback", help="Host-side compressors keep what they leave unsent for later.")
]
Sharing = Annotated[str, typer.Option(help="Training data: partitioned among the workers, or shared by all of them.")]
CaptureFile = Annotated[
    Path | None, typer.Option(help="Keep gradients of worker 0 in this .npy file (at most 32).", show_default=False)
]


def _list_exchanges(asked: bool) -> None:
    if asked:
        from netoffload.compressors import registry
        from netoffload.training import systems

        console.print(
            "\n".join((systems.__doc__ or "").splitlines()[2:]), highlight=False, markup=False, soft_wrap=True
        )
        console.print(
            "compressors: " + ", ".join((*registry.names(), *registry.ALIASES)), highlight=False, soft_wrap=True
        )
        raise typer.Exit


ShowList = Annotated[
    bool, typer.Option("--list", is_eager=True, callback=_list_exchanges, help="List the exchanges and stop.")
]


@app.command()
def train(
    model: Model,
    exchange: Exchanges = None,
    nodes: Nodes = 4,
    rate: Rate = "1gbit",
    bound: Bound = config.BOUND_K_DEFAULT,
    codec: Codec = "inceptionn",
    packing: Packing = "coalesced",
    mtu: Mtu = 1500,
    iterations: Annotated[int, typer.Option(help="Batches per worker.")] = 200,
    seed: Seed = 1,
    data: Data = "digits",
    data_dir: DataDir = None,
    batch: Annotated[int, typer.Option(help="Samples per worker and iteration.")] = 25,
    learning_rate: LearningRate = None,
    learning_rate_interval: Annotated[int, typer.Option(help="Iterations after which it is divided by 5.")] = 2000,
    loss_scale: LossScale = 1.0,
    error_feedback: ErrorFeedback = False,
    sharing: Sharing = "partitioned",
    eval_every: Annotated[int, typer.Option(help="Measure the accuracy every so many iterations; 0: at the end.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the records to this file of JSON lines.")] = None,
    capture: CaptureFile = None,
    capture_every: Annotated[int, typer.Option(help="Keep that of every so many iterations.")] = 50,
    show_list: ShowList = False,
    as_json: AsJson = False,
) -> None:
    """Train a model over emulated NICs, by one or more ways to exchange gradients, and record what it cost.

    Example: netoffload train hdc --exchange inc --exchange inc+c --rate 1gbit --bound 10 --iterations 200

    Example: netoffload train cnn --exchange terngrad --exchange qsgd:levels=15 --exchange pqasgd:p=8 --rate 100mbit
    """
    from netoffload import reports
    from netoffload.training.config import TrainSettings

    first = TrainSettings(
        exchange="inc",
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
    )
    runs = _one_per_exchange(first, exchange or ["inc+c"], error_feedback=error_feedback)
    testbed = _testbed_settings(runs, rate, bound, codec, packing, mtu)
    records = _run(runs, testbed, out, _capture(capture, capture_every))
    summary = reports.summarise(records)
    if as_json:
        told = {**summary.to_json(), "records": [dataclasses.asdict(record) for record in records]}
        print(json.dumps(told, indent=2))
    else:
        print_summary(summary, as_json=False)


def _one_per_exchange(first: TrainSettings, asked: Sequence[str], *, error_feedback: bool) -> list[TrainSettings]:
    """Return the run that ``first`` describes for every exchange asked for; with a residual where it can be kept."""
    from netoffload.training.systems import expand

    runs = [dataclasses.replace(first, exchange=name) for name in expand(asked)]
    if not error_feedback:
        return runs
    if not any(run.system.keeps_residual for run in runs):
        raise UsageError(f"none of {', '.join(asked)} can keep a residual: --error-feedback is for compressors")
    return [dataclasses.replace(run, error_feedback=run.system.keeps_residual) for run in runs]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for records, table, figure and summary.json.")] = Path(
        "results/demo"
    ),
    nodes: Nodes = 4,
    rate: Rate = "1gbit",
    bound: Bound = config.BOUND_K_DEFAULT,
    packing: Packing = "coalesced",
    iterations: Annotated[int, typer.Option(help="Batches per worker, in each of the four runs.")] = 240,
    seed: Seed = 1,
    loss_scale: LossScale = 8.0,
    as_json: AsJson = False,
) -> None:
    """Show what a compressing NIC does to training: four ways to exchange gradients, side by side.

    Worker-aggregator and ring, each without and with compression, train HDC on real digits over shaped links. Its
    learning rate starts at 0.05 and falls to a fifth after two thirds of the iterations: digits is too small for the
    paper's 0.1 over 10,000. Example: netoffload demo --rate 1gbit --out results/demo
    """
    from netoffload import reports
    from netoffload.training.config import TrainSettings

    runs = [
        TrainSettings(
            exchange=name,
            nodes=nodes,
            iterations=iterations,
            seed=seed,
            learning_rate=0.05,
            learning_rate_interval=max(1, iterations * 2 // 3),
            loss_scale=loss_scale,
        )
        for name in DEMO_EXCHANGES
    ]
    settings = _testbed_settings(runs, rate, bound, "inceptionn", packing, 1500)
    records_file = out / RECORDS_FILE
    _start_empty(records_file)
    summary = reports.write_report(_run(runs, settings, records_file), out)
    print_summary(summary, as_json=as_json)
    notes.print(f"figure, table, summary.json and records are in {out}", highlight=False)


def _start_empty(records_file: Path) -> None:
    try:
        records_file.parent.mkdir(parents=True, exist_ok=True)
        records_file.write_bytes(b"")
    except OSError as error:
        raise UsageError(f"cannot write to {records_file}: {error.strerror}") from error


def _testbed_settings(
    runs: Sequence[TrainSettings], rate: str, bound: int, codec: str, packing: str, mtu: int
) -> TestbedSettings:
    from netoffload.testbed import NicSettings, TestbedSettings

    nic = NicSettings(codec=codec, bound_k=bound, packing=packing)
    nodes = max(run.ranks for run in runs)
    return TestbedSettings(nodes=nodes, rate_bps=config.parse_rate_bps(rate), mtu=mtu, nic=nic)


def _capture(path: Path | None, every: int) -> Capture | None:
    from netoffload.training.run import Capture

    return Capture(path, every) if path else None


def _run(
    runs: Sequence[TrainSettings], testbed: TestbedSettings, out: Path | None, capture: Capture | None = None
) -> list[Record]:
    """Do the runs with progress on standard error; every record is appended to ``out`` as soon as it exists."""
    from netoffload.training.run import run_all

    def keep(record: Record) -> None:
        if out is not None:
            results.append_records(out, [record])
        if record.learning.final_loss is None:
            name = record.configuration.exchange
            notes.print(f"{name} diverged: its loss is no number any more; try a smaller --learning-rate")

    with _progress(runs) as (show_phase, show):
        return run_all(runs, testbed, on_phase=show_phase, on_progress=show, on_record=keep, capture=capture)


@contextmanager
def _progress(runs: Sequence[TrainSettings]) -> Iterator[tuple[Callable[[str], None], Callable[[str, int], None]]]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    if not notes.is_terminal:
        notes.print(f"building a testbed, then training: {', '.join(run.exchange for run in runs)}", highlight=False)
    with Progress(*columns, console=notes, transient=True) as bars:
        setup = bars.add_task("building the testbed", total=None)
        tasks = {
            run.exchange: bars.add_task(f"train {run.exchange}", total=run.iterations, start=False) for run in runs
        }

        def show_phase(phrase: str) -> None:
            bars.update(setup, description=phrase)

        def show(exchange: str, done: int) -> None:
            if setup in bars.task_ids:
                bars.remove_task(setup)
            bars.start_task(tasks[exchange])
            bars.update(tasks[exchange], completed=done)
            if not notes.is_terminal and done == 0:
                notes.print(f"training {exchange}", highlight=False)

        yield show_phase, show
