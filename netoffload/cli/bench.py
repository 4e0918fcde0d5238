"""``netoffload bench allreduce``: collectives over shaped links beside others, with the octets they sent."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import TIGHT, add_columns, app, console, notes, progress_line, told_anyway
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError
from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, run_ranks
from netoffload.testbed.launch_backends import find_openmpi
from netoffload.testbed.plan import NODE_DEVICE

bench_app = typer.Typer(no_args_is_help=True, help="Time collectives over emulated links, codecs, and NICs.")
app.add_typer(bench_app, name="bench")


@dataclass(frozen=True)
class Contender:
    """Something to time.

    Attributes:
        rank_what: what the rank program calls it.
        through_nic: over emulated NICs. Others get a testbed without: NICs take cores, which on one machine would slow
            them down.
        env: of the ranks.
        mpi: who starts the ranks.
        program: the module that they run.
        missing: says what it lacks on this machine, None if nothing.
    """

    rank_what: str
    through_nic: bool = False
    env: dict[str, str] = field(default_factory=dict)
    mpi: str = "mpich"
    program: str = "netoffload_mpi.bench"
    missing: Callable[[], str | None] = lambda: None


def _lacks_openmpi() -> str | None:
    return None if find_openmpi() else "openmpi needs Open MPI 5: see `netoffload run --mpi openmpi`"


def _lacks_torch() -> str | None:
    return None if find_spec("torch") else "gloo needs torch: pip install 'netoffload[train]'"


CONTENDERS: Final = {
    "ring": Contender("ring"),
    "ring_nic": Contender("ring", through_nic=True),
    "ring_comp": Contender("ring_comp", through_nic=True),
    "wa": Contender("wa"),
    "wa_comp": Contender("wa_comp", through_nic=True),
    "hierarchical_comp": Contender("hierarchical_comp", through_nic=True),
    "mpich": Contender("mpi", env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"}),
    "mpich_ring": Contender("mpi", env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}),
    "openmpi": Contender(
        "mpi", env={"OMPI_MCA_coll_tuned_use_dynamic_rules": "0"}, mpi="openmpi", missing=_lacks_openmpi
    ),
    "openmpi_ring": Contender("mpi", mpi="openmpi", missing=_lacks_openmpi),
    "gloo": Contender(
        "gloo",
        env={"GLOO_SOCKET_IFNAME": NODE_DEVICE, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        missing=_lacks_torch,
    ),
}
"""Our ring untagged, the same through the NICs, tagged; a worker-aggregator exchange, untagged and with its gradients
tagged; rings of rings; MPICH and Open MPI, each with the algorithm it chooses and with its ring; torch's gloo."""

DEFAULT: Final = tuple(name for name in CONTENDERS if name not in ("ring_nic", "openmpi_ring"))

SETUP_S: Final = 60.0
"""Allowance for starting ranks, drawing gradients and comparing answers."""

SLOWEST_OVER_BOUND: Final = 20.0
"""A call may take this many times its bound before the run is ended as hung."""

UNTIMED_CALLS: Final = 2
"""One that is checked, one that warms up."""


@bench_app.callback()
def _bench() -> None:
    """Time collectives over emulated links, codecs, and NICs."""


