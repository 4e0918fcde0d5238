"""``netoffload model``: what hardware would do, from a model of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, console
from netoffload.cli.bench_command import GRADIENTS, AsJson, run
from netoffload.cli.codec_options import Bound
from netoffload.cli.figures import giga, mega, table

if TYPE_CHECKING:
    from netoffload.bench.engine_model import Findings

model_app = typer.Typer(no_args_is_help=True, help="Model hardware that is not here.")
app.add_typer(model_app, name="model")


@model_app.callback()
def _model() -> None:
    """Model hardware that is not here."""


@model_app.command()
def engine(
    codec: Annotated[str, typer.Option(help="One that has an engine: inceptionn, bounded, sparse.")] = "inceptionn",
    bound: Bound = config.BOUND_K_DEFAULT,
    clock: Annotated[str, typer.Option(help="Of the engine: 100MHz, 1.5GHz.")] = "100MHz",
    gradients: Annotated[
        str, typer.Option(help="FILE.npy or FILE.bin (float32, little-endian), or gaussian:STANDARD_DEVIATION.")
    ] = GRADIENTS,
    count: Annotated[int, typer.Option(min=1, help="Floats to draw for gaussian.")] = 100_000,
    bursts: Annotated[
        int | None, typer.Option(min=1, help="Model the first BURSTS only, 8 floats each.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the values drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Clock a gradient through the paper's 256-bit burst engine, or that of groups.

    Says what rate the compressor and the decompressor hold at this clock, how
    many cycles they stall and why, and what that makes of a 10, 25 and
    100 Gb/s line. A stall is a cycle in which no floats crossed. Then come the
    bits and shifters that the engines of either form of payload are made of.

    The model is plain Python, about 3 s per million floats; --bursts takes
    the start of a long file.

    Example: netoffload model engine --clock 100MHz --gradients gaussian:0.002 --json
    """
    from netoffload.bench.engine_model import Asked, EngineModel

    asked = Asked(codec, bound, config.parse_clock_hz(clock), gradients, count, bursts, seed)
    run(EngineModel(asked), _print_tables, as_json=as_json)


def _print_tables(found: Findings) -> None:
    asked = found.configuration
    what = f"{found.bursts} bursts of {asked['gradients']}, {asked['codec']} 2^-{asked['bound_k']}"
    console.print(f"{what}: ratio {found.ratio:.2f}", highlight=False, soft_wrap=True)
    headings = ("engine", "cycles", "beats in", "beats out", "in Gb/s", "out Gb/s")
    engines = table(f"256-bit engines at {mega(asked['clock_hz'], 'g')} MHz", headings, ("engine",))
    both = {"compressor": found.compressor, "decompressor": found.decompressor}
    for name, did in both.items():
        counts = map(str, (did.cycles, did.beats_in, did.beats_out))
        engines.add_row(name, *counts, giga(did.input_bps, ".2f"), giga(did.output_bps, ".2f"))
    console.print(engines)
    for name, did in both.items():
        for stall in did.explained_stalls():
            text = f"{name} stalled {stall.cycles} cycles ({stall.share:.2%}), {stall.reason}: {stall.meaning}"
            console.print(text, highlight=False, soft_wrap=True)
    lines = table(
        "Gradients across a line between two such engines, without headers",
        ("line Gb/s", "gradients Gb/s", "times the line", "limited by", "clock to fill it"),
        (),
    )
    for row in found.lines:
        lines.add_row(
            *(giga(row.line_bps), giga(row.gradient_bps), f"{row.speedup:.2f}", row.limited_by),
            f"{mega(row.clock_to_fill_hz, '.0f')} MHz",
        )
    console.print(lines)
    circuits = table(
        "What the engines are made of, without the blocks of the lanes",
        ("engine", "register bits", "memory bits", "shifter bits", "multiplexers"),
        ("engine",),
    )
    for cost in found.circuits:
        figures = (cost.register_bits, cost.memory_bits, cost.width_bits, cost.multiplexers)
        circuits.add_row(cost.engine, *map(str, figures))
    console.print(circuits)
