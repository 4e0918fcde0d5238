"""What a series of runs will do, refused before anything is built: their order, and what is kept of them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload import results
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.reports import INLINE, VIA_NICS
from netoffload.training.capture import CAPTURE_FILE
from netoffload.training.config import TrainSettings

BASELINES: Final = ("direct", "nic", "both")
"""Where methods run that use no codec of a NIC: without NICs, through NICs that leave them alone, or both."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run, and whether its testbed has NICs."""

    settings: TrainSettings
    has_nics: bool

    @property
    def name(self) -> str:
        """As reports call it."""
        settings = self.settings
        way = INLINE if settings.is_inline else VIA_NICS if self.has_nics and not settings.compressed else ""
        return settings.method + ("+ef" if settings.error_feedback else "") + way


def plan_runs(runs: Sequence[TrainSettings], baselines: str = BASELINES[0]) -> list[Planned]:
    """Return the runs in the order in which they are done: those without NICs first.

    Raises:
        UsageError: ``baselines`` is none of :data:`BASELINES`.
    """
    check_choice("baselines", baselines, BASELINES)
    plain = [run for run in runs if not run.compressed]
    coded = [run for run in runs if run.is_inline]
    through = [
        run for run in runs if (run.compressed and not run.is_inline) or (run in plain and baselines != "direct")
    ]
    direct = [run for run in runs if run in coded or (run in plain and baselines != "nic")]
    return [Planned(run, has_nics=False) for run in direct] + [Planned(run, has_nics=True) for run in through]


@dataclasses.dataclass(frozen=True)
class Capture:
    """Where gradients of rank 0 are kept (float32[vectors, n], .npy), and of which iterations: every ``every``-th.

    At most :data:`netoffload.training.capture.MAX_VECTORS` vectors are kept.
    """

    path: Path
    every: int = 50

    def check(self, runs: Sequence[Planned]) -> None:
        """Refuse before anything is built.

        Raises:
            UsageError: several runs, no iteration to capture, or a file that cannot be written.
        """
        if len(runs) != 1:
            raise UsageError("gradients are captured of one exchange at a time")
        iterations = runs[0].settings.iterations
        if not 1 <= self.every <= iterations:
            raise UsageError(f"no gradient to capture: every {self.every} of {iterations} iterations")
        results.check_writable(self.path)

    def keep(self, result_folder: Path) -> None:
        """Move what rank 0 wrote to where it was asked for.

        Raises:
            UsageError: it cannot be written there.
        """
        try:
            shutil.move(result_folder / CAPTURE_FILE, self.path)
        except OSError as error:
            raise UsageError(f"cannot write {self.path}: {error}") from error
