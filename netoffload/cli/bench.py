"""``netoffload bench allreduce``: collectives over shaped links beside others, with the octets they sent."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import app, console, notes
from netoffload.collectives.samples import parse_sigma
from netoffload.errors import UsageError
from netoffload.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, run_ranks

bench_app = typer.Typer(no_args_is_help=True, help="Time collectives over emulated links, codecs, and NICs.")
app.add_typer(bench_app, name="bench")


@dataclass(frozen=True)
class Contender:
    """Something to time: what the rank program does, and in which environment."""

    rank_what: str
    through_nic: bool
    env: dict[str, str] = field(default_factory=dict)


CONTENDERS: Final = {
    "ring": Contender("ring", through_nic=False),
    "ring_nic": Contender("ring", through_nic=True),
    "ring_comp": Contender("ring_comp", through_nic=True),
    "mpich": Contender("mpi", through_nic=False, env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "auto"}),
    "mpich_ring": Contender("mpi", through_nic=False, env={"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}),
}
"""Our ring untagged, the same through the NICs, tagged; MPICH with the algorithm it chooses, and with its ring.

What needs no NIC gets a testbed without: emulated NICs take cores, which on this machine would slow the others down.
"""

DEFAULT: Final = ("ring", "ring_comp", "mpich", "mpich_ring")

SETUP_S: Final = 60.0
"""Allowance for starting ranks, drawing gradients and checking the answer."""

SLOWEST_OVER_BOUND: Final = 20.0
"""A call may take this many times its bound before the run is ended as hung."""


@bench_app.callback()
def _bench() -> None:
    """Time collectives over emulated links, codecs, and NICs."""


@bench_app.command()
def allreduce(
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Ranks, one per node.")] = 4,
    rate: Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit, 2.5gbit.")] = "1gbit",
    size: Annotated[
        list[str] | None, typer.Option(help="Octets of the vector: 25MB (default), 64KiB; repeat for several.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed calls of each; one more warms up.")] = 5,
    what: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(CONTENDERS)}; repeat for several; default: all but ring_nic.")
    ] = None,
    gradients: Annotated[str, typer.Option(help="Values: gaussian:STANDARD_DEVIATION.")] = "gaussian:0.002",
    bound: Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")] = config.BOUND_K_DEFAULT,
    codec: Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")] = "inceptionn",
    packing: Annotated[str, typer.Option(help=f"Packing: {', '.join(config.PACKINGS)}.")] = "coalesced",
    mtu: Annotated[int, typer.Option(help="MTU of every link in octets.")] = 1500,
    seed: Annotated[int, typer.Option(min=0, help="Of the values.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Sum a float32 vector over all nodes: our ring, plain and compressed, beside MPICH.

    ring, mpich and mpich_ring run over plain wires; ring_nic and ring_comp
    through emulated NICs, which share the cores with the ranks.

    The answer is checked before a time is taken. The bound is
    2(p-1)/p · size / rate: a ring whose links carry payload only. Headers
    alone cost 1.046 of it. Octets are those on all wires; the ratio is
    payload over octets.

    Example: netoffload bench allreduce --nodes 4 --rate 1gbit --size 25MB --json
    """
    names = tuple(dict.fromkeys(what or DEFAULT))
    nic = NicSettings(codec, bound, packing)
    bed = TestbedSettings(nodes=nodes, rate_bps=config.parse_rate_bps(rate), mtu=mtu, nic=nic)
    sizes = tuple(config.parse_size_octets(text) // 4 * 4 for text in size or ["25MB"])
    report = _measure(Bench(bed, names, sizes, repeat, gradients, seed))
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)


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
        if self.bed.nodes < 2:
            raise UsageError(f"{self.bed.nodes} nodes exchange nothing: use at least 2")
        if 0 in self.sizes_octets:
            raise UsageError("size is less than one float32, 4 octets")
        parse_sigma(self.gradients)

    @property
    def rank_arguments(self) -> list[str]:
        """What the rank program is told."""
        sizes = [word for octets in self.sizes_octets for word in ("--size", str(octets))]
        return ["--repeat", str(self.repeat), "--gradients", self.gradients, "--seed", str(self.seed), *sizes]

    @property
    def limit_s(self) -> float:
        """Time after which a contender is ended as hung."""
        calls_s = self.repeat * sum(self.bound_s(octets) for octets in self.sizes_octets)
        return SETUP_S + SLOWEST_OVER_BOUND * calls_s

    def bound_s(self, size_octets: int) -> float:
        """Return the least time of an allreduce: 2(p-1)/p · size / rate."""
        assert self.bed.rate_bps is not None
        return 2 * (self.bed.nodes - 1) / self.bed.nodes * size_octets * 8 / self.bed.rate_bps


