"""``netoffload model``: what hardware or a cluster would do, from a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload import config
from netoffload.cli.app import app, console, notes
from netoffload.cli.codec_options import Bound
from netoffload.lab.cli.bench_command import GRADIENTS, AsJson, run
from netoffload.lab.cli.figures import giga, mega, percent, table

if TYPE_CHECKING:
    from netoffload.lab.bench import scaling as scaling_model
    from netoffload.lab.bench import simulation
    from netoffload.lab.bench.engine_model import Findings

model_app = typer.Typer(no_args_is_help=True, help="Model hardware that is not here.")
app.add_typer(model_app, name="model")


@model_app.callback()
def _model() -> None:
    """Model hardware that is not here."""


@model_app.command()
def engine(
    codec: Annotated[str, typer.Option(help="A codec that has an engine: inceptionn, bounded.")] = "inceptionn",
    bound: Bound = config.BOUND_K_DEFAULT,
    clock: Annotated[str, typer.Option(help="Clock of the engine: 100MHz, 1.5GHz.")] = "100MHz",
    gradients: Annotated[
        str, typer.Option(help="FILE.npy or FILE.bin (float32, little-endian), or gaussian:STANDARD_DEVIATION.")
    ] = GRADIENTS,
    count: Annotated[int, typer.Option(min=1, help="Floats to draw for gaussian.")] = 100_000,
    bursts: Annotated[
        int | None, typer.Option(min=1, help="Model the first BURSTS only, 8 floats each.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the values drawn.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Clock a gradient through the paper's 256-bit burst engine.

    It says what rate the compressor and the decompressor hold at this clock,
    how many cycles they stall and why, and how fast gradients then cross a
    10, 25 and 100 Gb/s line. A stall is a cycle in which no floats cross. A
    last table lists the bits and shifters of both engines.

    The model is plain Python, about 3 s per million floats; --bursts takes
    only the start of a long file.

    Example: netoffload model engine --clock 100MHz --gradients gaussian:0.002 --json
    """
    from netoffload.lab.bench.engine_model import Asked, EngineModel

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
        ("engine", "register bits", "shifter bits", "multiplexers"),
        ("engine",),
    )
    for cost in found.circuits:
        figures = (cost.register_bits, cost.width_bits, cost.multiplexers)
        circuits.add_row(cost.engine, *map(str, figures))
    console.print(circuits)


@model_app.command()
def scaling(
    nodes: Annotated[str, typer.Option(help="Numbers of nodes: 4..100000 (doublings), or 4,8,16.")] = "4..100000",
    rate: Annotated[str, typer.Option(help="Rates of the links: 1gbit..400gbit, or 1gbit,10gbit.")] = "1gbit..400gbit",
    size: Annotated[str, typer.Option(help="Octets of the vector; default: AlexNet's.")] = "233MB",
    delay: Annotated[float, typer.Option(min=0, help="Delay of a link, one way, ms; the Internet: 50.")] = 0.02,
    ratio: Annotated[float, typer.Option(min=1, help="Compression ratio of the codec.")] = 8.0,
    clock: Annotated[str, typer.Option(help="Clock of the NICs' engine: 32 octets of float32 a cycle.")] = "100MHz",
    core: Annotated[str, typer.Option(help="Octets of float32 that a core encodes or decodes in a second.")] = "4GB",
    add: Annotated[str, typer.Option(help="Octets of float32 that a core adds in a second.")] = "5GB",
    check: Annotated[
        bool, typer.Option("--check", help="Also simulate the schedules, up to 1024 nodes; takes half a minute.")
    ] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw into this .png, .svg or .pdf.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long exchanges of a vector take on clusters of any size.

    By INCEPTIONN's formulas of latency, octets and sums (alpha, beta, gamma)
    it says from how many nodes on a ring's latency takes longer than its
    octets, and which exchange is fastest. It also says how much faster
    compression in NICs or by the ranks (inline) makes it.

    Example: netoffload model scaling --nodes 4..100000 --rate 1gbit..400gbit --figure scaling.svg

    Example: netoffload model scaling --rate 100mbit,1gbit --delay 50 --nodes 4..1024
    """
    from netoffload.lab import reports
    from netoffload.lab.bench import scaling as model
    from netoffload.lab.bench import simulation

    asked = model.Asked(
        model.node_counts(nodes),
        model.rates_bps(rate),
        config.parse_size_octets(size),
        delay,
        ratio,
        model.engine_bps(config.parse_clock_hz(clock)),
        config.parse_size_octets(core),
        config.parse_size_octets(add),
    )
    experiment = model.Scaling(asked)
    run(experiment, _print_scaling, as_json=as_json)
    if figure is not None and experiment.found is not None:
        reports.draw_panels(list(experiment.found.panels()), "A sum over many nodes, by formula", figure)
        notes.print(f"drawn into {figure}", highlight=False)
    if check:
        simulated = simulation.Simulation(asked.link(asked.rates_bps[0]), simulation.CHECKED, asked.octets)
        run(simulated, _print_check, as_json=as_json)


def _print_scaling(found: scaling_model.Findings) -> None:
    headings = ("rate", "nodes", "ring", "fastest way", "its time", "groups of", "latency %", "NICs", "inline")
    rows = table("Seconds; how many times as fast with compression", headings, ("rate", "fastest way"))
    for row in found.rows:
        rows.add_row(
            *(config.format_rate(row.rate_bps), str(row.nodes), f"{row.times_s['ring']:.4g}", row.fastest),
            *(f"{row.times_s[row.fastest]:.4g}", str(row.members), percent(row.latency_share)),
            *(f"{row.nic_gain:.2f}", f"{row.inline_gain:.2f}"),
        )
    console.print(rows)
    for crossing in found.crossings:
        text = f"{config.format_rate(crossing.rate_bps)}: a ring's latency takes longer than its octets"
        console.print(f"{text} from {crossing.nodes:.0f} nodes on", highlight=False, soft_wrap=True)


def _print_check(found: simulation.Findings) -> None:
    rows = table("Formula and simulated time", ("way", "nodes", "formula s", "simulated s", "off %"), ("way",))
    for row in found.rows:
        times = f"{row.formula_s:.4g}", f"{row.simulated_s:.4g}"
        rows.add_row(row.way, str(row.nodes), *times, percent(row.off, "+.2f"))
    console.print(rows)
