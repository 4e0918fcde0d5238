"""Sums of a vector over all nodes: our collectives beside MPI's and torch's, with the octets they put on the wires.

Each contender is a job of ranks (``rank_allreduce``), started once per testbed; it checks the answer before it takes a
time. Contenders through NICs get a testbed with NICs. Others get one without NICs, which would take cores from them.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from netoffload import config
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import Contender, Finding, Progress, take_turns
from netoffload.lab.bench.jobs import DEFAULT, JOBS, SETUP_S, SLOWEST_OVER_BOUND, least_s
from netoffload.lab.bench.records import AllreduceResult
from netoffload.lab.bench.vectors import gradients_argument
from netoffload.lab.results import decode_dataclass
from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan, new_run_id, prepared_ranks, run_ranks
from netoffload.lab.testbed.forks import NIC_IMPORTS

UNTIMED_CALLS: Final = 2
"""Calls before the timed ones: one is checked, one warms up."""


IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.lab.bench.jobs",
    "netoffload.collectives.reference",
    "netoffload.collectives.samples",
    "netoffload.transport.rounds.driver:prepare",
)
"""What the ranks of all contenders import; see :mod:`netoffload.lab.testbed.fork_server`."""


@dataclass(frozen=True)
class Asked:
    """One number of nodes, and what to sum over them.

    Raises:
        UsageError: it cannot be measured.
    """

    bed: TestbedSettings
    names: tuple[str, ...]
    sizes_octets: tuple[int, ...]
    repeat: int
    gradients: str
    seed: int

    def __post_init__(self) -> None:
        """Refuse before anything is built."""
        for name in self.names:
            config.check_choice("contender", name, tuple(JOBS))
            if (lack := JOBS[name].missing()) is not None:
                raise UsageError(lack)
        if self.bed.nodes < 2:
            raise UsageError(f"{self.bed.nodes} nodes exchange nothing: use at least 2")
        gradients_from(self.gradients, self.seed)

    @property
    def rank_arguments(self) -> list[str]:
        """The rank program's arguments."""
        sizes = [word for octets in self.sizes_octets for word in ("--size", str(octets))]
        gradients = gradients_argument(self.gradients)
        return ["--repeat", str(self.repeat), "--gradients", gradients, "--seed", str(self.seed), *sizes]

    @property
    def limit_s(self) -> float:
        """Time after which a contender is ended as hung."""
        calls_s = (self.repeat + UNTIMED_CALLS) * sum(self.bound_s(octets) for octets in self.sizes_octets)
        # The aggregator's link carries (p-1) vectors each way, one way after the other: p times the bound.
        return SETUP_S + (SLOWEST_OVER_BOUND + self.bed.nodes) * calls_s

    def bound_s(self, size_octets: int) -> float:
        """Return the least time of an allreduce."""
        assert self.bed.rate_bps is not None
        return least_s(self.bed.nodes, size_octets, self.bed.rate_bps)


@dataclass(frozen=True)
class Row(Finding):
    """One contender, number of nodes and size: what its ranks found, compared with the bound."""

    what: str
    nodes: int
    found: AllreduceResult
    bound_s: float

    @property
    def median_s(self) -> float:
        """The median time of a call."""
        return statistics.median(self.found.times_s)

    @property
    def over_bound(self) -> float:
        """The median over the least time."""
        return self.median_s / self.bound_s

    @property
    def ratio(self) -> float | None:
        """A ring's payload over the octets on all wires."""
        payload_octets = 2 * (self.nodes - 1) * self.found.size_octets  # of all nodes together
        return payload_octets / self.found.wire_octets if self.found.wire_octets else None

    @property
    def cpu_s(self) -> float:
        """CPU seconds of ranks and NICs."""
        return self.found.rank_cpu_s + (self.found.nic_cpu_s or 0.0)

    def to_record(self) -> dict[str, Any]:
        """Return the record."""
        record = self.found.to_record()
        times_s = record.pop("times_s")
        own = {"what": self.what, "nodes": self.nodes, "median_s": self.median_s, "bound_s": self.bound_s}
        own |= {"min_s": min(times_s), "max_s": max(times_s), "over_bound": self.over_bound, "ratio": self.ratio}
        return record | own


@dataclass(frozen=True)
class Failure(Finding):
    """A contender without a result."""

    what: str
    nodes: int
    reason: str | None


@dataclass(frozen=True)
class Growth:
    """How a contender's median time grows with the number of nodes: INCEPTIONN's Fig. 15."""

    what: str
    medians_s: tuple[float, ...]
    factor: float