def _measure(bench: Bench) -> dict[str, Any]:
    """Run every contender and return the report."""
    measured_bps: list[float] = []
    records: dict[str, dict[str, Any]] = {}
    for through_nic in (False, True):
        if any(CONTENDERS[name].through_nic == through_nic for name in bench.names):
            measured_bps.append(_run(bench, through_nic, records))
    return {
        "configuration": {
            **asdict(bench.bed),
            "sizes_octets": list(bench.sizes_octets),
            "repeat": bench.repeat,
            "gradients": bench.gradients,
            "seed": bench.seed,
        },
        "rate_bps_measured": min(measured_bps),
        "versions": records[bench.names[0]]["versions"],
        "bound_s": bench.bound_s(bench.sizes_octets[0]),
        "results": [
            _summary(bench, name, records[name]["results"][index])
            for index in range(len(bench.sizes_octets))
            for name in bench.names
        ],
    }


def _run(bench: Bench, through_nic: bool, records: dict[str, dict[str, Any]]) -> float:
    """Run the contenders of one kind of testbed, add their records by name, and return the wires' measured rate."""
    settings = bench.bed if through_nic else replace(bench.bed, nic=None)
    names = [name for name in bench.names if CONTENDERS[name].through_nic == through_nic]
    with (
        notes.status("building the testbed") as note,
        Testbed(make_plan(settings, new_run_id()), progress=note.update) as bed,
    ):
        folder = bed.make_scratch()
        for name in names:
            note.update(f"{name}: checking, then timing")
            out = folder / f"{name}.json"
            argv = ["-m", "netoffload_mpi.bench", "--what", CONTENDERS[name].rank_what, "--out", str(out)]
            argv += bench.rank_arguments
            run_ranks(bed, range(bench.bed.nodes), argv, env=CONTENDERS[name].env, timeout_s=bench.limit_s)
            records[name] = json.loads(out.read_text(encoding="utf-8"))
        assert bed.rate_bps_measured is not None  # two nodes at least, and probed
        return bed.rate_bps_measured


def _summary(bench: Bench, name: str, result: dict[str, Any]) -> dict[str, Any]:
    times_s, octets = result["times_s"], result["size_octets"]
    median_s, least_s = statistics.median(times_s), bench.bound_s(octets)
    payload_octets = 2 * (bench.bed.nodes - 1) * octets  # of all nodes together
    wire_octets = result["wire_octets"]
    return {
        "what": name,
        "size_octets": octets,
        "median_s": median_s,
        "min_s": min(times_s),
        "max_s": max(times_s),
        "bound_s": least_s,
        "over_bound": median_s / least_s,
        "wire_octets": wire_octets,
        "ratio": payload_octets / wire_octets if wire_octets else None,
        "max_error": result["max_error"],
        "nic": result["nic"],
    }


def _print_table(report: dict[str, Any]) -> None:
    asked, measured = report["configuration"], report["rate_bps_measured"]
    rates = f"{config.format_rate(asked['rate_bps'])} (measured {config.format_rate(measured)})"
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        caption="times in ms",
        title=f"Allreduce, {asked['nodes']} nodes, {rates}, {asked['gradients']}",
    )
    for heading in ("what", "MB", "median", "min", "max", "x bound", "wire MB", "ratio", "error"):
        table.add_column(heading, justify="left" if heading == "what" else "right", no_wrap=True)
    for row in report["results"]:
        table.add_row(
            row["what"],
            f"{row['size_octets'] / 1e6:.4g}",
            *(f"{row[key] * 1e3:.1f}" for key in ("median_s", "min_s", "max_s")),
            f"{row['over_bound']:.3f}",
            "-" if row["wire_octets"] is None else f"{row['wire_octets'] / 1e6:.2f}",
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            f"{row['max_error']:.2g}",
        )
    console.print(table)
