"""``netoffload bench codec``: what every codec and kernel costs and saves, beside memcpy and general compressors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netoffload import config
from netoffload.cli.app import console, notes
from netoffload.cli.codec_options import Bounds, Codecs
from netoffload.lab.cli.bench_command import AsJson, run
from netoffload.lab.cli.figures import mega, percent, table

if TYPE_CHECKING:
    from netoffload.lab.bench.codec import Findings

DEFAULT_SIZES: Final = ("64KiB", "1MB", "16MB")
WORDS: Final = ("data", "codec", "kernel")
SPEEDS: Final = ("data", "MB", "codec", "k", "kernel", "comp", "/memcpy", "decomp", "/memcpy", "halves")
QUALITIES: Final = ("data", "MB", "codec", "k", "ratio", "worst\nerror", "mean\nerror", "% of 0, 8, 16,\n32 bits")


def command(
    codec: Codecs = None,
    bound: Bounds = None,
    size: Annotated[list[str] | None, typer.Option(help=f"Octets of the vector; default: {DEFAULT_SIZES}.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="gaussian:STANDARD_DEVIATION or hdc; default: 0.001, 0.01, 0.1 and hdc.")
    ] = None,
    gradients: Annotated[Path | None, typer.Option(help="Also a float32 .npy file; replaces the default hdc.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="avx512, avx2, plain; default: all that run here.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed samples of each codec and vector.")] = 9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data.")] = 1,
    figure: Annotated[Path | None, typer.Option(help="Also draw ratio against worst error: .png, .svg, .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time the codecs, after checking what they decode against the oracle.

    Without --codec it times all codecs. hdc is a sample of gradients from a
    short training; 'netoffload train hdc --capture FILE' writes such a file.
    A vector shorter than the size is repeated. Speeds are octets of floats
    per second, medians; 'halves' is how NICs decode a block: from its front
    and its middle at once. Ctrl-C prints what has been measured.

    Example: netoffload bench codec --codec inceptionn --codec bounded --size 16MB
             netoffload bench codec --bound 6 --bound 10 --figure pareto.png
    """
    from netoffload.lab.bench import codec as experiment

    asked = experiment.Asked(
        codecs=tuple(dict.fromkeys(codec or ())),
        bounds=tuple(dict.fromkeys(bound or [config.BOUND_K_DEFAULT])),
        sizes=tuple(size or DEFAULT_SIZES),
        data=tuple(data or ()),
        file=gradients,
        kernels=tuple(dict.fromkeys(kernel or ())),
        repeat=repeat,
        seed=seed,
    )
    measured = experiment.CodecSpeed(asked)
    run(measured, _print_tables, as_json=as_json)
    if figure is not None and (found := measured.findings(None)) is not None:
        _draw(found, figure)


def _draw(found: Findings, path: Path) -> None:
    from netoffload.lab.reports.pareto import Point, draw_pareto

    points = [
        Point(row.data, row.codec, row.measured.quality.max_error, row.measured.quality.ratio, row.k)
        for row in found.results
    ]
    points += [Point(peer.data, peer.name, peer.max_error, peer.ratio, peer.k) for peer in found.peers]
    draw_pareto(list(dict.fromkeys(points)), "Numbers beside the points: k of the error bound 2^-k", path)
    notes.print(f"the figure is in {path}", highlight=False)


def _print_tables(found: Findings) -> None:
    speed = table(f"GB/s of float32 on {found.cpu}, medians", SPEEDS, WORDS, padding=0)
    quality = table("What it saves and costs", QUALITIES, WORDS, padding=0)
    seen = set()
    for row in found.results:
        what = (row.data, mega(row.size_octets, ".3g"), row.codec, str(row.k or "-"))
        did = row.measured
        speed.add_row(
            *(*what, row.kernel, f"{did.compress.median_GBps:.2f}", f"{row.over_memcpy(did.compress):.2f}"),
            *(f"{did.decompress.median_GBps:.2f}", f"{row.over_memcpy(did.decompress):.2f}"),
            f"{did.decompress_halves.median_GBps:.2f}",
        )
        if (vector := (row.data, row.size_octets, row.codec, row.k)) not in seen:  # another kernel, the same octets
            errors = (f"{did.quality.max_error:.2e}", f"{did.quality.mean_error:.2e}")
            quality.add_row(*what, f"{did.quality.ratio:.2f}", *errors, " ".join(map(percent, did.quality.shares)))
        seen.add(vector)
    for peer in found.peers:
        what = (peer.data, mega(peer.size_octets, ".3g"), peer.name, str(peer.k or "-"))
        speed.add_row(*what, "-", f"{peer.compress_GBps:.2f}", "-", f"{peer.decompress_GBps:.2f}", "-", "-")
        quality.add_row(*what, f"{peer.ratio:.2f}", f"{peer.max_error:.2e}", "-", "-")
    console.print(speed)
    console.print(quality)
    if found.memcpy_GBps:
        console.print(f"memcpy of the largest vector: {found.memcpy_GBps:.1f} GB/s", highlight=False)