@dataclass(frozen=True)
class Findings(Finding):
    """Everything that was measured; ``load_1min`` and ``bound_s`` belong to the first number of nodes and size."""

    configuration: dict[str, Any]
    rate_bps_measured: float
    load_1min: float | None
    failed: list[Failure]
    missing: list[str]
    versions: dict[str, str]
    bound_s: float
    results: list[Row]

    def rows(self, size_octets: int, nodes: int) -> list[Row]:
        """Return the results of one size and number of nodes."""
        return [row for row in self.results if (row.found.size_octets, row.nodes) == (size_octets, nodes)]

    def growth(self, size_octets: int) -> Iterator[Growth]:
        """Yield how the times of one size grow from the first number of nodes to the last."""
        rows = [row for row in self.results if row.found.size_octets == size_octets]
        for what in dict.fromkeys(row.what for row in rows):
            medians_s = tuple(row.median_s for row in rows if row.what == what)
            yield Growth(what, medians_s, medians_s[-1] / medians_s[0])


@dataclass
class _Part:
    """One number of nodes: what to measure, and what was found so far."""

    asked: Asked
    load_1min: float | None = None
    measured_bps: list[float] = field(default_factory=list)
    contenders: dict[str, Contender[dict[str, Any]]] = field(default_factory=dict)

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """What the ranks left, by contender."""
        return {name: made.samples[0] for name, made in self.contenders.items() if made.samples}


class Allreduce:
    """Every contender over every number of nodes; if one fails, the results of the others are reported."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        """Prepare one part per number of nodes, at least one."""
        self._parts = [_Part(one) for one in asked]

    def measure(self, progress: Progress) -> None:
        """Measure everything.

        Raises:
            TestbedError: a testbed cannot be built as asked for.
            RunError: a contender's ranks failed.
        """
        has_nics = any(JOBS[name].through_nic for part in self._parts for name in part.asked.names)
        with prepared_ranks((*IMPORTED, *(NIC_IMPORTS if has_nics else ()))):
            for part in self._parts:
                part.load_1min = os.getloadavg()[0]
                for through_nic in (False, True):
                    names = [name for name in part.asked.names if JOBS[name].through_nic == through_nic]
                    if names:
                        _run(part, names, through_nic, progress)

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        if not any(part.records for part in self._parts):
            return None
        first = self._parts[0].asked
        return Findings(
            configuration={
                **asdict(first.bed),
                "nodes": [part.asked.bed.nodes for part in self._parts],
                "sizes_octets": list(first.sizes_octets),
                "repeat": first.repeat,
                "gradients": first.gradients,
                "seed": first.seed,
            },
            rate_bps_measured=min(rate_bps for part in self._parts for rate_bps in part.measured_bps),
            load_1min=self._parts[0].load_1min,
            failed=[
                Failure(name, part.asked.bed.nodes, reason)
                for part in self._parts
                for name in part.asked.names
                if name not in part.records
            ],
            missing=[lack for name in DEFAULT if (lack := JOBS[name].missing()) is not None],
            versions=_versions(self._parts[0].records),
            bound_s=first.bound_s(first.sizes_octets[0]),
            results=[row for part in self._parts for row in _rows(part)],
        )


def _run(part: _Part, names: Sequence[str], through_nic: bool, progress: Progress) -> None:
    """Run the contenders of one kind of testbed."""
    asked = part.asked
    settings = asked.bed if through_nic else replace(asked.bed, nic=None)
    with Testbed(make_plan(settings, new_run_id()), progress=progress) as bed:
        assert bed.rate_bps_measured is not None  # two nodes at least, and probed
        part.measured_bps.append(bed.rate_bps_measured)

        def turn(name: str, _number: int) -> dict[str, Any]:
            job, out = JOBS[name], bed.make_scratch() / f"{name}.json"
            argv = [
                "-m",
                "netoffload.lab.bench.rank_allreduce",
                "--what",
                job.what,
                "--out",
                str(out),
                *asked.rank_arguments,
            ]
            if job.is_inline and asked.bed.nic is not None:
                argv += ["--codec", asked.bed.nic.codec, "--bound", str(asked.bed.nic.bound_k)]
            run_ranks(bed, range(asked.bed.nodes), argv, env=job.env, timeout_s=asked.limit_s, mpi=job.mpi)
            record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return record

        made = {name: Contender(name, functools.partial(turn, name)) for name in names}
        part.contenders |= made
        nodes = asked.bed.nodes
        take_turns(made.values(), 1, on_turn=lambda name, _: progress(f"{nodes} nodes, {name}: checking, then timing"))


def _versions(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the versions behind the figures; each MPI has its own name."""
    merged: dict[str, str] = {}
    for name, record in records.items():
        said = dict(record["versions"])
        library = said.pop("mpi")
        merged |= {**said, JOBS[name].mpi: library}
    return merged


def _rows(part: _Part) -> Iterator[Row]:
    """Yield the results, size by size."""
    for index in range(len(part.asked.sizes_octets)):
        for name in part.asked.names:
            if name in part.records:
                said = {"bound_s": None, **part.records[name]["results"][index]}
                result = decode_dataclass(AllreduceResult, said, f"the record of {name}")
                yield Row(name, part.asked.bed.nodes, result, part.asked.bound_s(result.size_octets))
