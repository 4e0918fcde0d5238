"""Sums of a vector over all nodes: our collectives beside MPI's and torch's, with the octets they put on the wires.

Each contender is a job of ranks (``rank_allreduce``), started once per testbed; it checks the answer before it takes a
time. Contenders through NICs get a testbed with NICs. Others get one without NICs, which would take cores from them.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from netoffload import config
from netoffload.errors import UsageError
from netoffload.lab.bench.jobs import (
    ALLREDUCE_ARGUMENTS,
    DEFAULT,
    JOBS,
    SETUP_S,
    SLOWEST_OVER_BOUND,
    AllreduceRecord,
    AllreduceResult,
    check_nodes,
    installed,
    rank_words,
    record_of_ranks,
)
from netoffload.lab.bench.settings import AllreduceSettings, parse_vector_octets
from netoffload.lab.declared import Finding, Progress, Table, mega, numbers, rates, words
from netoffload.lab.models.exchange import least_s
from netoffload.lab.models.gradients import gradients_from
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, prepared_ranks
from netoffload.lab.testbed.nics import NIC_IMPORTS
from netoffload.lab.units import format_ms, parse_rate_bps

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
        nodes, links = self.configuration["nodes"], rates(self.configuration["rate_bps"], self.rate_bps_measured)
        names = "what times_s over_bound wire_octets ratio cpu_s"
        for octets in self.configuration["sizes_octets"]:
            of_size = [row for row in self.results if row.size_octets == octets]
            of_what = f"Allreduce of {mega(octets)} MB"
            for count in nodes:
                if rows := [row for row in of_size if row.nodes == count]:
                    title, caption = f"{of_what}, {count} nodes, {links}", "median, min, max in ms"
                    yield Table.of(AllreduceResult, rows, title, only=names, caption=caption)
            if len(nodes) > 1 and not self.failed:
                yield self._growth(of_size, f"{of_what}, {links}")
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
            cells.append([what, *map(format_ms, medians_s), f"{medians_s[-1] / medians_s[0]:.2f}x"])
        headings = numbers(*(f"{count} nodes" for count in self.configuration["nodes"]), "growth")
        caption = "median in ms; growth from first to last"
        return Table(title, [words("what"), *headings], cells, caption)


class Allreduce:
    """Every contender over every number of nodes; if one fails, the results of the others are reported."""

    def __init__(self, asked: AllreduceSettings) -> None:
        self._asked, self._names = asked, asked.what or installed() or DEFAULT
        self._sizes_octets = tuple(map(parse_vector_octets, asked.size))
        self._rate_bps = parse_rate_bps(asked.rate)
        self._nic = NicSettings(asked.codec, asked.bound, asked.packing)
        self._beds = [TestbedSettings(nodes, self._rate_bps, asked.mtu, self._nic) for nodes in asked.nodes]
        self._rank_arguments = ["--rate", asked.rate, *rank_words(asked, ALLREDUCE_ARGUMENTS)]
        for name in self._names:
            config.check_choice("contender", name, tuple(JOBS))
            if (lack := JOBS[name].missing()) is not None:
                raise UsageError(lack)
        for nodes in asked.nodes:
            check_nodes(nodes)
        gradients_from(asked.gradients, asked.seed)
        self._load_1min = os.getloadavg()[0]
        self._measured_bps: list[float] = []
        self._records: dict[tuple[int, str], AllreduceRecord] = {}

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        has_nics = any(JOBS[name].through_nic for name in self._names)
        with prepared_ranks((*IMPORTED, *(NIC_IMPORTS if has_nics else ()))):
            for settings in self._beds:
                for through_nic in (False, True):
                    if names := [name for name in self._names if JOBS[name].through_nic == through_nic]:
                        self._run(settings if through_nic else replace(settings, nic=None), names, progress)

    def findings(self, reason: str | None) -> Findings | None:
        """Return what was found; None: nothing."""
        asked, records = self._asked, self._records
        if not records:
            return None
        versions: dict[str, str] = {}  # each MPI has its own name
        for (_, name), record in records.items():
            versions |= {JOBS[name].mpi if key == "mpi" else key: version for key, version in record.versions.items()}
        return Findings(
            configuration={
                **asdict(self._beds[0]),
                "nodes": list(asked.nodes),
                "sizes_octets": list(self._sizes_octets),
                "repeat": asked.repeat,
                "gradients": asked.gradients,
                "seed": asked.seed,
            },
            rate_bps_measured=min(self._measured_bps),
            load_1min=self._load_1min,
            failed=[
                Failure(name, nodes, reason)
                for nodes in asked.nodes
                for name in self._names
                if (nodes, name) not in records
            ],
            missing=[lack for name in DEFAULT if (lack := JOBS[name].missing()) is not None],
            versions=versions,
            bound_s=least_s(asked.nodes[0], self._sizes_octets[0], self._rate_bps),
            results=[
                replace(records[nodes, name].results[index], what=name)
                for nodes in asked.nodes
                for index in range(len(self._sizes_octets))
                for name in self._names
                if (nodes, name) in records
            ],
        )

    def _run(self, settings: TestbedSettings, names: list[str], progress: Progress) -> None:
        """Run the contenders of one kind of testbed."""
        nodes = settings.nodes
        calls_s = sum(least_s(nodes, octets, self._rate_bps) for octets in self._sizes_octets)
        # The aggregator's link carries (p-1) vectors each way, one way after the other: p times the bound.
        limit_s = SETUP_S + (SLOWEST_OVER_BOUND + nodes) * (self._asked.repeat + UNTIMED_CALLS) * calls_s
        with Testbed(make_plan(settings, new_run_id()), progress=progress) as bed:
            assert bed.rate_bps_measured is not None  # two nodes at least, and probed
            self._measured_bps.append(bed.rate_bps_measured)
            for name in names:
                progress(f"{nodes} nodes, {name}: checking, then timing")
                job = JOBS[name]
                argv = ["-m", "netoffload.lab.bench.rank_allreduce", "--what", job.what, *self._rank_arguments]
                if job.is_inline:
                    argv += ["--codec", self._nic.codec, "--bound", str(self._nic.bound_k)]
                self._records[nodes, name] = record_of_ranks(
                    AllreduceRecord, bed, argv, env=job.env, timeout_s=limit_s, mpi=job.mpi
                )
