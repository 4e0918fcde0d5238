"""``netoffload bench overlap``: how much time communication and computation save by running at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import console
from netoffload.cli.codec_options import Bound, NicCodec
from netoffload.lab.bench.jobs import COMPUTE
from netoffload.lab.cli.bench_command import GRADIENTS, AsJson, Gradients, run
from netoffload.lab.cli.figures import mega, milli, table

if TYPE_CHECKING:
    from netoffload.lab.bench.overlap import Findings


def command(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=2, help="Ranks, one per node.")] = 2,
    rate: Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit.")] = "1gbit",
    buckets: Annotated[int, typer.Option(min=1, help="Vectors that a step computes and sums.")] = 8,
    size: Annotated[str, typer.Option(help="Octets of each vector: 4MB, 64KiB.")] = "4MB",
    compute: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(COMPUTE)}; repeat for several; default: all.")
    ] = None,
    compute_ms: Annotated[
        float | None, typer.Option(help="Computation per bucket; default: as long as communicating one takes.")
    ] = None,
    nic: Annotated[bool, typer.Option("--nic/--no-nic", help="Through emulated NICs, or over plain wires.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    gradients: Gradients = GRADIENTS,
    bound: Bound = config.BOUND_K_DEFAULT,
    codec: NicCodec = "inceptionn",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the values.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Time steps that compute buckets and sum them: one after the other, and at the same time.

    A step is timed four ways: computing alone, communicating alone
    (Allreduce_comp), all computing and then all communicating (serial), and
    each bucket on its way (Iallreduce_comp) while the next one is computed
    (overlapped). The sums are compared before a time is reported.

    overlap = (serial - overlapped) / min(compute, communication): 1 if all of
    the shorter part disappears behind the longer one. numpy releases the
    interpreter lock, python is a loop that holds it, sleep needs no core.
    Ranks, and NICs, share this machine's cores.

    Example: netoffload bench overlap --nodes 2 --rate 1gbit --buckets 8 --size 4MB --json

    Example: netoffload bench overlap --nic --rate 100mbit --compute python
    """
    from netoffload.lab.bench import overlap
    from netoffload.lab.bench.vectors import parse_vector_octets
    from netoffload.lab.testbed import NicSettings, TestbedSettings

    bed = TestbedSettings(nodes, config.parse_rate_bps(rate), nic=NicSettings(codec, bound) if nic else None)
    kinds, octets = tuple(dict.fromkeys(compute or COMPUTE)), parse_vector_octets(size)
    asked = overlap.Asked(bed, kinds, buckets, octets, compute_ms, repeat, gradients, seed)
    run(overlap.Overlap(asked), _print_table, as_json=as_json)


def _print_table(found: Findings) -> None:
    asked = found.configuration
    measured = "-" if found.rate_bps_measured is None else config.format_rate(found.rate_bps_measured)
    title = (
        f"{found.buckets} buckets of {mega(found.size_octets)} MB, {found.ranks} nodes, "
        f"{config.format_rate(asked['rate_bps'])} (measured {measured}), "
        f"{'through NICs' if asked['nic'] else 'plain wires'}"
    )
    columns = ("with", "compute", "communication", "serial", "overlapped", "overlap")
    steps = table(title, columns, ("with",), "medians in ms")
    for row in found.results:
        medians_s = (row.compute_s, row.communication_s, row.serial_s, row.overlapped_s)
        steps.add_row(row.compute_kind, *map(milli, medians_s), f"{row.overlap:.2f}")
    console.print(steps)
