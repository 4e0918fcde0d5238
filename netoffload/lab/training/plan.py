"""The plan of a series of runs: their order and what to keep. It refuses impossible plans before anything is built."""

import dataclasses
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.lab import results
from netoffload.lab.reports.summary import INLINE, VIA_NICS, variant_name
from netoffload.lab.results import Record
from netoffload.lab.testbed import NicSettings
from netoffload.lab.training import checkpoint
from netoffload.lab.training.capture import CAPTURE_FILE, LAYERS_FILE, check_tensorboard
from netoffload.lab.training.config import Checkpointing, TrainSettings

RECORD_FILE: Final = "record.json"  # file beside a checkpoint: the record of a finished run

BASELINES: Final = ("direct", "nic", "both")
"""How methods run that use no codec of a NIC: without NICs, through NICs that do not change their data, or both."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run, whether its testbed has NICs, and whether others differ from it in nothing but their seeds."""

    settings: TrainSettings
    has_nics: bool
    is_repeated: bool = False

    @property
    def name(self) -> str:
        """The run's name in reports, with its seed if runs differ only in seeds."""
        settings = self.settings
        way = INLINE if settings.is_inline else VIA_NICS if self.has_nics and not settings.compressed else ""
        method = variant_name(settings.method, settings) + way
        return f"{method} seed {settings.seed}" if self.is_repeated else method

    @property
    def folder(self) -> str:
        """The run's name and seed, as the name of a folder."""
        return dataclasses.replace(self, is_repeated=True).name.replace(" ", "-")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a text such as ``1,2,3``."""
    seeds = text.split(",")
    if not all(seed.isdecimal() for seed in seeds) or len({int(seed) for seed in seeds}) < len(seeds):
        raise UsageError(f"seeds {text!r}: write whole numbers with commas between them, each once, such as 1,2,3")
    return tuple(int(seed) for seed in seeds)


def plan_runs(runs: Sequence[TrainSettings], baselines: str = BASELINES[0]) -> list[Planned]:
    """Return the runs in the order in which they are done: those without NICs first."""
    check_choice("baselines", baselines, BASELINES)
    direct = [run for run in runs if run.is_inline or (not run.compressed and baselines != "nic")]
    through = [run for run in runs if not run.is_inline and (run.compressed or baselines != "direct")]
    is_repeated = len({run.seed for run in runs}) > 1
    return [Planned(run, False, is_repeated) for run in direct] + [Planned(run, True, is_repeated) for run in through]


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of a series of runs beside its records: the file of rank 0's gradients, and folders of all runs."""

    capture: Path | None = None
    capture_every: int = 50
    checkpoint: Path | None = None
    checkpoint_every: int = 100
    resume: bool = False
    tensorboard: Path | None = None

    def __post_init__(self) -> None:
        """Refuse to resume without checkpoints."""
        if self.resume and self.checkpoint is None:
            raise UsageError("--resume needs --checkpoint DIR, where the checkpoints are")
        if self.capture is None and self.capture_every != Outputs.capture_every:
            raise UsageError("--capture-every goes with --capture FILE")
        if self.checkpoint is None and self.checkpoint_every != Outputs.checkpoint_every:
            raise UsageError("--checkpoint-every goes with --checkpoint DIR")

    def check(self, runs: Sequence[Planned], nic: NicSettings | None) -> None:
        """Refuse before anything is built."""
        if self.capture is not None:
            if len(runs) != 1:
                raise UsageError("--capture keeps gradients of a single run: give one --exchange and one seed")
            every, iterations = self.capture_every, runs[0].settings.iterations
            if not 1 <= every <= iterations:
                raise UsageError(f"no gradient to capture every {every} of {iterations} iterations: choose fewer")
            results.check_writable(self.capture)
        if self.tensorboard is not None:
            check_tensorboard()
            _check_folder(self.tensorboard)
        if self.checkpoint is None:
            return
        if self.checkpoint_every < 1:
            raise UsageError(f"a checkpoint every {self.checkpoint_every} iterations: it must be at least 1")
        _check_folder(self.checkpoint)
        found = [checkpoint.find(asked) for run in runs if (asked := self.checkpointing(run, nic))]
        if self.resume and not any(found):
            there = sorted(path.parent.name for path in self.checkpoint.glob(f"*/{checkpoint.CHECKPOINT_FILE}"))
            only = f", but of {', '.join(there)}" if there else ""
            wanted = ", ".join(run.folder for run in runs)
            raise UsageError(f"{self.checkpoint} holds no checkpoint of {wanted}{only}: leave --resume out to begin")

    def checkpointing(self, run: Planned, nic: NicSettings | None) -> Checkpointing | None:
        """Return the place of a run's checkpoints; None: there are none."""
        if self.checkpoint is None:
            return None
        said = checkpoint.describe(run.settings, nic.codec if nic else None, nic.bound_k if nic else None)
        folder = (self.checkpoint / run.folder).absolute()
        return Checkpointing(str(folder), self.checkpoint_every, self.resume, said)

    def finished(self, run: Planned, nic: NicSettings | None) -> Record | None:
        """Return the record of a run that is finished according to its checkpoint; None: the run is not finished."""
        asked = self.checkpointing(run, nic)
        found = checkpoint.find(asked) if asked else None
        if asked is None or found is None:
            return None
        if found.iteration > run.settings.iterations:
            raise UsageError(
                f"the checkpoint of {run.name} is {found.iteration} iterations into the run, beyond "
                f"{run.settings.iterations}: ask for more --iterations, or remove {asked.folder} to begin anew"
            )
        enough = run.settings.stop_at_accuracy
        is_enough = enough is not None and found.accuracy is not None and found.accuracy >= enough
        if found.iteration < run.settings.iterations and not is_enough:
            return None
        path = Path(asked.folder) / RECORD_FILE
        if not path.exists():
            raise UsageError(
                f"{run.name} is over after {found.iteration} iterations and left no record: "
                f"remove {asked.folder} to do it again, or ask for more --iterations"
            )
        [record] = results.read_records(path)
        return record

    def keep(self, run: Planned, nic: NicSettings | None, record: Record) -> None:
        """Put the record of a finished run beside its checkpoint."""
        if asked := self.checkpointing(run, nic):
            line = results.to_line(record).encode() + b"\n"
            checkpoint.write_whole(Path(asked.folder) / RECORD_FILE, lambda file: file.write(line))

    def keep_capture(self, result_folder: Path) -> None:
        """Move rank 0's gradients to their file, and their description beside it."""
        if self.capture is None:
            return
        try:
            shutil.move(result_folder / CAPTURE_FILE, self.capture)
            shutil.move(result_folder / LAYERS_FILE, self.capture.with_suffix(".layers.json"))
        except OSError as error:
            raise UsageError(f"cannot write {self.capture}: {error}") from error


def _check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made or written into; leave nothing behind."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    try:
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        raise UsageError(f"cannot write into the folder {path}: {error.strerror}") from error


NO_OUTPUTS: Final = Outputs()
