"""``netoffload train`` and ``netoffload demo``: training over emulated NICs, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netoffload.cli.app import app, console, notes
from netoffload.errors import UsageError
from netoffload.lab import results
from netoffload.lab.bench.settings import (
    DATA_DIR_HELP,
    DATA_HELP,
    LEARNING_RATE_HELP,
    MODEL_HELP,
    OPTIMIZER_HELP,
    RATE_HELP,
    training_of,
)
from netoffload.lab.cli.figures import report_on_exit
from netoffload.lab.cli.grouped import shows_nic_options, shows_settings
from netoffload.lab.cli.report import print_summary
from netoffload.lab.cli.training_runs import (
    RunSeries,
    prepared,
    print_missing,
    run_series,
    tell,
    testbed_settings,
)
from netoffload.lab.declared import setting
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.lab.training.config import TrainSettings

RECORDS_FILE: Final = "records.jsonl"
DEMO_EXCHANGES: Final = ("wa", "wa+c", "inc", "inc+c")


_optional = partial(setting, None, shown_default=False)
_loss_scale = partial(setting, help_text="Power of two: multiplies gradients on the wire, and so divides the error.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of both commands."""

    nodes: int = setting(4, "Workers; wa adds an aggregator on a node of its own.", "--nodes", "-n")
    rate: str = setting("1gbit", RATE_HELP)
    seed: int = setting(1, "Seed of weights, batches, and the digits' test set.")
    baselines: str = setting("direct", "Uncompressed methods run direct (without NICs), through NICs (nic), or both.")


@dataclass(frozen=True, kw_only=True)
class DemoOptions(RunOptions):
    """Options of the demo."""

    out: Path = setting(Path("results/demo"), "Folder for records, table, figure and summary.json.")
    iterations: int = setting(240, "Batches per worker, in each of the four runs.")
    loss_scale: float = _loss_scale(8.0)


class Compresses(enum.StrEnum):
    """Who compresses for a method that compresses."""

    NIC = "nic"
    INLINE = "inline"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RunOptions):
    """Options of a series of runs; those that describe a run have the names of fields of ``TrainSettings``."""

    model: str = setting(MISSING, MODEL_HELP, argument="", shown_default=False)
    exchange: tuple[str, ...] = setting(
        (),
        "inc+c (default), any other of --list with its parameters, or papers: one of each. May be repeated.",
        shown_default=False,
    )
    mtu: int = setting(1500, "MTU of every link, octets.")
    iterations: int = setting(200, "Batches per worker.")
    seeds: str | None = _optional("Several seeds, such as 1,2,3: run each method with each.")
    data: str | None = _optional(DATA_HELP)
    data_dir: Path | None = setting(None, DATA_DIR_HELP)
    batch: int = setting(25, "Samples per worker and iteration.")
    error_feedback: bool = setting(
        False, "Host-side compressors add what they left unsent to the next gradient.", "--error-feedback"
    )
    sharing: str = setting(
        "partitioned",
        "Training data: partitioned among the workers, shared by all of them, or dirichlet:alpha=0.5 (the smaller "
        "alpha is, the more the workers' classes differ).",
    )
    offload: Compresses = setting(
        Compresses.NIC, "Who compresses: the NICs, or (inline) the ranks, by --codec and --bound."
    )
    bucket_mb: float = setting(
        0.0, "Sum layers in buckets of up to this many MB during backward; 0: all at once, after it."
    )
    learning_rate: float | None = setting(None, LEARNING_RATE_HELP)
    learning_rate_interval: int | None = setting(
        None, "Iterations after which the learning rate is divided by 5. Default: the model's, 2000."
    )
    optimizer: str | None = _optional(OPTIMIZER_HELP)
    schedule: str | None = _optional(
        "Schedule of the learning rate: step:divisor=5,interval=2000, cosine, polynomial:power=0.5 or constant; each "
        "takes warmup=ITERATIONS. Default: the model's own."
    )
    clip_norm: float | None = _optional("Shorten mean gradients to this norm.")
    loss_scale: float = _loss_scale(1.0)
    eval_every: int = setting(
        0,
        "Iterations from one accuracy to the next; 0: only at the end.",
        "--evaluate-every",
        "--eval-every",
    )
    stop_at_accuracy: float | None = _optional("0..1: end the run when an accuracy reaches it.")
    parallel: str = setting(
        "data",
        "What a worker has: the whole model (data), a part of each layer (model), or a part of each layer behind the "
        "convolutions (hybrid).",
    )
    activations: str = setting(
        "float32",
        "Type of the activations that a split model exchanges: float32, 8bit-dynamic, 8bit-static, 8bit-mantissa, or "
        "8bit-linear with parameters.",
    )
    sub_batches: int = setting(
        1, "Exchange activations in this many pieces, each during the multiplication of another."
    )
    out: Path | None = setting(None, "Append the records to this file of JSON lines.", shown_default=False)
    capture: Path | None = setting(
        None,
        "Keep gradients of worker 0 in this .npy file (at most 32), and the place of each layer beside it.",
        shown_default=False,
    )
    capture_every: int = setting(50, "Iterations from one kept gradient to the next.")
    checkpoint: Path | None = setting(None, "Keep checkpoints in this folder, one folder per run.", shown_default=False)
    checkpoint_every: int = setting(100, "Iterations from one checkpoint to the next.")
    resume: bool = setting(False, "Go on from the checkpoints; the result is the same, bit for bit.", "--resume")
    tensorboard: Path | None = setting(None, "Keep scalars and histograms in this folder.", shown_default=False)


