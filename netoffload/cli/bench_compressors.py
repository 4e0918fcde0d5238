"""``netoffload bench compressors``: what the papers' host-side methods save, what they do to a gradient, how fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from netoffload import config
from netoffload.cli.app import add_columns, console, notes
from netoffload.cli.bench import bench_app
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array
    from netoffload.compressors import Compressor, Layout

HDC: Final = "hdc"
DEFAULT_DATA: Final = "gaussian:0.002"


@bench_app.command("compressors")
def bench_compressors(
    compressor: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME:PARAMETER=VALUE,...; repeat for several; default: all.")
    ] = None,
    data: Annotated[str, typer.Option(help="gaussian:STANDARD_DEVIATION, or hdc.")] = DEFAULT_DATA,
    size: Annotated[str, typer.Option(help="Octets of a gaussian vector.")] = "16MB",
    gradients: Annotated[Path | None, typer.Option(help="A float32 .npy file instead; its first vector.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Lengths of the layers, 500,10, or hdc; default: hdc's for hdc, else one layer.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=2, help="Timed samples, and repeats for error, bias and q.")] = 9,
    seed: Annotated[int, typer.Option(min=0, help="Of the data and of the randomness.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the compressors: ratio, q, bias, errors, GB/s each way.

    q is the variance ratio |Q(v)-v|²/|v|², the mean over the repeats; the
    bias is |mean of Q(v) - v| / |v|. GB/s are octets of floats per second of
    one core's time, medians. A file comes from
    'netoffload train hdc --capture FILE'; such files have --layers hdc.

    Example: netoffload bench compressors --compressor terngrad --compressor qsgd:levels=15,norm=max --json
    """
    from netoffload import environment
    from netoffload.compressors import registry

    asked = [registry.parse(spec) for spec in dict.fromkeys(compressor or registry.specs())]
    name, values = _vector(data, size, gradients, seed)
    layout = _layout(layers or (HDC if name == HDC else None), values.size)
    report = {
        "results": _measure(asked, values, layout, repeat, seed),
        "configuration": {"data": name, "values": values.size, "layers": list(layout.sizes), "repeat": repeat}
        | {"seed": seed},
        "versions": environment.versions("numba", "llvmlite"),
        "cpu": environment.cpu_model(),
    }
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)


def _vector(data: str, size: str, gradients: Path | None, seed: int) -> tuple[str, Float32Array]:
    """Return a name and float32[n]."""
    if gradients is None and data != HDC:
        from netoffload.collectives.samples import gradient_of, parse_sigma

        sigma = parse_sigma(data)
        if (count := config.parse_size_octets(size) // 4) == 0:
            raise UsageError("size is less than one float32, 4 octets")
        return data, gradient_of(0, count, sigma, seed)
    if gradients is not None:
        from netoffload.collectives.samples import read_gradients

        vectors = read_gradients(gradients)
        return gradients.name, np.ascontiguousarray(vectors.reshape(-1, vectors.shape[-1])[0])
    try:
        from netoffload.training.sample import sample_gradients
    except ImportError as error:
        raise UsageError(f"gradients of hdc need torch: pip install 'netoffload[train]' ({error})") from error
    with notes.status("training HDC for one of its gradients"):
        return HDC, sample_gradients(vectors=1, seed=seed)[0].copy()


def _layout(layers: str | None, count: int) -> Layout:
    from netoffload.compressors import Layout

    if layers is None:
        return Layout.flat(count)
    if layers == HDC:
        try:
            from netoffload.training.networks import build_hdc
        except ImportError as error:
            raise UsageError(f"the layers of hdc need torch: pip install 'netoffload[train]' ({error})") from error
        layout = Layout(tuple(parameter.numel() for parameter in build_hdc(1).parameters()))
    else:
        try:
            layout = Layout(tuple(int(text) for text in layers.split(",")))
        except ValueError as error:
            raise UsageError(f"layers {layers!r} are no lengths: write 392000,500,250000 or hdc") from error
    if layout.count != count:
        raise UsageError(f"the layers have {layout.count} floats together, the vector {count}")
    return layout


def _measure(
    asked: list[Compressor], values: Float32Array, layout: Layout, repeat: int, seed: int
) -> list[dict[str, Any]]:
    from netoffload.bench import compressor_quality as measure

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not notes.is_terminal:
        notes.print("measuring compressors", highlight=False)
    rows = []
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bars:
        task = bars.add_task("", total=len(asked))
        for compressor in asked:
            bars.update(task, description=compressor.spec)
            quality = measure.quality(compressor, values, layout, repeats=repeat, seed=seed)
            speeds = measure.speeds(compressor, values, layout, repeats=repeat)
            bars.advance(task)
            rows.append(
                {"compressor": compressor.name, "spec": compressor.spec, "unbiased": compressor.unbiased}
                | vars(quality)
                | vars(speeds)
            )
    return rows


def _print_table(report: dict[str, Any]) -> None:
    asked = report["configuration"]
    table = Table(box=box.SIMPLE, pad_edge=False, title=f"{asked['values']} floats of {asked['data']}, {report['cpu']}")
    add_columns(table, ("compressor", "ratio", "q", "bias", "mean error", "enc", "dec"), ["compressor"])
    for row in report["results"]:
        table.add_row(
            *(row["spec"], f"{row['ratio']:.2f}", f"{row['variance_ratio']:.3g}", f"{row['bias']:.2g}"),
            *(f"{row['mean_error']:.2e}", f"{row['encode_GBps']:.2f}", f"{row['decode_GBps']:.2f}"),
        )
    console.print(table)
    console.print("enc, dec: GB/s of floats per second of one core's time", highlight=False)
