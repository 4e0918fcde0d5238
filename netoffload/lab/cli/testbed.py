"""``netoffload up``, ``run``, ``status``, ``exec``, ``restart`` and ``down``: emulated nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

import typer

from netoffload import config
from netoffload.cli.app import app, console, notes
from netoffload.compiled.progress import COMPILING
from netoffload.errors import UsageError
from netoffload.lab.cli.figures import drawn
from netoffload.lab.cli.grouped import flags_of, shows_nic_options
from netoffload.lab.declared import Table, numbers, rates, words
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.lab.testbed import Plan, RunRecord, Testbed

Nodes = Annotated[int, typer.Option("--nodes", "-n", help="How many nodes, 1..65.")]
Rate = Annotated[
    str | None,
    typer.Option(
        help="Rate of every wire: 1gbit each way, 500mbit/110mbit down and up; or, with commas, of n0, n1, ..., the "
        "last one for all others. Default: unshaped.",
        metavar="RATE",
    ),
]
Mtu = Annotated[int, typer.Option(help="MTU of every link, octets.")]
NoNic = Annotated[bool, typer.Option("--no-nic", help="Plain nodes without NICs.")]
RunId = Annotated[str | None, typer.Option(help="Name of the run, lower-case letters and digits. Default: random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

PROGRAM_SETTINGS = {"allow_interspersed_args": False}
"""Options behind the first word that is no option belong to the program."""


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


@contextlib.contextmanager
def phases(first: str) -> Iterator[Callable[[str], None]]:
    """Show the current step, given to the function, on a line; without a terminal, write only what takes minutes."""

    def say(phrase: str) -> None:
        line.update(phrase)
        if phrase.startswith(COMPILING) and not notes.is_terminal:
            notes.print(phrase, highlight=False, markup=False, soft_wrap=True)

    with notes.status("") as line:
        say(first)
        yield say


@app.command()
@shows_nic_options
def up(
    nic: NicSettings,
    nodes: Nodes = 2,
    rate: Rate = None,
    mtu: Mtu = 1500,
    no_nic: NoNic = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Build a testbed that stays up until [bold]netoffload down[/bold].

    Example: netoffload up -n 5 --rate 1gbit --bound 10
    """
    _refuse_options_of_no_nic(nic, no_nic)
    plan = plan_from_options(nodes, rate, mtu, None if no_nic else nic, run_id)
    with building(plan) as bed:
        bed.detach()
    settings = _settings_json(plan, bed.rate_bps_measured)
    if as_json:
        print(json.dumps({"run": plan.run_id, **settings, "nodes": _nodes(plan)}))
        return
    console.print(f"run {plan.run_id} is up: {len(plan.nodes)} nodes, {_rates(settings)}")
    console.print(f"  a shell on a node: netoffload exec --run {plan.run_id} n0 -- bash", highlight=False)
    console.print(f"  take it down:      netoffload down {plan.run_id}", highlight=False)


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
    _refuse_options_of_no_nic(nic, no_nic)
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


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Only this run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the testbeds of this machine: nodes, rates, NICs, and what crossed the wires.

    Example: netoffload status --json
    """
    from netoffload.lab.testbed import build, list_runs

    build.check_root()
    records = [build.find_run(run)] if run is not None else list_runs()
    states = [_run_state(record) for record in records]
    if as_json:
        print(json.dumps({"runs": states}, indent=2))
    elif not states:
        console.print("no testbed is up")
    for state in states if not as_json else ():
        _print_state(state)


@app.command("exec", context_settings=PROGRAM_SETTINGS)
def exec_(
    node: Annotated[str, typer.Argument(help="n0, or RUN/n0 where several runs are up.")],
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    run: Annotated[str | None, typer.Option(help="Which run, if several are up.")] = None,
) -> None:
    """Run a program on a node, and exit with its exit code.

    Example: netoffload exec n0 -- ip -brief address
    """
    from netoffload.lab.testbed import Testbed, build

    build.check_root()
    of, _, name = node.rpartition("/")
    if run and of and run != of:
        raise UsageError(f"--run {run} and {node} name two runs: give one")
    bed = Testbed.attach(build.find_run(run or of or None).run_id)
    chosen = bed.plan.node(name)
    program = command[1:] if command[0] == "--" else command
    if not program:
        raise UsageError("nothing to run: write the program after --")
    argv = bed.entry_argv(chosen, program)
    os.execve(argv[0], argv, bed.node_env(chosen))


@app.command()
def restart(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="n0, or RUN/n0 where several runs are up.")],
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the NIC; by default it first sends what it holds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End the NIC of a node and start another one in its place, amid traffic: connections and their flows stay.

    With several nodes, it restarts one NIC after the other.

    Examples: netoffload restart n0
              netoffload restart 3fa9c1/n0 3fa9c1/n1 --kill
    """
    from netoffload.lab.testbed import Testbed, build

    build.check_root()
    chosen = []
    for name in names:
        run, _, node = name.rpartition("/")
        bed = Testbed.attach(build.find_run(run or None).run_id)
        chosen.append((bed.plan, bed.plan.node(node).index))
    done = []
    for plan, index in chosen:
        with phases(f"restarting the NIC of {plan.run_id}/n{index}") as say:
            restarted = Testbed.attach(plan.run_id, say).restart_nic(index, kill=kill)
        done.append({"run": plan.run_id, **asdict(restarted)})
        if not as_json:
            before = "none ran" if restarted.pid_before is None else f"was pid {restarted.pid_before}"
            console.print(
                f"{plan.run_id}/{restarted.node}: NIC pid {restarted.pid} ({before}), nobody forwarded for "
                f"{restarted.gone_s:.1f} s",
                highlight=False,
            )
    if as_json:
        print(json.dumps({"restarted": done}))


