"""``netoffload verify torch``: compares the backend of ``torch.distributed`` with gloo."""

from __future__ import annotations

import json
import os
from typing import Annotated, Final

import typer
from rich.table import Table

from netoffload import config
from netoffload.cli.app import console, notes
from netoffload.errors import UsageError
from netoffload.lab.cli.verify import MISMATCH, AsJson, verify_app

QUICK_DTYPES: Final = ("float32", "bfloat16", "int64", "bool")
QUICK_SHAPES: Final = ((0,), (6, 5), (9001,))


@verify_app.command("torch")
def verify_torch(
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Largest number of ranks; groups of 2, 3, 4 are tried, too.")
    ] = 8,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this type; repeat for several.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One group, some types and shapes.")] = False,
    seed: Annotated[int, typer.Option(help="Decides all values.")] = 1,
    timeout: Annotated[float, typer.Option(help="Time limit of the process groups, in seconds.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Compare every call of torch.distributed over netoffload with gloo's, in the same processes.

    It tries every type that gloo takes, scalars, empty and transposed tensors,
    and groups of several sizes. It compares bits, and sums of floats within
    their rounding. At the end it kills a rank, and all others must name it.
    The command ends with exit code 1 otherwise.

    Example: netoffload verify torch -n 4 --quick
    """
    from netoffload.torch import backend_verify
    from netoffload.torch.backend_cases import DTYPES

    config.check_timeout_s(timeout)
    if ranks < 2:
        raise UsageError(f"{ranks} ranks have nobody to talk to: say -n 4")
    known = {str(one).removeprefix("torch."): one for one in DTYPES}
    names = dtype or (QUICK_DTYPES if quick else tuple(known))
    for name in names:
        config.check_choice("dtype", name, tuple(known))
    trial = backend_verify.Trial(
        ranks,
        () if quick else backend_verify.SIZES,
        QUICK_SHAPES if quick else backend_verify.SHAPES,
        tuple(known[name] for name in names),
        seed,
        timeout,
    )
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with notes.status("comparing with gloo"):
        record = backend_verify.run(trial)
    if as_json:
        print(json.dumps(record))
    else:
        table = Table("call", "ranks", *names, box=None)
        cells: dict[tuple[str, str], dict[str, str]] = {}
        for row in record["rows"]:
            of_call = cells.setdefault((row["call"], ",".join(map(str, row["ranks"]))), {})
            verdict = "equal" if row["exact"] == row["tried"] else "rounding"
            of_call[row["dtype"]] = "WRONG" if row["wrong"] else verdict
        for (call, members), of_call in cells.items():
            table.add_row(call, members, *(of_call.get(name, "-") for name in names))
        console.print(table)
        for text in [*record["wrong"], *(text for row in record["rows"] for text in row["wrong"])]:
            notes.print(text, highlight=False, markup=False)
    if not record["holds"]:
        raise typer.Exit(MISMATCH)
