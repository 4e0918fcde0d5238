"""How much time communication and computation save by overlapping: steps of ``rank_overlap`` over a testbed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from netoffload import config
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError
from netoffload.lab.bench.jobs import (
    COMPUTE,
    OVERLAP_ARGUMENTS,
    SETUP_S,
    SLOWEST_OVER_BOUND,
    OverlapRecord,
    OverlapResult,
    lacks_mpich,
)
from netoffload.lab.bench.settings import OverlapSettings, parse_vector_octets
from netoffload.lab.bench.vectors import gradients_argument
from netoffload.lab.declared import AllOrNothing, Progress, Table, mega, words_of
from netoffload.lab.models.exchange import least_s
from netoffload.lab.results import decode_dataclass
from netoffload.lab.testbed import Testbed, make_plan, new_run_id, run_ranks

STEPS_PER_ROUND: Final = 6
"""Step times per round: one step computes, one communicates, two do both; the rest is for the warm-up."""


@dataclass(frozen=True)
class Findings(OverlapRecord):
    """What the ranks left, and what they ran on."""

    configuration: dict[str, Any]
    rate_bps_measured: float | None
    load_1min: float

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`~netoffload.lab.declared.Finding.shown`."""
        measured = "-" if self.rate_bps_measured is None else config.format_rate(self.rate_bps_measured)
        title = (
            f"{self.buckets} buckets of {mega(self.size_octets)} MB, {self.ranks} nodes, "
            f"{config.format_rate(self.configuration['rate_bps'])} (measured {measured}), "
            f"{'through NICs' if self.configuration['nic'] else 'plain wires'}"
        )
        yield Table.of(OverlapResult, self.results, title, caption="medians in ms")


class Overlap(AllOrNothing[Findings]):
    """One job of ranks that times every kind of computation."""

    def __init__(self, asked: OverlapSettings) -> None:
        self._asked, self._bed, octets = asked, asked.bed(), parse_vector_octets(asked.size)
        for kind in asked.compute:
            config.check_choice("compute", kind, COMPUTE)
        if asked.compute_ms is not None and not 0 < asked.compute_ms < math.inf:
            raise UsageError(f"compute-ms {asked.compute_ms:g} is no time: leave it out, or give more than 0")
        gradients_from(asked.gradients, asked.seed)
        of_ranks = replace(asked, gradients=gradients_argument(asked.gradients))
        self._rank_arguments = words_of(of_ranks, OVERLAP_ARGUMENTS)
        assert self._bed.rate_bps is not None
        communication_s = asked.buckets * least_s(asked.nodes, octets, self._bed.rate_bps)
        computation_s = asked.buckets * (asked.compute_ms or 0) / 1e3
        per_round_s = SLOWEST_OVER_BOUND * communication_s + asked.nodes * computation_s  # ranks may share one core
        self._limit_s = SETUP_S + STEPS_PER_ROUND * len(asked.compute) * asked.repeat * per_round_s

    def measure(self, progress: Progress) -> None:
        """Build a testbed and run the ranks on it."""
        if (lack := lacks_mpich()) is not None:
            raise UsageError(lack)
        load_1min = os.getloadavg()[0]
        with Testbed(make_plan(self._bed, new_run_id()), progress=progress) as bed:
            out = bed.make_scratch() / "overlap.json"
            progress("timing")
            command = ["-m", "netoffload.lab.bench.rank_overlap", "--out", str(out), *self._rank_arguments]
            run_ranks(bed, range(self._asked.nodes), command, timeout_s=self._limit_s)
            said = json.loads(out.read_text(encoding="utf-8"))
            record = decode_dataclass(OverlapRecord, said, "the ranks' record")
            self.found = Findings(
                **vars(record),
                configuration=asdict(self._bed),
                rate_bps_measured=bed.rate_bps_measured,
                load_1min=load_1min,
            )
