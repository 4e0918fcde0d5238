"""``netoffload bench codec``: what every codec and kernel costs and saves, beside memcpy and general compressors."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from netoffload import config
from netoffload.cli.app import add_columns, console, notes, told_anyway
from netoffload.cli.bench import bench_app
from netoffload.errors import UsageError

if TYPE_CHECKING:
    from netoffload.bench.codec_speed import Measurement
    from netoffload.codec import Codec
    from netoffload.compiled.arrays import Float32Array

DEFAULT_SIZES: Final = ("64KiB", "1MB", "16MB")
DEFAULT_DATA: Final = ("gaussian:0.001", "gaussian:0.01", "gaussian:0.1")
HDC: Final = "hdc"
WORDS: Final = ("data", "codec", "kernel")


@bench_app.command("codec")
def bench_codec(
    codec: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(config.CODECS)}; repeat for several; default: all.")
    ] = None,
    bound: Annotated[list[int] | None, typer.Option(help="Error bound 2^-BOUND; repeat for several.")] = None,
    size: Annotated[list[str] | None, typer.Option(help=f"Octets of the vector; default: {DEFAULT_SIZES}.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="gaussian:STANDARD_DEVIATION or hdc; default: 0.001, 0.01, 0.1 and hdc.")
    ] = None,
    gradients: Annotated[Path | None, typer.Option(help="Also a float32 .npy file; by default instead of hdc.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="avx512, avx2, plain; default: all that run here.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed samples of each.")] = 9,
    seed: Annotated[int, typer.Option(min=0, help="Of the data.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time the codecs, after checking what they decode against the oracle.

    hdc is a sample of gradients that one process trains first; a file comes
    from 'netoffload train hdc --capture FILE'. A vector shorter than the size
    is repeated. Speeds are octets of floats per second, medians; 'halves' is
    how NICs decode a block, from its front and its middle at once. Ctrl-C
    prints what has been measured.

    Example: netoffload bench codec --codec inceptionn --codec bounded --size 16MB
    """
    from netoffload.codec import get, kernels
    from netoffload.compressors import libraries as peers

    for name in kernel or []:
        config.check_choice("kernel (on this CPU)", name, tuple(kernels.usable_kernels()))
    asked = Asked(
        codecs=[get(name) for name in dict.fromkeys(codec or config.CODECS)],
        bounds=[config.check_bound_k(bound_k) for bound_k in dict.fromkeys(bound or [config.BOUND_K_DEFAULT])],
        floats=[_floats(text) for text in size or DEFAULT_SIZES],
        kernels=list(dict.fromkeys(kernel or [])),
        repeat=repeat,
    )
    vectors = _vectors(data, gradients, max(asked.floats), seed)
    if absent := peers.missing():
        notes.print(f"not installed: {', '.join(absent)}; for more peers pip install 'netoffload\\[bench]'")
    found = Findings([], [])

    def tell(reason: str | None) -> None:
        if found.results:
            report = _report(asked, found, reason)
            print(json.dumps(report, indent=2)) if as_json else _print_tables(report)

    with told_anyway(tell):
        _measure(asked, vectors, found)


@dataclass(frozen=True)
class Asked:
    """What a person asked for."""

    codecs: list[Codec]
    bounds: list[int]
    floats: list[int]
    kernels: list[str]
    repeat: int


@dataclass(frozen=True)
class Findings:
    """What has been measured so far: rows of codecs and of general compressors."""

    results: list[dict[str, Any]]
    peers: list[dict[str, Any]]


