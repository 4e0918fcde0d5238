"""How much time communication and computation save by overlapping: steps of ``rank_overlap`` over a testbed."""

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from netoffload import config
from netoffload.errors import UsageError
from netoffload.lab.bench.jobs import (
    COMPUTE,
    OVERLAP_ARGUMENTS,
    SETUP_S,
    SLOWEST_OVER_BOUND,
    OverlapRecord,
    OverlapResult,
    lacks_mpich,
    rank_words,
    record_of_ranks,
)
from netoffload.lab.bench.settings import OverlapSettings, parse_vector_octets
from netoffload.lab.declared import AllOrNothing, Progress, Table, mega, rates
from netoffload.lab.models.exchange import least_s
from netoffload.lab.models.gradients import gradients_from
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id
from netoffload.lab.units import parse_rate_bps

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
        title = (
            f"{self.buckets} buckets of {mega(self.size_octets)} MB, {self.ranks} nodes, "
            f"{rates(self.configuration['rate_bps'], self.rate_bps_measured)}, "
            f"{'through NICs' if self.configuration['nic'] else 'plain wires'}"
        )
        yield Table.of(OverlapResult, self.results, title, caption="medians in ms")


class Overlap(AllOrNothing[Findings]):
    """One job of ranks that times every kind of computation."""

    def __init__(self, asked: OverlapSettings) -> None:
        rate_bps, octets = parse_rate_bps(asked.rate), parse_vector_octets(asked.size)
        nic = NicSettings(asked.codec, asked.bound) if asked.nic else None
        self._bed = TestbedSettings(asked.nodes, rate_bps, nic=nic)
        for kind in asked.compute:
            config.check_choice("compute", kind, COMPUTE)
        if asked.compute_ms is not None and not 0 < asked.compute_ms < math.inf:
            raise UsageError(f"compute-ms {asked.compute_ms:g} is no time: leave it out, or give more than 0")
        gradients_from(asked.gradients, asked.seed)
        self._rank_arguments = rank_words(asked, OVERLAP_ARGUMENTS)
        communication_s = asked.buckets * least_s(asked.nodes, octets, rate_bps)
        computation_s = asked.buckets * (asked.compute_ms or 0) / 1e3
        per_round_s = SLOWEST_OVER_BOUND * communication_s + asked.nodes * computation_s  # ranks may share one core
        self._limit_s = SETUP_S + STEPS_PER_ROUND * len(asked.compute) * asked.repeat * per_round_s

    def measure(self, progress: Progress) -> None:
        """Build a testbed and run the ranks on it."""
        if (lack := lacks_mpich()) is not None:
            raise UsageError(lack)
        load_1min = os.getloadavg()[0]
        with Testbed(make_plan(self._bed, new_run_id()), progress=progress) as bed:
            progress("timing")
            command = ["-m", "netoffload.lab.bench.rank_overlap", *self._rank_arguments]
            record = record_of_ranks(OverlapRecord, bed, command, timeout_s=self._limit_s)
            self.found = Findings(
                **vars(record),
                configuration=asdict(self._bed),
                rate_bps_measured=bed.rate_bps_measured,
                load_1min=load_1min,
            )
