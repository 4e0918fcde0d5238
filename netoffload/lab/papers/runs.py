"""Runs that the items of several papers share: training without a testbed, and on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netoffload.lab.papers.item import Setting
from netoffload.lab.reports import Series, method_name
from netoffload.lab.results import Record
from netoffload.lab.testbed import NicSettings, TestbedSettings
from netoffload.lab.training import run
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.outcome import Step


def settings_of(
    setting: Setting, model: str, data_set: str | None = None, method: str = "inc", **more: Any
) -> TrainSettings:
    """Return the settings of a run on a data set of the setting, or on one that needs no folder."""
    folder = setting.folders.get(data_set or "")
    return TrainSettings(method, model=model, data=data_set, data_dir=str(folder) if folder else None, **more)


def on_links(
    setting: Setting, runs: Sequence[TrainSettings], rate_bps: int, nic: NicSettings | None = None
) -> dict[str, dict[str, Any]]:
    """Train by every method over shaped links, one after the other, and return each one's cost and accuracy."""
    bed = TestbedSettings(run.nodes_needed(runs), rate_bps, nic=nic or NicSettings())
    records = run.run_all(runs, bed, on_progress=_teller(setting))
    return {method_name(record): cost_of(record) for record in records}


def _teller(setting: Setting) -> run.Progress:
    def say(name: str, step: Step) -> None:
        setting.say(f"{name}, {step.done} iterations done")

    return say


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


def curve(name: str, points: Mapping[str, float], scale: float = 1.0, printed: bool = False) -> Series:
    """Return a line of numbers by iteration."""
    return Series(name, tuple(float(x) for x in points), tuple(scale * y for y in points.values()), printed)


def bars(name: str, points: Mapping[str, float], scale: float = 1.0, printed: bool = False) -> Series:
    """Return a series of named bars."""
    return Series(name, tuple(points), tuple(scale * y for y in points.values()), printed)
