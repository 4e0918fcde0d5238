"""``netoffload bench compressors``: ratio, error and speed of the papers' host-side methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netoffload.cli.app import console
from netoffload.lab.cli.bench_command import GRADIENTS, AsJson, run
from netoffload.lab.cli.figures import table

if TYPE_CHECKING:
    from netoffload.lab.bench.compressors import Findings


def command(
    compressor: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME:PARAMETER=VALUE,...; repeat for several; default: all.")
    ] = None,
    data: Annotated[str, typer.Option(help="gaussian:STANDARD_DEVIATION, or hdc.")] = GRADIENTS,
    size: Annotated[str, typer.Option(help="Octets of a gaussian vector.")] = "16MB",
    gradients: Annotated[Path | None, typer.Option(help="Take the first vector of this float32 .npy file.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Lengths of the layers, 500,10, or hdc; default: hdc's for hdc, else one layer.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=2, help="Timed samples, and repeats for error, bias and q.")] = 9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of the compressors.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the compressors: ratio, q, bias, errors, GB/s each way.

    q is the variance ratio |Q(v)-v|²/|v|², the mean over the repeats; the
    bias is |mean of Q(v) - v| / |v|. GB/s are octets of floats per second of
    one core's time, medians. 'netoffload train hdc --capture FILE' writes a
    file for --gradients; give --layers hdc with it.

    Example: netoffload bench compressors --compressor terngrad --compressor qsgd:levels=15,norm=max --json
    """
    from netoffload.lab.bench.compressors import Asked, Compressors

    specs = tuple(dict.fromkeys(compressor or ()))
    run(Compressors(Asked(specs, data, size, gradients, layers, repeat, seed)), _print_table, as_json=as_json)


def _print_table(found: Findings) -> None:
    asked = found.configuration
    headings = ("compressor", "ratio", "q", "bias", "mean error", "enc", "dec")
    rows = table(f"{asked['values']} floats of {asked['data']}, {found.cpu}", headings, ("compressor",))
    for row in found.results:
        seen, fast = row.quality, row.speeds
        rows.add_row(
            *(row.spec, f"{seen.ratio:.2f}", f"{seen.variance_ratio:.3g}", f"{seen.bias:.2g}"),
            *(f"{seen.mean_error:.2e}", f"{fast.encode_GBps:.2f}", f"{fast.decode_GBps:.2f}"),
        )
    console.print(rows)
    console.print("enc, dec: GB/s of floats per second of one core's time", highlight=False)
