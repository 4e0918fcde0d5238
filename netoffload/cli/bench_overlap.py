"""``netoffload bench overlap``: how much of communication hides behind computation, and the reverse."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import add_columns, console, notes
from netoffload.cli.bench import SETUP_S, SLOWEST_OVER_BOUND, bench_app
from netoffload.collectives.samples import gradients_from
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.testbed import TestbedSettings

COMPUTE: Final = ("numpy", "python", "sleep")
COLUMNS: Final = ("compute", "communication", "serial", "overlapped")
STEPS_PER_ROUND: Final = 6
"""One computes, one communicates, two do both; the rest is for what comes before the first round."""


@bench_app.command()
def overlap(
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=2, help="Ranks, one per node.")] = 2,
    rate: Annotated[str, typer.Option(help="Rate of every link: 100mbit, 1gbit.")] = "1gbit",
    buckets: Annotated[int, typer.Option(min=1, help="Vectors that a step computes and sums.")] = 8,
    size: Annotated[str, typer.Option(help="Octets of each: 4MB, 64KiB.")] = "4MB",
    compute: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(COMPUTE)}; repeat for several; default: all.")
    ] = None,
    compute_ms: Annotated[
        float | None, typer.Option(help="Computation per bucket; default: what communicating one takes.")
    ] = None,
    nic: Annotated[bool, typer.Option("--nic/--no-nic", help="Through emulated NICs, or over plain wires.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    gradients: Annotated[
        str, typer.Option(help="Values: gaussian:STANDARD_DEVIATION, or a float32 .npy file.")
    ] = "gaussian:0.002",
    bound: Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")] = config.BOUND_K_DEFAULT,
    codec: Annotated[str, typer.Option(help=f"Codec of the NICs: {', '.join(config.CODECS)}.")] = "inceptionn",
    seed: Annotated[int, typer.Option(min=0, help="Of the values.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time steps that compute buckets and sum them: one after the other, and at the same time.

    A step is timed four ways: computing alone, communicating alone
    (Allreduce_comp), all computing and then all communicating (serial), and
    each bucket on its way (Iallreduce_comp) while the next one is computed
    (overlapped). The sums are compared before a time is reported.

    overlap = (serial - overlapped) / min(compute, communication): 1 if all of
    the shorter part disappears behind the longer one. numpy lets go of the
    interpreter lock, python is a loop that holds it, sleep needs no core.
    Ranks, and NICs, share this machine's cores.

    Example: netoffload bench overlap --nodes 2 --rate 1gbit --buckets 8 --size 4MB --json

    Example: netoffload bench overlap --nic --rate 100mbit --compute python
    """
    from netoffload.testbed import NicSettings, TestbedSettings

    settings = TestbedSettings(
        nodes=nodes, rate_bps=config.parse_rate_bps(rate), nic=NicSettings(codec, bound) if nic else None
    )
    steps = Steps(tuple(dict.fromkeys(compute or COMPUTE)), buckets, size, compute_ms, repeat, gradients, seed)
    report = _measure(settings, steps)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)


@dataclass(frozen=True)
class Steps:
    """What the ranks shall time; the command describes the fields.

    Raises:
        UsageError: it cannot be timed.
    """

    kinds: tuple[str, ...]
    buckets: int
    size: str
    compute_ms: float | None
    repeat: int
    gradients: str
    seed: int

    def __post_init__(self) -> None:
        """Refuse before anything is built."""
        for kind in self.kinds:
            config.check_choice("compute", kind, COMPUTE)
        if self.octets == 0:
            raise UsageError("size is less than one float32, 4 octets")
        if self.compute_ms is not None and not 0 < self.compute_ms < math.inf:
            raise UsageError(f"compute-ms {self.compute_ms:g} is no time: leave it out, or give more than 0")
        gradients_from(self.gradients, self.seed)

    @property
    def octets(self) -> int:
        """Return the length of a bucket."""
        return config.parse_size_octets(self.size) // 4 * 4

    @property
    def rank_arguments(self) -> list[str]:
        """Return what the rank program is told."""
        gradients = str(Path(self.gradients).absolute()) if Path(self.gradients).exists() else self.gradients
        numbers = {"--buckets": self.buckets, "--size": self.octets, "--repeat": self.repeat, "--seed": self.seed}
        words = [word for name, number in numbers.items() for word in (name, str(number))]
        words += [word for kind in self.kinds for word in ("--compute", kind)]
        words += [] if self.compute_ms is None else ["--compute-ms", str(self.compute_ms)]
        return [*words, "--gradients", gradients]

    def limit_s(self, nodes: int, rate_bps: float) -> float:
        """Return the time after which the ranks are ended as hung."""
        communication_s = 2 * (nodes - 1) / nodes * self.buckets * self.octets * 8 / rate_bps
        computation_s = self.buckets * (self.compute_ms or 0) / 1e3
        per_round_s = SLOWEST_OVER_BOUND * communication_s + nodes * computation_s  # ranks may share one core
        return SETUP_S + STEPS_PER_ROUND * len(self.kinds) * self.repeat * per_round_s


def _measure(settings: TestbedSettings, steps: Steps) -> dict[str, Any]:
    """Run the rank program on a testbed and return the report."""
    from netoffload.testbed import Testbed, make_plan, new_run_id, run_ranks

    load_1min = os.getloadavg()[0]
    with (
        notes.status("building the testbed") as note,
        Testbed(make_plan(settings, new_run_id()), progress=note.update) as bed,
    ):
        out = bed.make_scratch() / "overlap.json"
        note.update("timing")
        command = ["-m", "netoffload_mpi.bench_overlap", "--out", str(out), *steps.rank_arguments]
        assert settings.rate_bps is not None
        run_ranks(bed, range(settings.nodes), command, timeout_s=steps.limit_s(settings.nodes, settings.rate_bps))
        return {
            "configuration": asdict(settings),
            "rate_bps_measured": bed.rate_bps_measured,
            "load_1min": load_1min,
            **json.loads(out.read_text(encoding="utf-8")),
        }


def _print_table(report: dict[str, Any]) -> None:
    asked = report["configuration"]
    way = "through NICs" if asked["nic"] else "plain wires"
    title = (
        f"{report['buckets']} buckets of {report['size_octets'] / 1e6:.4g} MB, {report['ranks']} nodes, "
        f"{config.format_rate(asked['rate_bps'])} (measured {config.format_rate(report['rate_bps_measured'])}), {way}"
    )
    table = Table(box=box.SIMPLE, pad_edge=False, caption="medians in ms", title=title)
    add_columns(table, ("with", *COLUMNS, "overlap"), ["with"])
    for result in report["results"]:
        cells = [f"{result[f'{name}_s'] * 1e3:.1f}" for name in COLUMNS]
        table.add_row(result["compute_kind"], *cells, f"{result['overlap']:.2f}")
    console.print(table)