@bench_app.command()
def allreduce(
    nodes: Annotated[
        list[int] | None,
        typer.Option("--nodes", "-n", help="Ranks, one per node: 4 (default); repeat to see how times grow."),
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit, 2.5gbit.")] = "1gbit",
    size: Annotated[
        list[str] | None, typer.Option(help="Octets of the vector: 25MB (default), 64KiB; repeat for several.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed calls of each; one more warms up.")] = 5,
    what: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(CONTENDERS)}; repeat for several; default: all that is installed, without ring_nic "
            "and openmpi_ring."
        ),
    ] = None,
    gradients: Annotated[
        str, typer.Option(help="Values: gaussian:STANDARD_DEVIATION, or a float32 .npy file.")
    ] = "gaussian:0.002",
    bound: Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")] = config.BOUND_K_DEFAULT,
    codec: Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")] = "inceptionn",
    packing: Annotated[str, typer.Option(help=f"Packing: {', '.join(config.PACKINGS)}.")] = "coalesced",
    mtu: Annotated[int, typer.Option(help="MTU of every link in octets.")] = 1500,
    seed: Annotated[int, typer.Option(min=0, help="Of the values.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Sum a float32 vector over all nodes: our collectives beside MPICH, Open MPI and torch's gloo.

    What ends in _nic or _comp goes through emulated NICs, which share the
    cores with the ranks; all else runs over plain wires. wa: rank 0 is a
    worker and the aggregator; of wa_comp only the gradients are tagged.
    mpich and openmpi choose their algorithm, mpich_ring and openmpi_ring are
    told to use a ring.

    The answer is checked before a time is taken. Of short vectors, up to
    32 KiB from all other ranks, 100 calls in a row are timed together, and
    the time is that of one. The bound is
    2(p-1)/p · size / rate: a ring whose links carry payload only. Headers
    alone cost 1.046 of it. Octets are those on all wires; the ratio is a
    ring's payload over octets. CPU seconds are those of all ranks and of all
    NICs together, per call. What is measured already is reported even if
    something later cannot be measured.

    Example: netoffload bench allreduce --nodes 4 --rate 1gbit --size 25MB --json

    Example: netoffload bench allreduce -n 2 --size 1KiB --what ring --what mpich

    Example: netoffload bench allreduce -n 4 -n 8 --rate 200mbit --what ring --what wa
    """
    names = tuple(dict.fromkeys(what or (name for name in DEFAULT if CONTENDERS[name].missing() is None)))
    nic = NicSettings(codec, bound, packing)
    rate_bps = config.parse_rate_bps(rate)
    sizes = tuple(config.parse_size_octets(text) // 4 * 4 for text in size or ["25MB"])
    beds = [TestbedSettings(nodes=count, rate_bps=rate_bps, mtu=mtu, nic=nic) for count in dict.fromkeys(nodes or [4])]
    parts = [Part(Bench(bed, names, sizes, repeat, gradients, seed)) for bed in beds]
    with told_anyway(lambda reason: _tell(parts, reason, as_json=as_json)):
        for part in parts:
            _measure(part)


@dataclass(frozen=True)
class Bench:
    """What a person asked for.

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
            config.check_choice("contender", name, tuple(CONTENDERS))
            if (lack := CONTENDERS[name].missing()) is not None:
                raise UsageError(lack)
        if self.bed.nodes < 2:
            raise UsageError(f"{self.bed.nodes} nodes exchange nothing: use at least 2")
        if 0 in self.sizes_octets:
            raise UsageError("size is less than one float32, 4 octets")
        gradients_from(self.gradients, self.seed)

    @property
    def rank_arguments(self) -> list[str]:
        """What the rank program is told."""
        sizes = [word for octets in self.sizes_octets for word in ("--size", str(octets))]
        gradients = str(Path(self.gradients).absolute()) if Path(self.gradients).exists() else self.gradients
        return ["--repeat", str(self.repeat), "--gradients", gradients, "--seed", str(self.seed), *sizes]

    @property
    def limit_s(self) -> float:
        """Time after which a contender is ended as hung."""
        calls_s = (self.repeat + UNTIMED_CALLS) * sum(self.bound_s(octets) for octets in self.sizes_octets)
        # The aggregator's link carries (p-1) vectors each way, one way after the other: p times the bound.
        return SETUP_S + (SLOWEST_OVER_BOUND + self.bed.nodes) * calls_s

    def bound_s(self, size_octets: int) -> float:
        """Return the least time of an allreduce: 2(p-1)/p · size / rate."""
        assert self.bed.rate_bps is not None
        return 2 * (self.bed.nodes - 1) / self.bed.nodes * size_octets * 8 / self.bed.rate_bps


@dataclass
class Part:
    """One number of nodes, and what was found so far.

    Attributes:
        bench: what to measure.
        load_1min: load average when it began.
        measured_bps: the wires' rate in each testbed.
        records: what the ranks left, by contender.
    """

    bench: Bench
    load_1min: float | None = None
    measured_bps: list[float] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)


def _tell(parts: list[Part], reason: str | None, *, as_json: bool) -> None:
    """Print what was found, if anything was, and what was not."""
    if not any(part.records for part in parts):
        return
    report = _together([_report(part, reason) for part in parts])
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)


def _measure(part: Part) -> None:
    """Run every contender."""
    part.load_1min = os.getloadavg()[0]
    for through_nic in (False, True):
        if any(CONTENDERS[name].through_nic == through_nic for name in part.bench.names):
            _run(part, through_nic)


def _report(part: Part, reason: str | None) -> dict[str, Any]:
    """Return the report of what was found; ``reason`` is why it may not be everything."""
    bench, records = part.bench, part.records
    return {
        "configuration": {
            **asdict(bench.bed),
            "sizes_octets": list(bench.sizes_octets),
            "repeat": bench.repeat,
            "gradients": bench.gradients,
            "seed": bench.seed,
        },
        "rate_bps_measured": min(part.measured_bps, default=None),
        "load_1min": part.load_1min,
        "failed": [
            {"what": name, "nodes": bench.bed.nodes, "reason": reason} for name in bench.names if name not in records
        ],
        "missing": [lack for name in DEFAULT if (lack := CONTENDERS[name].missing()) is not None],
        "versions": _versions(records),
        "bound_s": bench.bound_s(bench.sizes_octets[0]),
        "results": [
            _summary(bench, name, records[name]["results"][index])
            for index in range(len(bench.sizes_octets))
            for name in bench.names
            if name in records
        ],
    }