def _list_methods(context: typer.Context, asked: bool) -> None:
    if not asked:
        return
    from netoffload import compressors, methods
    from netoffload.lab.training.models import MODELS

    known = compressors.registry
    names = [*known.names(), *known.ALIASES]
    if context.params.get("as_json"):
        models = {name: str(model).partition(": ")[2] for name, model in MODELS.items()}
        exchanges = list(methods.registry.FAMILIES)
        print(json.dumps({"exchanges": exchanges, "compressors": names, "models": models}, indent=2))
        raise typer.Exit
    text = "\n".join((methods.registry.__doc__ or "").splitlines()[2:])
    text += "\ncompressors: " + ", ".join(names) + "\n\n"
    text += "\n".join(f"model {model}" for model in MODELS.values())
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit


ShowList = Annotated[bool, typer.Option("--list", callback=_list_methods, help="List methods and models, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", is_eager=True, help="Print JSON instead of a table.")]
"""Eager, so that ``--list`` knows it wherever it stands."""


@app.command()
@shows_nic_options
@shows_settings
def train(*, asked: TrainOptions, nic: NicSettings, show_list: ShowList = False, as_json: AsJson = False) -> None:
    """Train a model over emulated NICs, by one or more methods, and record time, octets and accuracy.

    Only methods that compress in NICs run with NICs. If one method fails, the others still run.

    Example: netoffload train hdc --exchange inc --exchange inc+c --rate 1gbit --loss-scale 8 --iterations 200

    Example: netoffload train hdc --exchange inc+c --offload inline --codec bounded --loss-scale 8

    Example: netoffload train hdc --exchange inc --optimizer adam --schedule cosine:warmup=50 --seeds 1,2,3

    Example: netoffload train hdc --parallel model --activations 8bit-dynamic --rate 100mbit

    Example: netoffload train cnn --exchange terngrad --exchange qsgd:levels=15 --exchange pqasgd:p=8 --rate 100mbit
    """
    from netoffload.lab.training.plan import Outputs, parse_seeds

    each = _one_per_exchange(asked)
    seeds = parse_seeds(str(asked.seed) if asked.seeds is None else asked.seeds)
    runs = [dataclasses.replace(run, seed=seed) for seed in seeds for run in each]
    testbed, found = testbed_settings(runs, asked.rate, nic, asked.mtu), RunSeries.of(runs, asked.baselines)
    names = [field.name for field in dataclasses.fields(Outputs)]
    outputs = Outputs(**{name: getattr(asked, name) for name in names})
    if asked.out is not None:
        results.check_writable(asked.out)
    # Every option has been checked: importing torch takes seconds.
    with prepared(asked.model), report_on_exit(lambda reason: tell(found, reason, as_json=as_json)):
        run_series(runs, testbed, found, asked.out, outputs, baselines=asked.baselines)


def _one_per_exchange(asked: TrainOptions) -> list[TrainSettings]:
    """Return a run for every method that was asked for.

    A method gets residuals and buckets only if it supports them. By default the method is ``inc+c``, or the one of a
    run that exchanges no gradients.
    """
    from netoffload.lab.training.config import expand

    first = training_of(asked, error_feedback=False, bucket_mb=0.0, offload=asked.offload.value)
    names = asked.exchange or ("inc" if first.parallel == "model" else "inc+c",)
    runs = [dataclasses.replace(first, method=name) for name in expand(names, first.model_spec.thresholds)]
    if asked.bucket_mb:
        if not any(run.spec.takes_buckets for run in runs):
            raise UsageError(f"none of {', '.join(names)} sums gradients in buckets: leave --bucket-mb out")
        runs = [dataclasses.replace(run, bucket_mb=asked.bucket_mb * run.spec.takes_buckets) for run in runs]
    if not asked.error_feedback:
        return runs
    if not any(run.spec.keeps_residual for run in runs):
        raise UsageError(f"none of {', '.join(names)} can keep a residual: leave --error-feedback out")
    return [dataclasses.replace(run, error_feedback=run.spec.keeps_residual) for run in runs]


@app.command()
@shows_nic_options
@shows_settings
def demo(*, asked: DemoOptions, nic: NicSettings, as_json: AsJson = False) -> None:
    """Show what a compressing NIC does to training: four methods, side by side.

    Worker-aggregator and ring, each without and with compression, train HDC on real digits over shaped links. Methods
    without compression run without NICs. The learning rate starts at 0.05 and falls to a fifth after two thirds of the
    iterations, because digits is too small for the paper's 0.1 over 10,000 iterations.

    Example: netoffload demo --rate 1gbit --out results/demo
    """
    from netoffload.lab import reports

    interval, out = max(1, asked.iterations * 2 // 3), asked.out
    runs = [
        training_of(asked, method=name, learning_rate=0.05, learning_rate_interval=interval) for name in DEMO_EXCHANGES
    ]
    settings = testbed_settings(runs, asked.rate, nic, 1500)
    found = RunSeries.of(runs, asked.baselines)

    def tell_and_draw(reason: str | None) -> None:
        if not found.records:
            return
        print_summary(reports.write_report([*found.records.values()], out), as_json=as_json)
        if not as_json:
            print_missing(found.missing(reason))
        notes.print(f"figure, table, summary.json and records are in {out}", highlight=False)

    with prepared(), _folder(out), report_on_exit(tell_and_draw):
        run_series(runs, settings, found, out / RECORDS_FILE, anew=True, baselines=asked.baselines)


@contextlib.contextmanager
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
        with contextlib.suppress(OSError):  # not empty
            for folder in new:
                folder.rmdir()
