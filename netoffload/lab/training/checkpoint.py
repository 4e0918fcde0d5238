"""Checkpoints: a run's state in a folder, from which another command goes on bit for bit.

::

    DIR/inc+c-seed1/checkpoint.json        the run and its iteration; replaced last, so it names only complete files
                    iteration100/rank0.pt  replica, door's memory; one file per rank, because ranks differ
                                 rank1.pt
                    record.json            the record of a finished run

A file is written beside its place, flushed to the disk, and renamed. Then files of earlier iterations are removed. A
run that is killed at any moment leaves a complete checkpoint, or none.
"""

import contextlib
import dataclasses
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

from netoffload.collectives import Exchange, barrier
from netoffload.errors import UsageError
from netoffload.lab.results import decode_dataclass
from netoffload.lab.training.config import Checkpointing, TrainSettings

FORMAT: Final = 3
CHECKPOINT_FILE: Final = "checkpoint.json"
NOT_THE_RUN: Final = frozenset({"iterations", "data_dir", "eval_every", "stop_at_accuracy"})
"""Settings that may change when a run goes on."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of ``checkpoint.json``: what :func:`describe` says of the run, and its latest accuracy, 0..1."""

    format: int
    run: dict[str, str]
    iteration: int
    accuracy: float | None


def describe(settings: TrainSettings, codec: str | None, bound_k: int | None) -> dict[str, str]:
    """Return the settings that identify a run, as texts by name; a checkpoint with others is refused."""
    every = dataclasses.asdict(settings.resolved())
    said = {name: str(value) for name, value in every.items() if name not in NOT_THE_RUN and value is not None}
    return said | ({"codec": str(codec), "bound": str(bound_k)} if settings.compressed else {})


def find(asked: Checkpointing) -> Checkpoint | None:
    """Return the checkpoint of a run; None: there is none."""
    path = Path(asked.folder) / CHECKPOINT_FILE
    if not path.exists():
        return None
    if not asked.resume:
        raise UsageError(f"{asked.folder} holds a checkpoint: go on with --resume, or name another folder")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the checkpoint {path}: {error}") from error
    if isinstance(value, dict) and value.get("format") != FORMAT:
        raise UsageError(f"{path} has format {value.get('format')}; this version reads {FORMAT}")
    found = decode_dataclass(Checkpoint, value, str(path))
    both = {name: (found.run.get(name, "none"), asked.run.get(name, "none")) for name in {**found.run, **asked.run}}
    differs = "; ".join(f"its {name} is {then}, not {now}" for name, (then, now) in both.items() if then != now)
    if differs:
        raise UsageError(f"{asked.folder} is a checkpoint of another run: {differs}")
    return found


class Checkpoints:
    """One rank's side of a run's checkpoints; all ranks call each method together."""

    def __init__(self, asked: Checkpointing, exchange: Exchange) -> None:
        self._asked, self._exchange, self._folder = asked, exchange, Path(asked.folder)
        self.every = asked.every

    def save(self, state: dict[str, Any], done: int, accuracy: float | None) -> None:
        """Write this rank's state, tensors and plain values, and make it the run's checkpoint."""
        import torch  # only ranks need it; the command that starts them refuses wrong options without it

        inner = self._folder / f"iteration{done}"
        write_whole(inner / f"rank{self._exchange.rank}.pt", lambda file: torch.save(state, file))
        barrier(self._exchange)  # checkpoint.json may name this iteration only when every rank's file is on the disk
        if self._exchange.rank == 0:
            said = Checkpoint(FORMAT, self._asked.run, done, accuracy)
            octets = json.dumps(dataclasses.asdict(said), indent=2).encode()
            write_whole(self._folder / CHECKPOINT_FILE, lambda file: file.write(octets))
            for older in self._folder.glob("iteration*"):
                if older != inner:
                    shutil.rmtree(older, ignore_errors=True)
        barrier(self._exchange)

    def load(self) -> dict[str, Any] | None:
        """Return the state that this rank saved; None: the run has no checkpoint, or does not resume."""
        import torch

        found = find(self._asked)
        if found is None:
            return None
        path = self._folder / f"iteration{found.iteration}" / f"rank{self._exchange.rank}.pt"
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(f"cannot read the checkpoint {path}: {reason}") from error
        return state


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, and rename it when it is complete on the disk; make missing folders."""
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, RuntimeError) as error:  # torch turns a full disk into a RuntimeError
        raise UsageError(f"cannot write the checkpoint {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
