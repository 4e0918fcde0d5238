"""``netoffload train`` and ``netoffload demo``: training over emulated NICs, measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from netoffload import config, results
from netoffload.cli.app import app, console, notes, told_anyway
from netoffload.cli.data_options import Data, DataDir, Sharing
from netoffload.cli.nic_parameters import shows_nic_options
from netoffload.cli.report import print_summary
from netoffload.errors import NetOffloadError, UsageError
from netoffload.nic_options import NicSettings
from netoffload.training.data_spec import SYNTHETIC

if TYPE_CHECKING:
    from netoffload.results import Record
    from netoffload.testbed import TestbedSettings
    from netoffload.training.config import TrainSettings
    from netoffload.training.run import Capture

RECORDS_FILE: Final = "records.jsonl"

ZERO_SHARE_MAX: Final = 0.97
"""HDC on digits, 300 iterations: 98.3 % of floats crossed as 0 where nothing was learnt, 93 to 96 % where it was."""

DEMO_EXCHANGES: Final = ("wa", "wa+c", "inc", "inc+c")

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
BucketMb = Annotated[
    float, typer.Option(help="Sum layers in buckets of so many MB while backward goes on; 0: all at once, behind it.")
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
    bucket_mb: BucketMb = 0.0,
    eval_every: Annotated[int, typer.Option(help="Measure the accuracy every so many iterations; 0: at the end.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Append the records to this file of JSON lines.")] = None,
    capture: CaptureFile = None,
    capture_every: Annotated[int, typer.Option(help="Keep that of every so many iterations.")] = 50,
    baselines: Baselines = "direct",
    show_list: ShowList = False,
    as_json: AsJson = False,
) -> None:
    """Train a model over emulated NICs, by one or more methods, and record what it cost.

    Methods that compress in NICs have NICs, others do without. After one that failed the others are still done.

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
    runs = _one_per_exchange(first, exchange or ["inc+c"], error_feedback=error_feedback, bucket_mb=bucket_mb)
    testbed, found = _testbed_settings(runs, rate, nic, mtu), Found.of(runs, baselines)
    with told_anyway(lambda reason: _tell(found, reason, as_json=as_json)):
        _run(runs, testbed, found, out, _capture(capture, capture_every), baselines=baselines)


@dataclasses.dataclass
class Found:
    """What a series of runs has come to so far.

    Attributes:
        names: of all runs that were asked for.
        records: of those that got to their end.
        failed: why others did not.
    """

    names: tuple[str, ...]
    records: list[Record] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[TrainSettings], baselines: str) -> Found:
        """Nothing yet."""
        from netoffload.training.run import plan_runs

        return cls(tuple(run.name for run in plan_runs(runs, baselines)))

    def missing(self, reason: str | None) -> dict[str, str | None]:
        """Return why there is no record of a run, by its name: its own reason, or that why all ended."""
        from netoffload import reports

        done = {reports.method_name(record) for record in self.records}
        return {name: self.failed.get(name, reason) for name in self.names if name not in done}


def _tell(found: Found, reason: str | None, *, as_json: bool) -> None:
    """Print what was found, if anything was, and what was not."""
    from netoffload import reports

    if not found.records:
        return
    summary, missing = reports.summarise(found.records), found.missing(reason)
    if as_json:
        told = {**summary.to_json(), "missing": missing}
        print(json.dumps(told | {"records": [dataclasses.asdict(record) for record in found.records]}, indent=2))
    else:
        print_summary(summary, as_json=False)
        _print_missing(missing)


def _print_missing(missing: dict[str, str | None]) -> None:
    for name, reason in missing.items():
        console.print(f"{name}: missing: {reason}", highlight=False, markup=False, soft_wrap=True)


