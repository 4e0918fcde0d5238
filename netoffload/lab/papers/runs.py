"""Runs that the items of several papers share, and the lines of their figures."""

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from netoffload.lab.papers.item import Json, Setting
from netoffload.lab.reports.panels import Panel, Series
from netoffload.lab.reports.summary import method_name
from netoffload.lab.results import Record
from netoffload.lab.testbed import NicSettings, TestbedSettings
from netoffload.lab.training import run
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.optimizers import Optimizer, Schedule

SEEDS: Final = (1, 2, 3)  # of runs that are done more than once


def seeds_of(is_full: bool) -> Sequence[tuple[int, ...]]:
    """Return the ends of the keys of a step that a full run does once for each seed; the first run's has none."""
    return [(), *((seed,) for seed in SEEDS[1:] if is_full)]


def of_seeds(values: Mapping[str, Json], key: str) -> list[Json]:
    """Return the values of a step, of its first run and of those whose seed stands behind the key."""
    return [values[one] for one in (key, *(f"{key} {seed}" for seed in SEEDS)) if one in values]


def settings_of(
    setting: Setting, model: str, data_set: str | None = None, method: str = "inc", **more: Any
) -> TrainSettings:
    """Return the settings of a run on a data set of the setting, or on one that needs no folder, and note them."""
    folder = setting.folders.get(data_set or "")
    made = TrainSettings(method, model=model, data=data_set, data_dir=str(folder) if folder else None, **more)
    setting.trained.append(in_words(made))
    return made


def in_words(settings: TrainSettings) -> str:
    """Return what the settings of a run have in common for all methods: the texts of every page are made here."""
    optimizer, schedule = settings.optimizer_spec, settings.schedule_spec
    said = [
        f"{settings.model} on {settings.data_spec.name.partition(':')[0]}",
        f"{settings.nodes}x{settings.batch} samples",
        f"{settings.iterations} iterations",
        f"{_part_in_words(optimizer)} at {optimizer.learning_rate:g}",
        _part_in_words(schedule) if type(schedule) is not Schedule else "constant",
    ]
    said += [f"loss scale {settings.loss_scale:g}"] if settings.loss_scale != 1 else []
    return ", ".join(said + ([f"{settings.sharing} data"] if settings.sharing != "partitioned" else []))


def _part_in_words(part: Optimizer | Schedule) -> str:
    """Return an optimizer or a schedule with the parameters that are not its defaults, but for the rate."""
    fields = [field for field in dataclasses.fields(part) if field.name != "learning_rate"]
    own = {field.name: value for field in fields if (value := getattr(part, field.name)) != field.default}
    return f"{type(part).__name__}({','.join(f'{name}={value}' for name, value in own.items())})"


def on_links(
    setting: Setting, runs: Sequence[TrainSettings], rate_bps: int, nic: NicSettings | None = None
) -> dict[str, dict[str, Any]]:
    """Train by every method over shaped links, one after the other, and return each one's cost and accuracy."""
    bed = TestbedSettings(run.nodes_needed(runs), rate_bps, nic=nic or NicSettings())
    records = run.run_all(runs, bed, on_progress=lambda name, step: setting.say(f"{name}, {step.done} iterations done"))
    return {method_name(record): cost_of(record) for record in records}


def cost_of(record: Record) -> dict[str, Any]:
    """Return the cost and the accuracy of a run: seconds and octets per iteration, and accuracy (0..1)."""
    iterations = record.timed_iterations
    return {
        "s_per_iteration": record.timing.wall_s.median,
        "compute_s": record.timing.compute_s.median,
        "communicate_s": record.timing.communicate_s.median,
        "wire_octets": record.traffic.wire_octets / iterations,
        "ratio": record.traffic.ratio,
        "efficiency": record.compression_efficiency,
        "accuracy": record.learning.accuracy,
        "accuracies": record.learning.accuracy_after,
        "losses": record.learning.loss_after,
        "final_loss": record.learning.final_loss,
        "iterations": iterations,
        "parameters": record.configuration.parameters,
        "rate_bps_measured": record.rate_bps_measured,
    }


def curve(name: str, points: Mapping[str, float] | Mapping[float, float], scale: float = 1.0) -> Series:
    """Return a line of numbers by iteration, or by time."""
    return Series(name, tuple(float(x) for x in points), tuple(scale * y for y in points.values()))


def first_at(one: Json, accuracy: float) -> int | None:
    """Return the iteration after which a run's accuracy was first at least this; None: never."""
    return next((int(at) for at, reached in one["accuracies"].items() if reached >= accuracy), None)


def bars(name: str, points: Mapping[str, float], scale: float = 1.0, printed: bool = False) -> Series:
    """Return a series of named bars."""
    return Series(name, tuple(points), tuple(scale * y for y in points.values()), printed)


def accuracies(runs: Mapping[str, Any], title: str) -> Panel:
    """Return the panel of accuracies by iteration, a line for each run."""
    lines = tuple(curve(name, one["accuracies"], 100) for name, one in runs.items())
    return Panel("lines", title, "% of the test set", lines, "iterations")


def accuracies_over_time(runs: Mapping[str, Any], title: str, seconds: str, *, log_x: bool = False) -> Panel:
    """Return the panel of accuracies by the time of training, a line for each run."""
    lines = []
    for name, one in runs.items():
        by_time = {int(at) * one["s_per_iteration"]: accuracy for at, accuracy in one["accuracies"].items()}
        lines.append(curve(name, by_time, 100))
    return Panel("lines", title, "% of the test set", tuple(lines), seconds, log_x=log_x)


def heaps(runs: Mapping[str, Any], title: str, unit: str, scale: float, *, above: str = "communication") -> Panel:
    """Return the panel of computing and the rest of an iteration's time, a bar for each run."""
    computing = {name: one["compute_s"] for name, one in runs.items()}
    rest = {name: one["s_per_iteration"] - computing[name] for name, one in runs.items()}
    return Panel("heaps", title, unit, (bars("computation", computing, scale), bars(above, rest, scale)))


def mean_and_range(shares: Mapping[str, Sequence[float]]) -> str:
    """Return in words the mean and the range, per cent, of every name's shares (0..1)."""
    return ", ".join(
        f"{name} {100 * fmean(of):.2f} % ({100 * min(of):.2f}-{100 * max(of):.2f})" for name, of in shares.items()
    )
