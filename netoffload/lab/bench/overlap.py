"""How much time communication and computation save by overlapping: steps of ``rank_overlap`` over a testbed."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Final

from netoffload import config
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import AllOrNothing, Progress
from netoffload.lab.bench.jobs import COMPUTE, SETUP_S, SLOWEST_OVER_BOUND, lacks_mpich, least_s
from netoffload.lab.bench.records import OverlapRecord
from netoffload.lab.bench.vectors import gradients_argument
from netoffload.lab.results import decode_dataclass
from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan, new_run_id, run_ranks

STEPS_PER_ROUND: Final = 6
"""Step times per round: one step computes, one communicates, two do both; the rest is for the warm-up."""


@dataclass(frozen=True)
class Asked:
    """What the ranks time.

    Attributes:
        bed: settings of the testbed.
        kinds: kinds of computation, of ``jobs.COMPUTE``.
        buckets: vectors that a step computes and sums.
        size_octets: length of each vector.
        compute_ms: computation per bucket; None: as long as communicating one takes.
        repeat: timed rounds.
        gradients: the values, as ``gradients_from`` takes them.
        seed: seed of the values.

    Raises:
        UsageError: it cannot be timed.
    """

    bed: TestbedSettings
    kinds: tuple[str, ...]
    buckets: int
    size_octets: int
    compute_ms: float | None
    repeat: int
    gradients: str
    seed: int

    def __post_init__(self) -> None:
        """Refuse before anything is built."""
        for kind in self.kinds:
            config.check_choice("compute", kind, COMPUTE)
        if self.compute_ms is not None and not 0 < self.compute_ms < math.inf:
            raise UsageError(f"compute-ms {self.compute_ms:g} is no time: leave it out, or give more than 0")
        gradients_from(self.gradients, self.seed)

    @property
    def rank_arguments(self) -> list[str]:
        """The rank program's arguments."""
        numbers = {"--buckets": self.buckets, "--size": self.size_octets, "--repeat": self.repeat, "--seed": self.seed}
        words = [word for name, number in numbers.items() for word in (name, str(number))]
        words += [word for kind in self.kinds for word in ("--compute", kind)]
        words += [] if self.compute_ms is None else ["--compute-ms", str(self.compute_ms)]
        return [*words, "--gradients", gradients_argument(self.gradients)]

    @property
    def limit_s(self) -> float:
        """Time after which the ranks are ended as hung."""
        assert self.bed.rate_bps is not None
        communication_s = self.buckets * least_s(self.bed.nodes, self.size_octets, self.bed.rate_bps)
        computation_s = self.buckets * (self.compute_ms or 0) / 1e3
        # Ranks may share one core.
        per_round_s = SLOWEST_OVER_BOUND * communication_s + self.bed.nodes * computation_s
        return SETUP_S + STEPS_PER_ROUND * len(self.kinds) * self.repeat * per_round_s


@dataclass(frozen=True)
class Findings(OverlapRecord):
    """What the ranks left, and what they ran on."""

    configuration: dict[str, Any]
    rate_bps_measured: float | None
    load_1min: float


class Overlap(AllOrNothing[Findings]):
    """One job of ranks that times every kind of computation."""

    def __init__(self, asked: Asked) -> None:
        """Prepare; nothing is built yet."""
        self._asked = asked

    def measure(self, progress: Progress) -> None:
        """Build a testbed and run the ranks on it.

        Raises:
            UsageError: there is no MPI.
            TestbedError: the testbed cannot be built as asked for.
            RunError: the ranks failed.
        """
        if (lack := lacks_mpich()) is not None:
            raise UsageError(lack)
        asked, load_1min = self._asked, os.getloadavg()[0]
        with Testbed(make_plan(asked.bed, new_run_id()), progress=progress) as bed:
            out = bed.make_scratch() / "overlap.json"
            progress("timing")
            command = ["-m", "netoffload.lab.bench.rank_overlap", "--out", str(out), *asked.rank_arguments]
            run_ranks(bed, range(asked.bed.nodes), command, timeout_s=asked.limit_s)
            said = json.loads(out.read_text(encoding="utf-8"))
            record = decode_dataclass(OverlapRecord, said, "the ranks' record")
            self.found = Findings(
                **vars(record),
                configuration=asdict(asked.bed),
                rate_bps_measured=bed.rate_bps_measured,
                load_1min=load_1min,
            )
