"""``netoffload bench allreduce``: our collectives beside those of others over shaped links: times and octets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import console
from netoffload.cli.codec_options import Bound, NicCodec
from netoffload.lab.bench.jobs import DEFAULT, JOBS, installed
from netoffload.lab.cli.bench_command import GRADIENTS, AsJson, Gradients, note, run
from netoffload.lab.cli.figures import mega, table

if TYPE_CHECKING:
    from netoffload.lab.bench.allreduce import Findings, Row

COLUMNS = ("what", "median", "min", "max", "x bound", "wire MB", "ratio", "CPU s")


def command(
    nodes: Annotated[
        list[int] | None,
        typer.Option("--nodes", "-n", help="Ranks, one per node: 4 (default); repeat to see how times grow."),
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit, 2.5gbit.")] = "1gbit",
    size: Annotated[
        list[str] | None, typer.Option(help="Octets of the vector: 25MB (default), 64KiB; repeat for several.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed calls of each contender; one more warms up.")] = 5,
    what: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(JOBS)}; repeat for several; default: all that is installed, without ring_nic "
            "and openmpi_ring."
        ),
    ] = None,
    gradients: Gradients = GRADIENTS,
    bound: Bound = config.BOUND_K_DEFAULT,
    codec: NicCodec = "inceptionn",
    packing: Annotated[str, typer.Option(help=f"Packing: {', '.join(config.PACKINGS)}.")] = "coalesced",
    mtu: Annotated[int, typer.Option(help="MTU of every link in octets.")] = 1500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the values.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Sum a float32 vector over all nodes: our collectives beside MPICH, Open MPI and torch's gloo.

    Contenders that end in _nic or _comp go through emulated NICs, which share
    the cores with the ranks. All others run over plain wires. The ranks of
    ring_inline compress by themselves, with the codec of the NICs. In wa rank
    0 is a worker and the aggregator; in wa_comp only the gradients are tagged.
    mpich and openmpi choose their algorithm; mpich_ring and openmpi_ring use
    a ring.

    The answer is checked before a time is taken. For short vectors, up to
    32 KiB from all other ranks, 100 calls in a row are timed together and
    the time of one is reported. The bound is 2(p-1)/p · size / rate: a ring
    whose links carry payload only. Headers alone make a call take 1.046 of
    it. Octets are those on all wires; the ratio is a ring's payload over
    these octets. CPU seconds are those of all ranks and of all NICs together,
    per call. If a contender fails, the results of the others are reported.

    Example: netoffload bench allreduce -n 2 --size 1KiB --what ring --what mpich --json

    Example: netoffload bench allreduce -n 2 --rate 10gbit --what gloo --what ring_inline

    Example: netoffload bench allreduce -n 4 -n 8 --rate 200mbit --what ring --what wa
    """
    from netoffload.lab.bench import allreduce
    from netoffload.lab.bench.vectors import parse_vector_octets
    from netoffload.lab.testbed import NicSettings, TestbedSettings

    names = tuple(dict.fromkeys(what or installed() or DEFAULT))
    sizes = tuple(parse_vector_octets(text) for text in size or ["25MB"])
    nic, rate_bps = NicSettings(codec, bound, packing), config.parse_rate_bps(rate)
    beds = [TestbedSettings(count, rate_bps, mtu, nic) for count in dict.fromkeys(nodes or [4])]
    asked = [allreduce.Asked(bed, names, sizes, repeat, gradients, seed) for bed in beds]
    run(allreduce.Allreduce(asked), _print_tables, as_json=as_json)


def _print_tables(found: Findings) -> None:
    asked, measured = found.configuration, found.rate_bps_measured
    rates = f"{config.format_rate(asked['rate_bps'])} (measured {config.format_rate(measured)})"
    for octets in asked["sizes_octets"]:
        of_what = f"Allreduce of {mega(octets)} MB"
        for nodes in asked["nodes"]:
            title = f"{of_what}, {nodes} nodes, {rates}"
            times = table(title, COLUMNS, ("what",), "median, min, max in ms")
            for row in found.rows(octets, nodes):
                times.add_row(*_cells(row))
            if times.rows:
                console.print(times)
        if len(asked["nodes"]) > 1 and not found.failed:
            _print_growth(found, octets, f"{of_what}, {rates}")
    for lack in found.missing:
        note(f"left out: {lack}")
    for entry in found.failed:
        line = f"{entry.what}, {entry.nodes} nodes: missing: {entry.reason}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(row: Row) -> list[str]:
    times_s, wire_octets = row.found.times_s, row.found.wire_octets
    return [
        row.what,
        *(config.format_ms(time_s) for time_s in (row.median_s, min(times_s), max(times_s))),
        f"{row.over_bound:.3f}",
        "-" if wire_octets is None else mega(wire_octets, ".2f"),
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.cpu_s:.2f}",
    ]


def _print_growth(found: Findings, octets: int, title: str) -> None:
    headings = ("what", *(f"{count} nodes" for count in found.configuration["nodes"]), "growth")
    growth = table(title, headings, ("what",), "median in ms; growth from first to last")
    for row in found.growth(octets):
        growth.add_row(row.what, *map(config.format_ms, row.medians_s), f"{row.factor:.2f}x")
    console.print(growth)
