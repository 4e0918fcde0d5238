"""``netoffload model``: what hardware would do, from a model of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from rich import box
from rich.table import Table

from netoffload import config
from netoffload.cli.app import add_columns, app, console, notes
from netoffload.collectives.samples import gradient_of, parse_sigma
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array
    from netoffload.engine.hardware import Engine

model_app = typer.Typer(no_args_is_help=True, help="Model hardware that is not here.")
app.add_typer(model_app, name="model")

LINES_BPS: Final = (10_000_000_000, 25_000_000_000, 100_000_000_000)
"""Ethernet links to hold an engine against."""


@model_app.callback()
def _model() -> None:
    """Model hardware that is not here."""


@model_app.command()
def engine(
    codec: Annotated[str, typer.Option(help="inceptionn or bounded.")] = "inceptionn",
    bound: Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")] = config.BOUND_K_DEFAULT,
    clock: Annotated[str, typer.Option(help="Of the engine: 100MHz, 1.5GHz.")] = "100MHz",
    gradients: Annotated[
        str, typer.Option(help="FILE.npy or FILE.bin (float32, little-endian), or gaussian:STANDARD_DEVIATION.")
    ] = "gaussian:0.002",
    count: Annotated[int, typer.Option(min=1, help="Floats to draw for gaussian.")] = 100_000,
    bursts: Annotated[
        int | None, typer.Option(min=1, help="Model the first BURSTS only, 8 floats each.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the values drawn.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Clock a gradient through the paper's 256-bit burst engine.

    Says what rate the compressor and the decompressor hold at this clock, how
    many cycles they stall and why, and what that makes of a 10, 25 and
    100 Gb/s line. A stall is a cycle in which no floats crossed.

    The model is plain Python, about 3 s per million floats; --bursts takes
    the start of a long file.

    Example: netoffload model engine --clock 100MHz --gradients gaussian:0.002 --json
    """
    clock_hz = config.parse_clock_hz(clock)
    values = _gradient(gradients, count, seed)[: None if bursts is None else 8 * bursts]
    if not values.size:
        raise UsageError(f"gradients {gradients!r} hold no float")
    report = {
        "configuration": {"codec": codec, "bound_k": bound, "clock_hz": clock_hz, "gradients": gradients, "seed": seed},
        **_model_engine(values, codec, bound, clock_hz),
    }
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_tables(report)


def _gradient(text: str, count: int, seed: int) -> Float32Array:
    """Return the values a person asked for, flat."""
    path = Path(text)
    if path.suffix not in (".npy", ".bin"):
        return gradient_of(0, count, parse_sigma(text), seed)
    try:
        values = np.memmap(path, "<f4", "r") if path.suffix == ".bin" else np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read gradients {text}: {error}") from error
    if values.dtype != np.float32:
        raise UsageError(f"gradients {text} are {values.dtype}: save float32")
    return values.reshape(-1)


def _model_engine(values: Float32Array, codec: str, bound_k: int, clock_hz: int) -> dict[str, Any]:
    """Return what both engines did with these values."""
    from netoffload.engine import hardware

    with notes.status(f"compressing {values.size} floats, cycle by cycle") as note:
        payload, compressor = hardware.compress(values, codec, bound_k)
        note.update(f"decompressing {payload.size} octets")
        _, decompressor = hardware.decompress(payload, values.size, codec, bound_k)
    ratio = values.nbytes / payload.size
    engine_bps = min(compressor.intake.rate_bps(clock_hz), decompressor.outlet.rate_bps(clock_hz))
    return {
        "floats": values.size,
        "bursts": compressor.intake.beats,
        "ratio": ratio,
        "compressor": _activity(compressor, compressor.intake.waits, compressor.outlet.waits, clock_hz),
        "decompressor": _activity(decompressor, decompressor.outlet.waits, decompressor.intake.waits, clock_hz),
        "lines": [_line(line_bps, engine_bps, ratio, clock_hz) for line_bps in LINES_BPS],
    }


def _activity(engine: Engine, stalls: dict[Any, int], wire_waits: dict[Any, int], clock_hz: int) -> dict[str, Any]:
    """Return an engine's counts; ``stalls`` are the waits of the port with floats, ``wire_waits`` of the other."""
    return {
        "cycles": engine.intake.cycles,
        "beats_in": engine.intake.beats,
        "beats_out": engine.outlet.beats,
        "input_bps": engine.intake.rate_bps(clock_hz),
        "output_bps": engine.outlet.rate_bps(clock_hz),
        "stalls": {str(reason): cycles for reason, cycles in stalls.items()},
        "wire_waits": {str(reason): cycles for reason, cycles in wire_waits.items()},
    }


def _line(line_bps: int, engine_bps: float, ratio: float, clock_hz: int) -> dict[str, Any]:
    """Return how fast gradients cross a line between two such engines; headers are left out."""
    gradient_bps = min(engine_bps, line_bps * ratio)
    return {
        "line_bps": line_bps,
        "gradient_bps": gradient_bps,
        "speedup": gradient_bps / line_bps,
        "limited_by": "engine" if engine_bps < line_bps * ratio else "line",
        "clock_to_fill_hz": clock_hz * line_bps * ratio / engine_bps,
    }


def _print_tables(report: dict[str, Any]) -> None:
    from netoffload.engine.hardware import MEANING, Wait

    asked = report["configuration"]
    what = f"{report['bursts']} bursts of {asked['gradients']}, {asked['codec']} 2^-{asked['bound_k']}"
    console.print(f"{what}: ratio {report['ratio']:.2f}", highlight=False, soft_wrap=True)
    title = f"256-bit engines at {asked['clock_hz'] / 1e6:g} MHz"
    engines = Table(title=title, box=box.SIMPLE, pad_edge=False)
    add_columns(engines, ("engine", "cycles", "beats in", "beats out", "in Gb/s", "out Gb/s"), ["engine"])
    for name in ("compressor", "decompressor"):
        row = report[name]
        engines.add_row(
            name,
            *(str(row[key]) for key in ("cycles", "beats_in", "beats_out")),
            *(f"{row[key] / 1e9:.2f}" for key in ("input_bps", "output_bps")),
        )
    console.print(engines)
    for name in ("compressor", "decompressor"):
        for reason, cycles in report[name]["stalls"].items():
            share = cycles / report[name]["cycles"]
            text = f"{name} stalled {cycles} cycles ({share:.2%}), {reason}: {MEANING[Wait(reason)]}"
            console.print(text, highlight=False, soft_wrap=True)
    title = "Gradients across a line between two such engines, without headers"
    lines = Table(title=title, box=box.SIMPLE, pad_edge=False)
    add_columns(lines, ("line Gb/s", "gradients Gb/s", "times the line", "limited by", "clock to fill it"))
    for row in report["lines"]:
        lines.add_row(
            *(f"{row[key] / 1e9:.4g}" for key in ("line_bps", "gradient_bps")),
            f"{row['speedup']:.2f}",
            row["limited_by"],
            f"{row['clock_to_fill_hz'] / 1e6:.0f} MHz",
        )
    console.print(lines)
