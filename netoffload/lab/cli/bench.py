"""``netoffload bench``: one command per experiment of ``netoffload.lab.bench``."""

from __future__ import annotations

import importlib

import typer

from netoffload.cli.app import app
from netoffload.lab import bench

bench_app = typer.Typer(no_args_is_help=True, help="Time collectives over emulated links, codecs, and NICs.")
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def _bench() -> None:
    """Time collectives over emulated links, codecs, and NICs."""


for _name in bench.EXPERIMENTS:
    _module = importlib.import_module(f"netoffload.lab.cli.bench_{bench.module_name(_name)}")
    bench_app.command(_name)(_module.command)
