"""Finds the best threshold of each threshold method by training with many of them (``training.search``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import netoffload
from netoffload.lab import results
from netoffload.lab.bench.settings import ThresholdsSettings
from netoffload.lab.declared import AllOrNothing, Finding, Progress, Table, numbers, percent, words
from netoffload.lab.training import data, search


@dataclass(frozen=True)
class Findings(Finding):
    """Accuracy and octets with every threshold, and the best threshold of each method."""

    configuration: dict[str, Any]
    best: dict[str, float]
    trials: list[search.Trial]
    netoffload: str

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        cells = [
            [
                *(one.method, f"{one.threshold:g}", percent(one.accuracy), percent(one.efficiency, ".2f")),
                "best" if self.best[one.method] == one.threshold else "",
            ]
            for one in self.trials
        ]
        yield Table(None, [words("method"), *numbers("threshold", "accuracy %", "octets %"), words("")], cells)


class Thresholds(AllOrNothing[Findings]):
    """Every threshold of every threshold method."""

    def __init__(self, asked: ThresholdsSettings) -> None:
        self._settings, self._grid, self._out = asked.training(), asked.threshold or search.GRID, asked.out
        self._dataset = data.load(self._settings)
        if asked.out is not None:
            results.check_writable(asked.out)

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
