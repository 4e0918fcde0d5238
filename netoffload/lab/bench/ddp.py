"""Training under torch's DDP over shaped links: time, octets and accuracy of its own exchange, its hooks and ours.

All contenders without NICs take turns in one job of ranks (``rank_ddp``). For each NIC codec there is one more job, on
a testbed with NICs. In each job replicas that exchange nothing take turns as well. A contender's communication is the
time by which its step is longer than theirs. That includes waiting for slower ranks, compressing, and the hook's own
work, but not what is hidden behind backward.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from netoffload.config import check_bound_k, check_choice
from netoffload.environment import cpu_model
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import Finding, Progress
from netoffload.lab.bench.jobs import ALONE, DDP_HOOKS
from netoffload.lab.bench.rank_ddp import UNTIMED_STEPS
from netoffload.lab.bench.records import DdpRecord
from netoffload.lab.results import decode_dataclass
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, run_ranks
from netoffload.lab.training import data
from netoffload.lab.training.config import RankJob, TrainSettings
from netoffload.lab.training.dataset import save
from netoffload.lab.training.run import time_limit_s

REFERENCE: Final = "fp16"
"""The contender whose octets all others are compared with: the fewest that torch's own hooks send reliably."""

QUIET: Final = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Hides gloo's warnings about host names that it cannot look up."""


@dataclass(frozen=True)
class Asked:
    """What to train, where, and with which hooks.

    Attributes:
        bed: settings of the testbed without NICs.
        settings: settings of the training; their method is not used.
        names: contenders, of :data:`~netoffload.lab.bench.jobs.DDP_HOOKS`.
        rounds: number of rounds into which the steps are cut; contenders take turns in each.
        bound_k: error bound 2^-bound_k of the codecs.

    Raises:
        UsageError: it cannot be measured.
    """

    bed: TestbedSettings
    settings: TrainSettings
    names: tuple[str, ...]
    rounds: int
    bound_k: int

    def __post_init__(self) -> None:
        """Refuse before anything is built."""
        for name in self.names:
            check_choice("contender", name, tuple(DDP_HOOKS))
        check_bound_k(self.bound_k)
        if self.bed.nodes < 2:
            raise UsageError(f"{self.bed.nodes} nodes exchange nothing: use at least 2")
        if self.settings.iterations < UNTIMED_STEPS + self.rounds:
            raise UsageError(
                f"{self.settings.iterations} steps are too few: {UNTIMED_STEPS} are not timed, and each of "
                f"{self.rounds} rounds needs one"
            )

    def jobs(self) -> Iterator[tuple[str | None, list[str]]]:
        """Yield the codec of the NICs (None: no NICs) and the contenders of each job that has some."""
        for codec in dict.fromkeys([None, *(hook.nic_codec for hook in DDP_HOOKS.values())]):
            if names := [name for name in self.names if DDP_HOOKS[name].nic_codec == codec]:
                yield codec, names


@dataclass(frozen=True)
class Row(Finding):
    """One contender; times are medians over the steps.

    Attributes:
        what: its name.
        s_per_iteration: of a step.
        compute_s: of a step in which nothing travels, in the same job.
        communicate_s: what the first takes longer.
        wire_bytes_per_iteration: on all wires, headers included.
        ratio_to_fp16: octets of the fp16 hook for each of this one; None: that was not measured.
        payload_ratio: octets of a plain ring for each that our hook sent, headers excluded; None: another hook.
        accuracy: accuracy on the test set, after the last step.
        loss: loss of rank 0's last batch.
        times_s: times of every step.
    """

    what: str
    s_per_iteration: float
    compute_s: float
    communicate_s: float
    wire_bytes_per_iteration: float
    ratio_to_fp16: float | None
    payload_ratio: float | None
    accuracy: float
    loss: float
    times_s: tuple[float, ...]


@dataclass(frozen=True)
class Findings(Finding):
    """Everything that was measured; ``failed`` has the contenders without a result, and why."""

    configuration: dict[str, Any]
    rate_bps_measured: float
    load_1min: float
    cpu: str
    versions: dict[str, str]
    failed: dict[str, str | None]
    results: list[Row]


class Ddp:
    """Every contender's training; if a job fails, the results of the others are reported."""

    def __init__(self, asked: Asked) -> None:
        """Prepare; nothing is built yet."""
        self._asked = asked
        self._records: list[DdpRecord] = []
        self._measured_bps: list[float] = []
        self._load_1min = os.getloadavg()[0]

    def measure(self, progress: Progress) -> None:
        """Measure everything.

        Raises:
            UsageError: the data cannot be read.
            TestbedError: a testbed cannot be built as asked for.
            RunError: the ranks failed, or replicas differ.
        """
        with tempfile.TemporaryDirectory(prefix="netoffload-ddp-") as name:
            save(data.load(self._asked.settings), Path(name))
            for codec, names in self._asked.jobs():
                self._run(Path(name), codec, names, progress)

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        if not self._records:
            return None
        asked, found = self._asked, list(rows(self._records))
        return Findings(
            configuration={
                **asdict(asked.bed),
                "training": asdict(asked.settings.resolved()),
                "repeat": asked.rounds,
                "bound_k": asked.bound_k,
            },
            rate_bps_measured=min(self._measured_bps),
            load_1min=self._load_1min,
            cpu=cpu_model(),
            versions=self._records[0].versions,
            failed={name: reason for name in asked.names if name not in [row.what for row in found]},
            results=found,
        )

    def _run(self, folder: Path, codec: str | None, names: list[str], progress: Progress) -> None:
        asked = self._asked
        nic = None if codec is None else NicSettings(codec, asked.bound_k)
        with Testbed(make_plan(replace(asked.bed, nic=nic), new_run_id()), progress=progress) as bed:
            assert bed.rate_bps_measured is not None  # two nodes at least, and probed
            job, out = folder / "job.json", folder / "record.json"
            RankJob(asked.settings, str(folder), bound_k=asked.bound_k).write(job)
            argv = ["-m", "netoffload.lab.bench.rank_ddp", "--job", str(job), "--out", str(out)]
            argv += ["--rounds", str(asked.rounds), *(word for name in names for word in ("--what", name))]
            limit_s = (1 + len(names)) * time_limit_s(asked.settings, asked.bed.rate_bps)

            def told(_rank: int, lines: bytes) -> None:
                progress(lines.decode(errors="replace").splitlines()[-1])

            run_ranks(bed, range(asked.bed.nodes), argv, env=QUIET, timeout_s=limit_s, on_stdout=told)
            said = json.loads(out.read_text(encoding="utf-8"))
            self._records.append(decode_dataclass(DdpRecord, said, "the ranks' record"))
            self._measured_bps.append(bed.rate_bps_measured)


def rows(records: list[DdpRecord]) -> Iterator[Row]:
    """Yield the results of all jobs, each compared with its job's steps without communication."""
    octets = {result.what: result.wire_octets for record in records for result in record.results}
    for record in records:
        medians_s = {result.what: statistics.median(result.times_s) for result in record.results}
        for result in record.results:
            if result.accuracy is not None:
                yield Row(
                    what=result.what,
                    s_per_iteration=medians_s[result.what],
                    compute_s=medians_s[ALONE],
                    communicate_s=max(0.0, medians_s[result.what] - medians_s[ALONE]),
                    wire_bytes_per_iteration=result.wire_octets,
                    ratio_to_fp16=octets[REFERENCE] / result.wire_octets if REFERENCE in octets else None,
                    payload_ratio=result.payload_ratio,
                    accuracy=result.accuracy,
                    loss=result.loss,
                    times_s=result.times_s,
                )
