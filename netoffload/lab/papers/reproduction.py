"""Does the steps of items: skips recorded ones, and says in one line why a step cannot be done."""

import contextlib
import datetime
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netoffload.errors import NetOffloadError, UsageError
from netoffload.lab import results
from netoffload.lab.machine import commit, cpu_model
from netoffload.lab.papers.item import FULL, HOW_TO_GET, Item, Setting, Step
from netoffload.lab.results import StepRecord
from netoffload.machine.environment import system_versions

OnStep = Callable[[str, float], None]  # called with the name of what begins and the share that is done


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder, and keep other programs that reproduce into it away: they would do the same steps."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            said = f"another program reproduces into {folder}: wait for its end, or name another --out"
            raise UsageError(said) from error
        yield
    finally:
        os.close(descriptor)  # this unlocks it


@dataclass(frozen=True)
class Missed:
    """A step that was not done: its item, the reason, and whether it was tried."""

    item: str
    step: str
    why: str
    is_failure: bool = False

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.item}: {self.step} {self.fate}: {self.why}"

    @property
    def fate(self) -> str:
        """What happened to it, in a word."""
        return "failed" if self.is_failure else "left out"


@dataclass(frozen=True)
class Reproduction:
    """A series of items; ``command`` is what the user typed, for the records."""

    items: Sequence[Item]
    folder: Path
    is_full: bool
    data: Mapping[str, Path]
    command: str

    @property
    def effort(self) -> str:
        """The effort in a word, for the records."""
        return FULL if self.is_full else "quick"

    def run(self, on_step: OnStep, on_news: OnStep = lambda _said, _share: None) -> list[Missed]:
        """Do every step that is not recorded, also after one that failed; return those that could not be done.

        ``on_step`` is called for every step that begins, ``on_news`` with the progress within a step.
        """
        missed = []
        with _locked(self.folder):
            steps = list(self.pending())
            for number, (item, step) in enumerate(steps):
                share = number / len(steps)
                if (why := self.lacks(step)) is not None:
                    missed.append(Missed(item.name, step.key, why))
                    continue
                on_step(f"{item.name}: {step.key}", share)
                try:
                    self._do(item, step, on_news, share)
                except NetOffloadError as error:
                    missed.append(Missed(item.name, step.key, str(error), is_failure=True))
        return missed

    def pending(self) -> Iterator[tuple[Item, Step]]:
        """Yield the steps that are not recorded with this effort."""
        for item in self.items:
            done = results.read_steps(self.folder, item.name)
            for step in item.steps(self.is_full):
                if step.key not in done or done[step.key].effort != self.effort:
                    yield item, step

    def lacks(self, step: Step) -> str | None:
        """Return what a step needs and does not have, in words; None: nothing."""
        if step.data is not None and (step.data not in self.data or not self.data[step.data].exists()):
            return f"it needs {HOW_TO_GET[step.data]}"
        if step.needs_root and os.geteuid() != 0:
            return "it builds a testbed: run it as root"
        return None

    def _do(self, item: Item, step: Step, on_news: OnStep, done: float) -> None:
        def say(said: str, share: float | None = None) -> None:
            del share  # of this step
            on_news(f"{item.name}: {step.key}: {said}", done)

        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        begun_s, load_1min = time.monotonic(), os.getloadavg()[0]
        setting = Setting(self.is_full, self.data, say)
        value = step.measure(setting)
        record = StepRecord(
            format=results.FORMAT,
            item=item.name,
            step=step.key,
            effort=self.effort,
            started=started,
            wall_s=round(time.monotonic() - begun_s, 3),
            load_1min=round(load_1min, 2),
            command=self.command,
            machine=f"{os.cpu_count()} cores of {cpu_model()}",
            commit=commit(),
            versions=system_versions(),
            settings=tuple(dict.fromkeys(setting.trained)),
            value=value,
        )
        results.append_step(self.folder, record)
