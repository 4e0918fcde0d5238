"""``netoffload verify``: whether codecs and collectives are right on this machine, and between these ranks."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Final

import typer

from netoffload import config
from netoffload.cli.app import app, console, need, notes, progress_bar
from netoffload.errors import NetOffloadError, UsageError

MISMATCH: Final = 1
"""Exit code."""

OF_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"

verify_app = typer.Typer(no_args_is_help=True)
app.add_typer(verify_app, name="verify")

CODEC_NAMES: Final = ", ".join(config.CODECS)
Bound = Annotated[int, typer.Option(help="Error bound 2^-BOUND, 1..16.")]
Codecs = Annotated[
    list[str] | None, typer.Option("--codec", help=f"{CODEC_NAMES}; repeat for several.", show_default=False)
]
Seed = Annotated[int, typer.Option(min=0, help="Decides all values.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")]


@verify_app.callback()
def _verify() -> None:
    """Compare codecs with their definitions, collectives with the ranks' own, and streams with codecs."""


@verify_app.command("codec")
def verify_codec(
    codec: Codecs = None,
    bound: Bound = config.BOUND_K_DEFAULT,
    count: Annotated[str, typer.Option(help="Floats: 4096, 200k, 20M.")] = "200k",
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Send floats through the kernels that this CPU uses and through the oracle, and compare the bits.

    The floats are those at the edges of every exponent, random bit patterns,
    and numbers like gradients'. The command compares payloads, decoded floats,
    and both steps in one. It ends with exit code 1 at a difference. Default:
    every codec.

    Example: netoffload verify codec --codec inceptionn --codec bounded --bound 14
    """
    from netoffload.codec import get, kernels
    from netoffload.codec.verify import first_difference

    wanted = config.parse_count(count)
    config.check_bound_k(bound)
    codecs = [get(name) for name in dict.fromkeys(codec or config.CODECS)]
    wrong: dict[str, str | None] = {}
    for one in codecs:
        with shown_progress(one.name, wanted) as show:
            wrong[one.name] = first_difference(one, bound, wanted, seed, show)
    if as_json:
        print(json.dumps({"kernel": kernels.KERNEL, "k": bound, "count": wanted, "seed": seed, "wrong": wrong}))
    for name, text in {} if as_json else wrong.items():
        verdict = text or f"{wanted} floats are the oracle's"
        console.print(f"{name} k={bound} {kernels.KERNEL}: {verdict}", soft_wrap=True, highlight=False)
    if any(wrong.values()):
        raise typer.Exit(MISMATCH)


@verify_app.command("collectives")
def verify_collectives(
    count: Annotated[str, typer.Option(help="Floats of a vector: 7, 200k, 1M.")] = "200k",
    offload: Annotated[
        config.Offload | None, typer.Option(help="Who compresses.", show_default="$NETOFFLOAD_OFFLOAD, else auto")
    ] = None,
    seed: Seed = 1,
    timeout: Annotated[float, typer.Option(help="Silence in seconds after which a rank is lost.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Make every collective once over the ranks at hand, and compare the results bit for bit.

    Start it as the ranks of a job: mpiexec -n 4 netoffload verify collectives
    compares CompComm with mpi4py, and sums through codecs with their
    definition. Under torchrun --no-python it compares the backend of
    torch.distributed with gloo. The command ends with exit code 1 at a
    difference.

    Example: netoffload verify collectives --count 1M
    """
    wanted = config.parse_count(count)
    if wanted >= 2**31:
        raise UsageError(f"--count {count} is too many for a call of MPI: give less than 2^31")
    config.check_timeout_s(timeout)
    make: Callable[[], dict[str, Any]]
    abort: Callable[[int], object] | None = None  # torchrun ends the other ranks by itself
    if OF_TORCHRUN in os.environ:
        need("torch")
        from netoffload.torch.verify import leave
        from netoffload.torch.verify import one_round as round_of_torch

        rank, make = int(os.environ["RANK"]), partial(round_of_torch, wanted, seed, timeout)
    else:
        need("mpi4py")
        from netoffload_mpi import MPI
        from netoffload_mpi.verify import one_round

        world = MPI.COMM_WORLD
        rank, leave, abort = world.rank, world.Barrier, world.Abort
        make = partial(one_round, wanted, seed, timeout, offload)
    try:
        record = make()
        wrong = record.pop("wrong")
        if rank == 0:
            _print_round(record, wrong, as_json)
    except (NetOffloadError, OSError, MemoryError) as error:
        if abort is None:
            raise
        notes.print(f"netoffload: rank {rank}: {error}", soft_wrap=True, highlight=False, markup=False)
        abort(getattr(error, "exit_code", 1))  # or the launcher would wait for ranks that wait for this one
        raise
    leave()  # the launcher ends all ranks as soon as one has failed
    if any(wrong.values()):
        raise typer.Exit(MISMATCH)


def _print_round(record: dict[str, Any], wrong: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**record, "wrong": wrong}))
    else:
        for name, texts in wrong.items():
            console.print(f"{name}: {'; '.join(texts) or 'right'}", soft_wrap=True, highlight=False, markup=False)
        console.print(", ".join(f"{name} {value}" for name, value in record.items()), soft_wrap=True, highlight=False)
    sys.stdout.flush()  # an error comes here, and not when the rank ends


@contextlib.contextmanager
def shown_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; yield a function to call with the number that is done."""
    with progress_bar() as say:
        say(f"checking {what}")
        yield lambda done: say(what, done / total)
