"""Finds the thresholds of ``wgt``, ``bgt`` and ``qgt`` by trying, as their paper does (Anoosheh et al., section 3).

There is no rule for T. So a run in this process (``training.inprocess``) trains with each threshold of a grid. The best
threshold sends least among those whose accuracy is as good as the highest one.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final

import netoffload
from netoffload.errors import UsageError
from netoffload.lab import results
from netoffload.lab.bench.settings import ThresholdsSettings, training_of
from netoffload.lab.declared import AllOrNothing, Column, Finding, Progress, Table, percent, words
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import Dataset

METHODS: Final = ("wgt", "bgt", "qgt")

GRID: Final = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Thresholds from far below to far above the size of HDC's gradients."""

AS_GOOD: Final = 0.01
"""Accuracies that differ by less count as equal: three standard errors on 10,000 images."""


@dataclass(frozen=True)
class Trial(Finding):
    """One run: its threshold, accuracy (0..1), loss (None: not finite) and the share of octets that it sent."""

    method: Annotated[str, words("method")]
    threshold: Annotated[float, Column("threshold", "g")]
    accuracy: Annotated[float, Column("accuracy %", percent)]
    final_loss: float | None
    efficiency: Annotated[float, Column("octets %", ".2f", 0.01)]


def search(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    methods: Sequence[str] = METHODS,
    grid: Sequence[float] = GRID,
) -> Iterator[Trial]:
    """Train with every threshold of every method, which replaces that of ``settings``."""
    for method, threshold in itertools.product(methods, grid):
        run = replace(settings, method=f"{method}:threshold={threshold:g}")
        try:
            learned = inprocess.train(run, dataset)
        except UsageError:  # the run diverged: compressors refuse values that are not finite
            yield Trial(method, threshold, 0.0, None, 0.0)
        else:
            yield Trial(method, threshold, learned.accuracy, learned.final_loss, learned.efficiency)


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial that sent least among those as good as the most accurate one."""
    if not trials:
        raise UsageError("no threshold was tried")
    enough = max(trial.accuracy for trial in trials) - AS_GOOD
    return min((trial for trial in trials if trial.accuracy >= enough), key=lambda trial: trial.efficiency)


@dataclass(frozen=True)
class Findings(Finding):
    """Accuracy and octets with every threshold, and the best threshold of each method."""

    configuration: dict[str, Any]
    best: dict[str, float]
    trials: list[Trial]
    netoffload: str

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        table = Table.of(Trial, self.trials, None)
        cells = [
            [*row, "best" if self.best[one.method] == one.threshold else ""]
            for row, one in zip(table.rows, self.trials, strict=True)
        ]
        yield Table(None, [*table.columns, words("")], cells)


class Thresholds(AllOrNothing[Findings]):
    """Every threshold of every threshold method."""

    def __init__(self, asked: ThresholdsSettings) -> None:
        self._settings, self._grid, self._out = training_of(asked), asked.threshold or GRID, asked.out
        self._dataset = data.load(self._settings)
        if asked.out is not None:
            results.check_writable(asked.out)

    def measure(self, progress: Progress) -> None:
        """Train with every threshold; append the record to the file."""
        trials: list[Trial] = []
        total = len(METHODS) * len(self._grid)
        progress(f"trying {total} thresholds")
        for trial in search(self._settings, self._dataset, grid=self._grid):
            trials.append(trial)
            progress(f"{trial.method}, threshold {trial.threshold:g}", len(trials) / total)
        resolved = asdict(self._settings.resolved())
        self.found = Findings(
            configuration={key: value for key, value in resolved.items() if key not in ("method", "data_dir")},
            best={method: best([one for one in trials if one.method == method]).threshold for method in METHODS},
            trials=trials,
            netoffload=netoffload.__version__,
        )
        if self._out is not None:
            with self._out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.found.to_record()) + "\n")
