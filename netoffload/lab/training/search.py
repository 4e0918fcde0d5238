"""Finds the thresholds of ``wgt``, ``bgt`` and ``qgt`` by trying, as their paper does (Anoosheh et al., section 3).

There is no rule for T. So this module trains a run in this process (``inprocess``) with each threshold of a grid. The
best threshold sends least among those whose accuracy is as good as the highest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.inprocess import train

METHODS: Final = ("wgt", "bgt", "qgt")

GRID: Final = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Thresholds from far below to far above the size of HDC's gradients."""

AS_GOOD: Final = 0.01
"""Accuracies that differ by less count as equal: three standard errors on 10,000 images."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run: its threshold, accuracy (0..1), loss (None: not finite) and the share of octets that it sent."""

    method: str
    threshold: float
    accuracy: float
    final_loss: float | None
    efficiency: float


def search(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    methods: Sequence[str] = METHODS,
    grid: Sequence[float] = GRID,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
) -> list[Trial]:
    """Train with every threshold of every method, which replaces that of ``settings``."""
    trials = []
    for method in methods:
        for threshold in grid:
            run = dataclasses.replace(settings, method=f"{method}:threshold={threshold:g}")
            try:
                learned = train(run, dataset)
                trial = Trial(method, threshold, learned.accuracy, learned.final_loss, learned.efficiency)
            except UsageError:  # the run diverged: compressors refuse values that are not finite
                trial = Trial(method, threshold, 0.0, None, 0.0)
            trials.append(trial)
            on_trial(trial)
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """Return the trial that sent least among those as good as the most accurate one."""
    if not trials:
        raise UsageError("no threshold was tried")
    enough = max(trial.accuracy for trial in trials) - AS_GOOD
    return min((trial for trial in trials if trial.accuracy >= enough), key=lambda trial: trial.efficiency)
