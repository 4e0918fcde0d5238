"""Sums of a vector over all nodes: our collectives beside MPI's and torch's, with the octets they put on the wires.

Each contender is a job of ranks (``rank_allreduce``), started once per testbed; it checks the answer before it takes a
time. Contenders through NICs get a testbed with NICs. Others get one without NICs, which would take cores from them.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from netoffload import config
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.jobs import (
    ALLREDUCE_ARGUMENTS,
    DEFAULT,
    JOBS,
    SETUP_S,
    SLOWEST_OVER_BOUND,
    AllreduceRecord,
    AllreduceResult,
    installed,
)
from netoffload.lab.bench.settings import AllreduceSettings, check_nodes
from netoffload.lab.bench.vectors import gradients_argument
from netoffload.lab.declared import Column, Finding, Progress, Table, mega, numbers, words_of
from netoffload.lab.models.exchange import least_s
from netoffload.lab.results import decode_dataclass
from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan, new_run_id, prepared_ranks, run_ranks
from netoffload.lab.testbed.nics import NIC_IMPORTS

UNTIMED_CALLS: Final = 2
"""Calls before the timed ones: one is checked, one warms up."""


IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.lab.bench.jobs",
    "netoffload.collectives.reference",
    "netoffload.collectives.samples",
    "netoffload.transport.rounds.driver:prepare",
)
"""What the ranks of all contenders import; see :mod:`netoffload.lab.testbed.forks`."""


@dataclass(frozen=True)
class Failure(Finding):
    """A contender without a result."""

    what: str
    nodes: int
    reason: str | None


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
    results: list[AllreduceResult]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        rate_bps, nodes = self.configuration["rate_bps"], self.configuration["nodes"]
        rates = f"{config.format_rate(rate_bps)} (measured {config.format_rate(self.rate_bps_measured)})"
        names = "what times_s over_bound wire_octets ratio cpu_s"
        for octets in self.configuration["sizes_octets"]:
            of_size = [row for row in self.results if row.size_octets == octets]
            of_what = f"Allreduce of {mega(octets)} MB"
            for count in nodes:
                if rows := [row for row in of_size if row.nodes == count]:
                    title, caption = f"{of_what}, {count} nodes, {rates}", "median, min, max in ms"
                    yield Table.of(AllreduceResult, rows, title, only=names, caption=caption)
            if len(nodes) > 1 and not self.failed:
                yield self._growth(of_size, f"{of_what}, {rates}")
        for entry in self.failed:
            yield f"{entry.what}, {entry.nodes} nodes: missing: {entry.reason}"

    def remarks(self) -> Iterator[str]:
        """See :meth:`Finding.remarks`."""
        return (f"left out: {lack}" for lack in self.missing)

    def _growth(self, results: list[AllreduceResult], title: str) -> Table:
        """Return how each contender's median grows with the number of nodes: INCEPTIONN's Fig. 15."""
        cells = []
        for what in dict.fromkeys(row.what for row in results):
            medians_s = [row.median_s for row in results if row.what == what]
            cells.append([what, *map(config.format_ms, medians_s), f"{medians_s[-1] / medians_s[0]:.2f}x"])
        headings = numbers(*(f"{count} nodes" for count in self.configuration["nodes"]), "growth")
        caption = "median in ms; growth from first to last"
        return Table(title, [Column("what", is_words=True), *headings], cells, caption)


@dataclass
class _Part:
    """One number of nodes: its testbed, and what was found so far."""

    bed: TestbedSettings
    load_1min: float | None = None
    measured_bps: list[float] = field(default_factory=list)
    contenders: dict[str, Contender[AllreduceRecord]] = field(default_factory=dict)

    @property
    def records(self) -> dict[str, AllreduceRecord]:
        """What the ranks left, by contender."""
        return {name: made.samples[0] for name, made in self.contenders.items() if made.samples}


class Allreduce:
    """Every contender over every number of nodes; if one fails, the results of the others are reported."""

    def __init__(self, asked: AllreduceSettings) -> None:
        self._asked, self._names = asked, asked.what or installed() or DEFAULT
        self._sizes_octets = asked.sizes_octets
        self._parts = [_Part(bed) for bed in asked.beds()]
        of_ranks = replace(asked, gradients=gradients_argument(asked.gradients))
        self._rank_arguments = ["--rate", asked.rate, *words_of(of_ranks, ALLREDUCE_ARGUMENTS)]
        for name in self._names:
            config.check_choice("contender", name, tuple(JOBS))
            if (lack := JOBS[name].missing()) is not None:
                raise UsageError(lack)
        for nodes in asked.nodes:
            check_nodes(nodes)
        gradients_from(asked.gradients, asked.seed)

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        has_nics = any(JOBS[name].through_nic for name in self._names)
        with prepared_ranks((*IMPORTED, *(NIC_IMPORTS if has_nics else ()))):
            for part in self._parts:
                part.load_1min = os.getloadavg()[0]
                for through_nic in (False, True):
                    names = [name for name in self._names if JOBS[name].through_nic == through_nic]
                    if names:
                        self._run(part, names, through_nic, progress)

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        first, asked = self._parts[0], self._asked
        if not any(part.records for part in self._parts):
            return None
        assert first.bed.rate_bps is not None
        return Findings(
            configuration={
                **asdict(first.bed),
                "nodes": list(asked.nodes),
                "sizes_octets": list(self._sizes_octets),
                "repeat": asked.repeat,
                "gradients": asked.gradients,
                "seed": asked.seed,
            },
            rate_bps_measured=min(rate_bps for part in self._parts for rate_bps in part.measured_bps),
            load_1min=first.load_1min,
            failed=[
                Failure(name, part.bed.nodes, reason)
                for part in self._parts
                for name in self._names
                if name not in part.records
            ],
            missing=[lack for name in DEFAULT if (lack := JOBS[name].missing()) is not None],
            versions=_versions(first.records),
            bound_s=least_s(first.bed.nodes, self._sizes_octets[0], first.bed.rate_bps),
            results=[
                replace(part.records[name].results[index], what=name)
                for part in self._parts
                for index in range(len(self._sizes_octets))
                for name in self._names
                if name in part.records
            ],
        )

    def _run(self, part: _Part, names: list[str], through_nic: bool, progress: Progress) -> None:
        """Run the contenders of one kind of testbed."""
        nodes, nic = part.bed.nodes, part.bed.nic
        settings = part.bed if through_nic else replace(part.bed, nic=None)
        with Testbed(make_plan(settings, new_run_id()), progress=progress) as bed:
            assert bed.rate_bps_measured is not None  # two nodes at least, and probed
            part.measured_bps.append(bed.rate_bps_measured)

            def turn(name: str, _number: int) -> AllreduceRecord:
                job, out = JOBS[name], bed.make_scratch() / f"{name}.json"
                argv = ["-m", "netoffload.lab.bench.rank_allreduce", "--what", job.what, "--out", str(out)]
                argv += self._rank_arguments
                if job.is_inline and nic is not None:
                    argv += ["--codec", nic.codec, "--bound", str(nic.bound_k)]
                run_ranks(bed, range(nodes), argv, env=job.env, timeout_s=self._limit_s(part.bed), mpi=job.mpi)
                said = json.loads(out.read_text(encoding="utf-8"))
                return decode_dataclass(AllreduceRecord, said, f"the record of {name}")

            made = {name: Contender(name, functools.partial(turn, name)) for name in names}
            part.contenders |= made
            take_turns(
                made.values(), 1, on_turn=lambda name, _: progress(f"{nodes} nodes, {name}: checking, then timing")
            )

    def _limit_s(self, bed: TestbedSettings) -> float:
        """Return the time after which a contender is ended as hung."""
        assert bed.rate_bps is not None
        calls = self._asked.repeat + UNTIMED_CALLS
        calls_s = calls * sum(least_s(bed.nodes, octets, bed.rate_bps) for octets in self._sizes_octets)
        # The aggregator's link carries (p-1) vectors each way, one way after the other: p times the bound.
        return SETUP_S + (SLOWEST_OVER_BOUND + bed.nodes) * calls_s


def _versions(records: dict[str, AllreduceRecord]) -> dict[str, str]:
    """Return the versions behind the figures; each MPI has its own name."""
    merged: dict[str, str] = {}
    for name, record in records.items():
        merged |= {JOBS[name].mpi if key == "mpi" else key: version for key, version in record.versions.items()}
    return merged