@app.command()
def down(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN...]", help="Runs to take down. Default: the only one.")
    ] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="All runs of this machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take testbeds down: end their processes, and remove their namespaces and files.

    Examples: netoffload down 3fa9c1
              netoffload down --all
    """
    from netoffload.lab.testbed import build, list_runs

    build.check_root()
    if runs and all_runs:
        raise UsageError("name runs or say --all, not both")
    asked = [build.find_run(run).run_id for run in runs] if runs else [record.run_id for record in list_runs()]
    if len(asked) > 1 and not runs and not all_runs:
        raise UsageError(f"{len(asked)} testbeds are up: name those to take down ({', '.join(asked)}), or say --all")
    ended = [run_id for run_id in asked if build.down(run_id)]
    if as_json:
        print(json.dumps({"down": ended}))
    elif ended:
        console.print(f"took down {', '.join(ended)}")
    else:
        console.print("no testbed is up")


def _refuse_options_of_no_nic(nic: NicSettings, no_nic: bool) -> None:
    if no_nic and nic != type(nic)():
        raise UsageError("--no-nic makes plain nodes: leave it out, or the options of NICs")


def plan_from_options(nodes: int, rate: str | None, mtu: int, nic: NicSettings | None, run_id: str | None) -> Plan:
    """Return the plan that options ask for; without ``run_id`` its run id is random."""
    from netoffload.lab.testbed import TestbedSettings, make_plan, new_run_id, parse_links

    links = () if rate is None else parse_links(rate)
    is_one_rate = len(links) == 1 and links[0].down_bps == links[0].up_bps
    shaped = {"rate_bps": links[0].up_bps} if is_one_rate else {"links": links}
    return make_plan(
        TestbedSettings(nodes=nodes, mtu=mtu, nic=nic, **shaped), new_run_id() if run_id is None else run_id
    )


@contextlib.contextmanager
def building(plan: Plan) -> Iterator[Testbed]:
    """Build a testbed, and show a line that says what is going on until the testbed is up."""
    from netoffload.lab.testbed import Testbed

    with contextlib.ExitStack() as stack:
        with phases("building") as say:
            bed = stack.enter_context(Testbed(plan, progress=say))
        yield bed


def _rates(state: dict[str, Any]) -> str:
    """Write the rates asked for, and the measured one, which of several is the one that is farthest off."""
    from netoffload.lab.testbed import LinkRate

    links, measured_bps = [LinkRate(**link) for link in state["links_asked"]], state["rate_bps_measured"]
    if not links:
        return rates(state["rate_bps_asked"], measured_bps)
    text = ", ".join(f"n{index} {link}" for index, link in enumerate(links)) if links[1:] else str(links[0])
    return text if measured_bps is None else f"{text} (farthest off: {config.format_rate(measured_bps)})"


def _settings_json(plan: Plan, rate_bps_measured: float | None) -> dict[str, Any]:
    nic = plan.settings.nic
    return {
        "rate_bps_asked": plan.settings.rate_bps,
        "links_asked": [asdict(link) for link in plan.settings.links],
        "rate_bps_measured": rate_bps_measured,
        "mtu": plan.settings.mtu,
        "nic": None if nic is None else asdict(nic),
    }


def _nodes(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "address": node.address,
            "netns": node.netns,
            "device": node.device,
            "nic_control": None if node.control_path is None else str(node.control_path),
        }
        for node in plan.nodes
    ]


def _run_state(record: RunRecord) -> dict[str, Any]:
    """Describe a run from its journal, and its wires from the kernel where it is up."""
    from netoffload.lab.testbed import build, nics, plan_of_run

    plan, wires, states = plan_of_run(record), build.read_wires(record), nics.states(record)
    return {
        "run": record.run_id,
        "state": record.state,
        "owner_pid": None if record.detached else record.owner.pid,
        **_settings_json(plan, record.rate_bps_measured),
        "nodes": [{**node, "nic": states.get(node["name"]), "wire": wires.get(node["name"])} for node in _nodes(plan)],
    }


def _print_state(state: dict[str, Any]) -> None:
    rows = []
    for node in state["nodes"]:
        nic, wire = node["nic"], node["wire"]
        said = "none" if nic is None else f"pid {nic['pid']}" + ("" if nic["alive"] else " (gone)")
        sent = [f"{wire[key]:,}" for key in ("tx_octets", "rx_octets", "tx_frames")] if wire else ["?", "?", "?"]
        rows.append([node["name"], node["address"], said, *sent])
    title = f"run {state['run']}: {state['state']}, {_rates(state)}"
    columns = [*map(words, ("node", "address", "NIC")), *numbers("sent", "received", "frames sent")]
    console.print(drawn(Table(title, columns, rows)))


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
        notes.print(f"{nodes} nodes, {_rates(_settings_json(bed.plan, bed.rate_bps_measured))}", highlight=False)
        yield bed


def _prefixed(names: Sequence[str], stream: TextIO) -> Callable[[int, bytes], None]:
    """Return a function that writes lines of a rank, each behind the name of its node."""

    def write(rank: int, lines: bytes) -> None:
        name = names[rank] if rank >= 0 else "launcher"
        for line in lines.splitlines(keepends=True):  # of octets: text would also be cut at form feeds and the like
            stream.write(f"{name}: {line.decode(errors='replace')}")
        stream.flush()

    return write