def _floats(text: str) -> int:
    if (floats := config.parse_size_octets(text) // 4) == 0:
        raise UsageError("size is less than one float32, 4 octets")
    return floats


def _vectors(data: list[str] | None, gradients: Path | None, floats: int, seed: int) -> dict[str, Float32Array]:
    """Return float32[floats] by name."""
    from netoffload.collectives.samples import gradient_of, parse_sigma, read_gradients

    names = list(dict.fromkeys(data or (DEFAULT_DATA if gradients else (*DEFAULT_DATA, HDC))))
    sigmas = {name: parse_sigma(name) for name in names if name != HDC}
    vectors = {name: gradient_of(0, floats, sigma, seed) for name, sigma in sigmas.items()}
    if gradients:
        vectors[gradients.name] = np.resize(read_gradients(gradients), floats)
    if HDC not in names:
        return vectors
    try:
        from netoffload.training.sample import sample_gradients
    except ImportError as error:
        if data:
            raise UsageError(f"gradients of HDC need torch: pip install 'netoffload[train]' ({error})") from error
        notes.print("torch is not installed: no gradients of HDC", highlight=False)
        return vectors
    with notes.status("training HDC for a sample of its gradients"):
        vectors[HDC] = np.resize(sample_gradients(seed=seed), floats)
    return vectors


def _measure(asked: Asked, vectors: dict[str, Float32Array], found: Findings) -> None:
    from netoffload.bench import codec_speed as measure
    from netoffload.compressors import libraries as peers

    contenders = measure.contenders(asked.codecs, asked.kernels)
    steps = len(vectors) * (len(asked.codecs) * len(asked.bounds) + 1)
    with _progress(steps) as advance:
        for name, vector in vectors.items():
            for codec in asked.codecs:
                own = [contender for contender in contenders if contender.codec is codec]
                for bound_k in asked.bounds if codec.oracle.compress else asked.bounds[:1]:
                    advance(f"{name}, {codec.name}")
                    wanted = codec.oracle.round_trip(vector, bound_k)
                    for contender, floats in itertools.product(own, asked.floats):
                        parts = vector[:floats], wanted[:floats]
                        row = _row(name, codec.name, bound_k if contender.takes_bound else None, contender.kernel)
                        found.results.append(
                            row | _figures(measure.measure(contender, *parts, bound_k, asked.repeat), floats)
                        )
            advance(f"{name}, peers")
            for peer, floats in itertools.product(peers.available(), asked.floats):
                found.peers.append(_peer(peer, name, vector[:floats], asked))


def _report(asked: Asked, found: Findings, reason: str | None) -> dict[str, Any]:
    """Return what was measured, and why that is not everything."""
    from netoffload import environment
    from netoffload.codec import kernels

    largest = [row["memcpy_GBps"] for row in found.results if row["size_octets"] == 4 * max(asked.floats)]
    return {
        "memcpy_GBps": float(np.median(largest)) if largest else None,
        "results": found.results,
        "peers": found.peers,
        "missing": reason,
        "configuration": {"repeat": asked.repeat, "bounds": asked.bounds},
        "kernel": kernels.KERNEL,
        "versions": environment.versions("numba", "llvmlite", "cramjam", "zfpy"),
        "cpu": environment.cpu_model(),
    }


def _row(data: str, codec: str, bound_k: int | None, kernel: str) -> dict[str, Any]:
    return {"codec": codec, "k": bound_k, "kernel": kernel, "data": data}


def _figures(measured: Measurement, floats: int) -> dict[str, Any]:
    return {
        "size_octets": 4 * floats,
        "compress_GBps": measured.compress.median_GBps,
        "decompress_GBps": measured.decompress.median_GBps,
        "decompress_halves_GBps": measured.decompress_halves.median_GBps,
        "compress_best_GBps": measured.compress.best_GBps,
        "decompress_best_GBps": measured.decompress.best_GBps,
        "decompress_halves_best_GBps": measured.decompress_halves.best_GBps,
        "memcpy_GBps": measured.memcpy.median_GBps,
        "memcpy_best_GBps": measured.memcpy.best_GBps,
        "compress_over_memcpy": measured.compress.median_GBps / measured.memcpy.median_GBps,
        "decompress_over_memcpy": measured.decompress.median_GBps / measured.memcpy.median_GBps,
        "decompress_halves_over_memcpy": measured.decompress_halves.median_GBps / measured.memcpy.median_GBps,
        "ratio": measured.quality.ratio,
        "max_error": measured.quality.max_error,
        "mean_error": measured.quality.mean_error,
        "shares": list(measured.quality.shares),
    }


def _peer(peer: str, data: str, values: Float32Array, asked: Asked) -> dict[str, Any]:
    from netoffload.bench import library_speed

    measured = library_speed.measure_library(peer, values, asked.bounds[0], asked.repeat)
    return {
        "name": peer,
        "k": asked.bounds[0] if peer == "zfp" else None,
        "data": data,
        "size_octets": values.nbytes,
        "compress_GBps": measured.compress.median_GBps,
        "decompress_GBps": measured.decompress.median_GBps,
        "ratio": measured.ratio,
        "max_error": measured.max_error,
    }


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if not notes.is_terminal:
        notes.print("measuring codecs", highlight=False)
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bars:
        task = bars.add_task("", total=steps)
        yield lambda what: bars.update(task, advance=1, description=what)


def _print_tables(report: dict[str, Any]) -> None:
    speed = _table(f"GB/s of float32 on {report['cpu']}, medians")
    columns = ("data", "MB", "codec", "k", "kernel", "comp", "/memcpy", "decomp", "/memcpy", "halves")
    add_columns(speed, columns, WORDS)
    for row in report["results"] + report["peers"]:
        speed.add_row(
            *(row["data"], f"{row['size_octets'] / 1e6:.3g}", row.get("codec") or row["name"], str(row["k"] or "-")),
            row.get("kernel", "-"),
            *(f"{row['compress_GBps']:.2f}", _share(row, "compress_over_memcpy")),
            *(f"{row['decompress_GBps']:.2f}", _share(row, "decompress_over_memcpy")),
            _share(row, "decompress_halves_GBps"),
        )
    console.print(speed)
    quality = _table("What it saves and costs")
    errors = ("worst\nerror", "mean\nerror")
    add_columns(quality, ("data", "MB", "codec", "k", "ratio", *errors, "% of 0, 8, 16,\n32 bits"), WORDS)
    seen = set()
    for row in report["results"] + report["peers"]:
        name = row.get("codec") or row["name"]
        if (key := (row["data"], row["size_octets"], name, row["k"])) in seen:
            continue  # another kernel, the same octets
        seen.add(key)
        quality.add_row(
            *(row["data"], f"{row['size_octets'] / 1e6:.3g}", name, str(row["k"] or "-"), f"{row['ratio']:.2f}"),
            f"{row['max_error']:.2e}",
            f"{row['mean_error']:.2e}" if "mean_error" in row else "-",
            " ".join(f"{100 * share:.1f}" for share in row["shares"]) if "shares" in row else "-",
        )
    console.print(quality)
    if report["memcpy_GBps"]:
        console.print(f"memcpy of the largest vector: {report['memcpy_GBps']:.1f} GB/s", highlight=False)


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE, padding=0, show_edge=False, title=title)


def _share(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:.2f}" if key in row else "-"
