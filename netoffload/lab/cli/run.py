"""``netoffload run``: runs your program as one rank per emulated node."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from netoffload import config
from netoffload.cli.app import app, notes
from netoffload.cli.nic_parameters import flags_of, shows_nic_options
from netoffload.errors import UsageError
from netoffload.lab.cli.testbed import PROGRAM_SETTINGS, Mtu, NoNic, Rate, building, plan_from_options
from netoffload.lab.declared import rates
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.lab.testbed import Testbed

Launcher = Annotated[
    str, typer.Option("--launcher", "--mpi", help="Who starts the ranks: mpich, openmpi (version 5), torchrun.")
]
Offload = Annotated[
    config.Offload | None,
    typer.Option(
        help="Who compresses what the ranks send: inline needs no NICs, so none are built. "
        f"Default: ${config.ENV_OFFLOAD}, else auto."
    ),
]

BUILD_OPTIONS: Final = {"rate": "--rate", **flags_of("run"), "mtu": "--mtu", "no_nic": "--no-nic"}
"""Parameters of ``run`` that describe the testbed it builds, and their flags."""


@app.command(context_settings=PROGRAM_SETTINGS)
@shows_nic_options
def run(
    context: typer.Context,
    program: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    nic: NicSettings,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Ranks, one per node. With --testbed, default: all its nodes.")
    ] = None,
    rate: Rate = None,
    mtu: Mtu = 1500,
    no_nic: NoNic = False,
    testbed: Annotated[str | None, typer.Option(metavar="RUN", help="Use this testbed that is up.")] = None,
    launcher: Launcher = "mpich",
    offload: Offload = None,
    prefix: Annotated[
        bool | None,
        typer.Option("--prefix/--no-prefix", help="Begin every line with its node. Default: only on a terminal."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which all ranks are ended.")] = 3600.0,
) -> None:
    """Run a program of MPI or torch, one rank per node, on a testbed made for it; exit with its exit code.

    A leading [bold]python[/bold] means this Python with [bold]-m mpi4py[/bold], so that an exception ends all ranks
    once MPI is imported. [bold]torchrun[/bold] starts an agent per node, and needs no MPI. A rank finds its address
    in $NETOFFLOAD_ADDRESS, its NIC's control socket in $NETOFFLOAD_CONTROL and the wires' counters in
    $NETOFFLOAD_METER.

    Example: netoffload run -n 4 --rate 1gbit -- python docs/guide/allreduce.py

    Example: netoffload run -n 4 --rate 1gbit --offload inline -- python docs/guide/allreduce.py

    Example: netoffload run -n 4 --rate 1gbit --offload inline --launcher torchrun -- examples/ddp.py
    """
    from netoffload.lab.testbed import launch, run_ranks

    launch.check_launcher(launcher)
    config.check_timeout_s(timeout)
    config.chosen_offload(offload)
    _check_script(program)
    if testbed is not None:
        _refuse_options_of_up(context, testbed)
    has_nics = not no_nic and offload not in (config.Offload.INLINE, config.Offload.OFF)
    with _testbed(testbed, nodes, rate, mtu, nic if has_nics else None) as bed:
        count = nodes or len(bed.plan.nodes)
        if count > len(bed.plan.nodes):
            raise UsageError(f"{count} ranks on {len(bed.plan.nodes)} nodes: each rank needs a node of its own")
        names = [node.name for node in bed.plan.nodes[:count]]
        with_name = sys.stdout.isatty() if prefix is None else prefix
        run_ranks(
            bed,
            range(count),
            program,
            env=None if offload is None else {config.ENV_OFFLOAD: offload},
            timeout_s=timeout,
            mpi=launcher,
            on_stdout=_prefixed(names, sys.stdout) if with_name else None,
            on_stderr=_prefixed(names, sys.stderr) if with_name else None,
        )


def _check_script(program: Sequence[str]) -> None:
    """Refuse a missing Python script before anything is built; a script, unlike a program, is not searched in PATH."""
    words = [word for word in program if word != "--"]
    is_of_python = len(words) > 1 and Path(words[0]).name.startswith("python") and not words[1].startswith("-")
    script = words[int(is_of_python)] if words else ""
    if not script.endswith(".py") or Path(script).exists() or (not is_of_python and shutil.which(script)):
        return
    raise UsageError(f"there is no script {script} in {Path.cwd()}")


def _refuse_options_of_up(context: typer.Context, run_id: str) -> None:
    sources = {name: context.get_parameter_source(name) for name in BUILD_OPTIONS}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        options = ", ".join(BUILD_OPTIONS[name] for name in given)
        raise UsageError(f"testbed {run_id} stays as it is: {options} belong to `netoffload up`")


@contextlib.contextmanager
def _testbed(
    run_id: str | None, nodes: int | None, rate: str | None, mtu: int, nic: NicSettings | None
) -> Iterator[Testbed]:
    """Attach to the testbed of this name, or build one for as long as the context lasts."""
    from netoffload.lab.testbed import Testbed, build

    if run_id is not None:
        build.check_root()
        with Testbed.attach(run_id) as bed:
            yield bed
        return
    if nodes is None:
        raise UsageError("say how many ranks: -n 4")
    with building(plan_from_options(nodes, rate, mtu, nic, None)) as bed:
        notes.print(f"{nodes} nodes, {rates(bed.plan.settings.rate_bps, bed.rate_bps_measured)}", highlight=False)
        yield bed


def _prefixed(names: Sequence[str], stream: TextIO) -> Callable[[int, bytes], None]:
    """Return a function that writes lines of a rank, each behind the name of its node."""

    def write(rank: int, lines: bytes) -> None:
        name = names[rank] if rank >= 0 else "launcher"
        for line in lines.splitlines(keepends=True):  # of octets: text would also be cut at form feeds and the like
            stream.write(f"{name}: {line.decode(errors='replace')}")
        stream.flush()

    return write