def _run(part: Part, through_nic: bool) -> None:
    """Run the contenders of one kind of testbed, and keep their records."""
    bench = part.bench
    settings = bench.bed if through_nic else replace(bench.bed, nic=None)
    names = [name for name in bench.names if CONTENDERS[name].through_nic == through_nic]
    with (
        progress_line() as progress,
        Testbed(make_plan(settings, new_run_id()), progress=progress) as bed,
    ):
        assert bed.rate_bps_measured is not None  # two nodes at least, and probed
        part.measured_bps.append(bed.rate_bps_measured)
        folder = bed.make_scratch()
        for name in names:
            progress(f"{bench.bed.nodes} nodes, {name}: checking, then timing")
            out = folder / f"{name}.json"
            one = CONTENDERS[name]
            argv = ["-m", one.program, "--what", one.rank_what, "--out", str(out), *bench.rank_arguments]
            run_ranks(bed, range(bench.bed.nodes), argv, env=one.env, timeout_s=bench.limit_s, mpi=one.mpi)
            part.records[name] = json.loads(out.read_text(encoding="utf-8"))


def _together(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Make one report of those of several numbers of nodes."""
    first = reports[0]
    measured_bps = [report["rate_bps_measured"] for report in reports]
    return {
        **first,
        "configuration": {
            **first["configuration"],
            "nodes": [report["configuration"]["nodes"] for report in reports],
        },
        "rate_bps_measured": min(rate_bps for rate_bps in measured_bps if rate_bps is not None),
        "failed": [entry for report in reports for entry in report["failed"]],
        "results": [result for report in reports for result in report["results"]],
    }


def _versions(records: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what the figures were made with; each MPI under its own name."""
    merged: dict[str, str] = {}
    for name, record in records.items():
        said = dict(record["versions"])
        library = said.pop("mpi")
        merged |= {**said, CONTENDERS[name].mpi: library}
    return merged


def _summary(bench: Bench, name: str, result: dict[str, Any]) -> dict[str, Any]:
    times_s, octets = result["times_s"], result["size_octets"]
    median_s, least_s = statistics.median(times_s), bench.bound_s(octets)
    payload_octets = 2 * (bench.bed.nodes - 1) * octets  # of all nodes together
    wire_octets = result["wire_octets"]
    return {
        "what": name,
        "nodes": bench.bed.nodes,
        "size_octets": octets,
        "median_s": median_s,
        "min_s": min(times_s),
        "max_s": max(times_s),
        "bound_s": least_s,
        "over_bound": median_s / least_s,
        "wire_octets": wire_octets,
        "ratio": payload_octets / wire_octets if wire_octets else None,
        "rank_cpu_s": result["rank_cpu_s"],
        "nic_cpu_s": result["nic_cpu_s"],
        "max_error": result["max_error"],
        "nic": result["nic"],
    }


def _print_table(report: dict[str, Any]) -> None:
    asked, measured = report["configuration"], report["rate_bps_measured"]
    rates = f"{config.format_rate(asked['rate_bps'])} (measured {config.format_rate(measured)})"
    for octets in asked["sizes_octets"]:
        of_size = [row for row in report["results"] if row["size_octets"] == octets]
        for nodes in asked["nodes"]:
            title = f"Allreduce of {octets / 1e6:.4g} MB, {nodes} nodes, {rates}"
            table = Table(box=box.SIMPLE, padding=TIGHT, caption="median, min, max in ms", title=title)
            columns = ("what", "median", "min", "max", "x bound", "wire MB", "ratio", "CPU s")
            add_columns(table, columns, ["what"])
            for row in of_size:
                if row["nodes"] == nodes:
                    table.add_row(*_cells(row))
            if table.rows:
                console.print(table)
        if len(asked["nodes"]) > 1 and not report["failed"]:
            _print_growth(of_size, asked["nodes"], f"Allreduce of {octets / 1e6:.4g} MB, {rates}")
    for lack in report["missing"]:
        notes.print(f"left out: {lack}", highlight=False, markup=False)
    for entry in report["failed"]:
        line = f"{entry['what']}, {entry['nodes']} nodes: missing: {entry['reason']}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["what"],
        *(config.format_ms(row[key]) for key in ("median_s", "min_s", "max_s")),
        f"{row['over_bound']:.3f}",
        "-" if row["wire_octets"] is None else f"{row['wire_octets'] / 1e6:.2f}",
        "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        f"{row['rank_cpu_s'] + (row['nic_cpu_s'] or 0):.2f}",
    ]


def _print_growth(rows: list[dict[str, Any]], nodes: list[int], title: str) -> None:
    """Print how times grow with the number of nodes: INCEPTIONN's Fig. 15."""
    table = Table(box=box.SIMPLE, pad_edge=False, title=title, caption="median in ms; growth from first to last")
    add_columns(table, ("what", *(f"{count} nodes" for count in nodes), "growth"), ["what"])
    for what in dict.fromkeys(row["what"] for row in rows):
        times_s = [row["median_s"] for row in rows if row["what"] == what]
        table.add_row(what, *map(config.format_ms, times_s), f"{times_s[-1] / times_s[0]:.2f}x")
    console.print(table)
