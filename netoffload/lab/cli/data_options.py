"""The data options of every command that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netoffload.lab.bench.settings import DATA_DIR_HELP, DATA_HELP

Data = Annotated[
    str | None,
    typer.Option(
        help=DATA_HELP,
        show_default=False,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help=DATA_DIR_HELP)]
Sharing = Annotated[
    str,
    typer.Option(
        help="Training data: partitioned among the workers, shared by all of them, or dirichlet:alpha=0.5 (the "
        "smaller alpha is, the more the workers' classes differ)."
    ),
]
