"""``netoffload verify soak``: checks every value of flows while links and NICs fail."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netoffload import config
from netoffload.cli.app import console, notes, progress_bar
from netoffload.cli.codec_options import Bound
from netoffload.lab.cli.verify import MISMATCH, AsJson, shown_progress, verify_app

if TYPE_CHECKING:
    from netoffload.lab.testbed.soak import SoakResult

BY_SEED: Final = ("inceptionn", "bounded", "packed")
"""The codecs among which the seed chooses if ``--codec`` is left out."""


@verify_app.command("soak")
def verify_soak(
    count: Annotated[int, typer.Option(min=1, help="Rounds: one event each, about 5 s.")] = 20,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Decides flows and events; drawn and printed if left out.", show_default=False),
    ] = None,
    flows: Annotated[int, typer.Option(min=1, max=64, help="Flows at a time.")] = 6,
    codec: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(config.CODECS)}; default: {', '.join(BY_SEED)}, by the seed.", show_default=False
        ),
    ] = None,
    bound: Bound = config.BOUND_K_DEFAULT,
    encapsulation: Annotated[str, typer.Option(help=f"{' or '.join(config.ENCAPSULATIONS)}.")] = "udp",
    host: Annotated[str, typer.Option(help="tap, or veth.")] = "tap",
    as_json: AsJson = False,
) -> None:
    """Keep tagged flows running between two nodes while links and NICs fail, and judge every value that arrives.

    Each round one thing happens: frames are lost, doubled or overtaken, MTUs
    change, a link goes down, a NIC is killed and started again or stands
    still. Each value must be the value sent or the codec's round trip of it.
    The command ends with exit code 1 if a value is wrong, or a flow is stuck
    or breaks.

    Example: netoffload verify soak --count 300 --seed 7 --json
    """
    from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, soak

    seed = secrets.randbelow(1 << 31) if seed is None else seed
    codec = codec or BY_SEED[seed % len(BY_SEED)]
    nic = NicSettings(codec, bound, encapsulation=encapsulation, host=host)
    notes.print(f"seed {seed}, codec {codec}", highlight=False)
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        with progress_bar() as say:
            plan = make_plan(TestbedSettings(2, nic=nic), new_run_id())
            bed = stack.enter_context(Testbed(plan, check_rate=False, progress=say))
        show = stack.enter_context(shown_progress("rounds", count))

        def on_round(done: int, said: str) -> None:
            show(done, count, said)
            if not notes.is_terminal:
                notes.print(f"{done}/{count} {said}", highlight=False, markup=False)

        soaking = soak.Soak(bed, seed, on_round)
        stack.callback(lambda: _tell(soaking.result, time.monotonic() - started_s, as_json))
        soaking.run(count, flows)
    if not soaking.result.is_good:
        raise typer.Exit(MISMATCH)


def _tell(result: SoakResult, elapsed_s: float, as_json: bool) -> None:
    """Print the findings, also those of an interrupted soak."""
    from netoffload.lab.testbed import soak

    if as_json:
        print(json.dumps({**soak.as_json(result), "elapsed_s": elapsed_s}, indent=2))
        return
    console.print(
        f"seed {result.seed}, {result.codec} k={result.bound_k}: {result.rounds} rounds, {result.flows} streams, "
        f"{result.values} values in {elapsed_s:.0f} s",
        soft_wrap=True,
    )
    console.print(
        f"  {result.wrong} wrong values in {result.torn_flows} flows, {result.stuck} stuck flows, "
        f"{result.broken} broken, {result.exact_after_begun} exact values after rounded ones, "
        f"{result.compressed_share:.0%} compressed",
        soft_wrap=True,
    )
    for kind, times in result.events.most_common():
        console.print(f"  {times:>6} {kind}", highlight=False)
    for line in [*result.missing, *result.examples]:
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
