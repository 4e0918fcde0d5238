"""Finds the best threshold of each threshold method by training with many of them (``training.search``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import netoffload
from netoffload.lab import results
from netoffload.lab.bench.experiment import AllOrNothing, Finding, Progress
from netoffload.lab.training import data, search
from netoffload.lab.training.config import TrainSettings


@dataclass(frozen=True)
class Findings(Finding):
    """Accuracy and octets with every threshold, and the best threshold of each method."""

    configuration: dict[str, Any]
    best: dict[str, float]
    trials: list[search.Trial]
    netoffload: str

    def is_best(self, trial: search.Trial) -> bool:
        """Return whether a trial is the best one of its method."""
        return self.best[trial.method] == trial.threshold


class Thresholds(AllOrNothing[Findings]):
    """Every threshold of every threshold method."""

    def __init__(self, settings: TrainSettings, grid: Sequence[float], out: Path | None) -> None:
        """Load the data.

        Args:
            settings: settings of the runs; their method is replaced.
            grid: the thresholds; none: those of ``search``.
            out: file that gets the record as a line; None: no file.

        Raises:
            UsageError: the data cannot be read, or ``out`` cannot be written.
        """
        self._settings, self._grid, self._out = settings, tuple(grid) or search.GRID, out
        self._dataset = data.load(settings)
        if out is not None:
            results.check_writable(out)

    def measure(self, progress: Progress) -> None:
        """Train with every threshold; append the record to the file."""
        trials: list[search.Trial] = []
        total = len(search.METHODS) * len(self._grid)
        progress(f"trying {total} thresholds")

        def on_trial(trial: search.Trial) -> None:
            trials.append(trial)
            progress(f"{trial.method}, threshold {trial.threshold:g}", len(trials) / total)

        search.search(self._settings, self._dataset, grid=self._grid, on_trial=on_trial)
        resolved = asdict(self._settings.resolved())
        self.found = Findings(
            configuration={key: value for key, value in resolved.items() if key not in ("method", "data_dir")},
            best={
                method: search.best([one for one in trials if one.method == method]).threshold
                for method in search.METHODS
            },
            trials=trials,
            netoffload=netoffload.__version__,
        )
        if self._out is not None:
            with self._out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.found.to_record()) + "\n")
