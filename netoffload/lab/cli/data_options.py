"""The data options of every command that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option(
        help="digits (comes with scikit-learn), mnist, fashion-mnist, cifar10, text (comes with Python), or synthetic"
        "[:side=64,classes=10,...]: noise of any shape. Default: the model's own (see --list).",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with MNIST's four IDX files, or CIFAR-10's .npz file or python batches.")
]
Sharing = Annotated[
    str,
    typer.Option(
        help="Training data: partitioned among the workers, shared by all of them, or dirichlet:alpha=0.5 (the "
        "smaller alpha is, the more the workers' classes differ)."
    ),
]
