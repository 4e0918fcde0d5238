"""The result of one rank, as a file for the parent process. It does not import MPI, because the parent has none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Final

from netoffload.errors import RunError
from netoffload.lab.results import ClassCounts, Traffic, Versions, decode_dataclass
from netoffload.methods import Sent

PROGRESS_FILE: Final = "progress"
"""File in the result folder with rank 0's latest :class:`Step`."""

STEP_OCTETS: Final = 128


@dataclasses.dataclass(frozen=True)
class Step:
    """The progress of a run: finished iterations, worker 0's loss, the latest accuracy (0..1); None: no finite one."""

    done: int
    loss: float | None = None
    accuracy: float | None = None

    @property
    def learnt(self) -> str:
        """The known ones of loss and accuracy, in words."""
        words = {"loss": self.loss, "accuracy": None if self.accuracy is None else 100 * self.accuracy}
        texts = [f"{name} {value:.3g}" for name, value in words.items() if value is not None]
        return ", ".join(texts) + (" %" if self.accuracy is not None else "")

    def tenths_of(self, iterations: int) -> int:
        """Return how many tenths of a run's iterations are finished."""
        return 10 * self.done // iterations

    def to_octets(self) -> bytes:
        """Return a line of a fixed length, so that it overwrites the previous one."""
        return json.dumps(dataclasses.asdict(self)).encode().ljust(STEP_OCTETS - 1) + b"\n"

    @classmethod
    def read(cls, folder: Path) -> Step | None:
        """Return the latest step; None: there is none yet."""
        try:
            return cls(**json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


@dataclasses.dataclass(frozen=True)
class Coded:
    """What a rank compressed by itself: octets before and after, floats by class, seconds."""

    raw_octets: int
    payload_octets: int
    classes: ClassCounts
    codec_s: float

    def __sub__(self, other: Coded) -> Coded:
        """Return the increase since ``other``."""
        now, then = dataclasses.astuple(self.classes), dataclasses.astuple(other.classes)
        return Coded(
            self.raw_octets - other.raw_octets,
            self.payload_octets - other.payload_octets,
            ClassCounts(*(after - before for after, before in zip(now, then, strict=True))),
            self.codec_s - other.codec_s,
        )


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds of one iteration of one rank.

    Attributes:
        forward_s: getting the batch, and forward up to the loss.
        update_s: update of the weights, if this rank does it.
        sum_s: adding gradients: a part of communicating or, with buckets, of ``backward_s``.
        hidden_s: time in which buckets travelled during backward, or activations during this rank's multiplications.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    sum_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of computing: forward, backward and update."""
        return self.forward_s + self.backward_s + self.update_s


@dataclasses.dataclass(frozen=True)
class RankOutcome:
    """The result of one rank; only rank 0 has ``accuracy`` to ``versions``, and ``loss_after``.

    ``sent``, ``compressed_octets``, ``no_gain_segments`` and ``coded`` count the timed iterations: what the rank handed
    to its sockets, octets of its tagged connections that its NIC compressed, segments that would not shrink, and what
    the rank compressed itself. Earlier commands did the first ``first_iteration`` iterations. ``peak_memory_octets`` is
    the largest resident memory, libraries included.
    """

    rank: int
    is_worker: bool
    wall_s: tuple[float, ...]
    parts: tuple[Parts, ...]
    sha256: str
    final_loss: float | None
    accuracy: float | None
    accuracy_after: dict[str, float]
    traffic: Traffic | None
    versions: Versions | None
    parameters: int
    sent: Sent
    compressed_octets: int
    no_gain_segments: int
    coded: Coded
    peak_memory_octets: int
    first_iteration: int = 0
    loss_after: dict[str, float] = dataclasses.field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the result into the result folder."""
        text = json.dumps(dataclasses.asdict(self), allow_nan=False)
        (folder / f"rank{self.rank}.json").write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankOutcome:
        """Read what a rank wrote."""
        path = folder / f"rank{rank}.json"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"rank {rank} did not leave its result: {error}") from error
        return decode_dataclass(cls, value, str(path))