def _one_per_exchange(
    first: TrainSettings, asked: Sequence[str], *, error_feedback: bool, bucket_mb: float
) -> list[TrainSettings]:
    """Return the run that ``first`` describes for every method asked for; residuals and buckets where there can be."""
    from netoffload.methods import expand

    runs = [dataclasses.replace(first, method=name) for name in expand(asked, first.model_spec.thresholds)]
    if bucket_mb:
        if not any(run.spec.sums_gradients for run in runs):
            raise UsageError(f"none of {', '.join(asked)} sums gradients: --bucket-mb is for those that do")
        runs = [dataclasses.replace(run, bucket_mb=bucket_mb * run.spec.sums_gradients) for run in runs]
    if not error_feedback:
        return runs
    if not any(run.spec.keeps_residual for run in runs):
        raise UsageError(f"none of {', '.join(asked)} can keep a residual: --error-feedback is for compressors")
    return [dataclasses.replace(run, error_feedback=run.spec.keeps_residual) for run in runs]


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

    Worker-aggregator and ring, each without and with compression, train HDC on real digits over shaped links; what is
    not compressed has no NICs in its way. Its
    learning rate starts at 0.05 and falls to a fifth after two thirds of the iterations: digits is too small for the
    paper's 0.1 over 10,000. Example: netoffload demo --rate 1gbit --out results/demo
    """
    from netoffload import reports
    from netoffload.training.config import TrainSettings

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
    settings = _testbed_settings(runs, rate, nic, 1500)
    records_file = out / RECORDS_FILE
    found = Found.of(runs, baselines)

    def tell(reason: str | None) -> None:
        if not found.records:
            return
        print_summary(reports.write_report(found.records, out), as_json=as_json)
        if not as_json:
            _print_missing(found.missing(reason))
        notes.print(f"figure, table, summary.json and records are in {out}", highlight=False)

    with _folder(out), told_anyway(tell):
        _run(runs, settings, found, records_file, anew=True, baselines=baselines)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """A folder to leave results in; gone again, with all that were made for it, if nothing was left in it."""
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


def _testbed_settings(runs: Sequence[TrainSettings], rate: str, nic: NicSettings, mtu: int) -> TestbedSettings:
    from netoffload.testbed import TestbedSettings

    nodes = max(run.ranks for run in runs)
    return TestbedSettings(nodes=nodes, rate_bps=config.parse_rate_bps(rate), mtu=mtu, nic=nic)


def _capture(path: Path | None, every: int) -> Capture | None:
    from netoffload.training.run import Capture

    return Capture(path, every) if path else None


def _run(
    runs: Sequence[TrainSettings],
    testbed: TestbedSettings,
    found: Found,
    out: Path | None,
    capture: Capture | None = None,
    *,
    anew: bool = False,
    baselines: str,
) -> None:
    """Do the runs with progress on standard error; a record is appended to ``found`` and ``out`` once it exists.

    ``anew``: the first one replaces what ``out`` held, which stays if there is none.
    """
    from netoffload.training.run import run_all

    if out is not None:
        results.check_writable(out)

    def keep(record: Record) -> None:
        found.records.append(record)
        if out is not None:
            if anew and len(found.records) == 1:
                out.unlink(missing_ok=True)
            results.append_records(out, [record])
        for remark in _remarks(record):
            notes.print(remark, highlight=False, markup=False, soft_wrap=True)

    def note_failure(name: str, error: NetOffloadError) -> None:
        found.failed[name] = str(error)
        notes.print(f"{name} failed: {error}", highlight=False, markup=False, soft_wrap=True)

    with _progress(found.names, runs[0].iterations) as (show_phase, show):
        run_all(
            runs,
            testbed,
            baselines=baselines,
            on_phase=show_phase,
            on_progress=show,
            on_record=keep,
            on_failure=note_failure,
            capture=capture,
        )


def _remarks(record: Record) -> list[str]:
    """Return a line for everything that makes a run's accuracy say nothing about its method."""
    asked, classes = record.configuration, record.traffic.classes
    remarks = []
    if asked.data.startswith(SYNTHETIC):
        remarks.append(f"{asked.exchange} trained on noise ({asked.data}): its accuracy and loss say nothing")
    if record.learning.final_loss is None:
        remarks.append(f"{asked.exchange} diverged: its loss is no number any more; try a smaller --learning-rate")
    if classes.total and classes.bits_0 >= ZERO_SHARE_MAX * classes.total:
        remarks.append(
            f"{asked.exchange}: {100 * classes.bits_0 / classes.total:.1f} % of the floats"
            " were too small for the codec and crossed as 0; if little was learnt, try a larger --loss-scale "
            f"(the demo takes 8) or {'--bound' if asked.codec == 'bounded' else '--codec bounded'}"
        )
    return remarks


@contextmanager
def _progress(
    names: Sequence[str], iterations: int
) -> Iterator[tuple[Callable[[str], None], Callable[[str, int], None]]]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bars:
        setup = bars.add_task("building the testbed", total=None)
        tasks = {name: bars.add_task(f"train {name}", total=iterations, start=False) for name in names}

        def show_phase(phrase: str) -> None:
            bars.update(setup, description=phrase, visible=True)
            if not notes.is_terminal:
                notes.print(phrase, highlight=False)

        def show(name: str, done: int) -> None:
            bars.update(setup, visible=False)
            bars.start_task(tasks[name])
            bars.update(tasks[name], completed=done)
            if not notes.is_terminal and done == 0:
                notes.print(f"training {name}", highlight=False)

        yield show_phase, show
