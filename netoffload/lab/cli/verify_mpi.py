"""``netoffload verify collectives``, ``programs``, ``failures`` and ``group``: ranks on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from netoffload import config
from netoffload.cli.app import console, need, notes
from netoffload.cli.codec_options import Bound, NicCodec
from netoffload.errors import RunError, UsageError
from netoffload.lab.cli.verify import MISMATCH, AsJson, shown_progress, verify_app

Mpi = Annotated[str, typer.Option(help="Who starts the ranks: mpich, openmpi (version 5).")]

Offload = Annotated[config.Offload, typer.Option(help="Who compresses: the NICs, or the ranks by themselves.")]

STEP: Final = re.compile(rb"verify progress (\d+)/(\d+) (.*)")
FAMILIES_TIMEOUT_S: Final = 120.0
"""Time for ranks to start, to lose one of them and to report; the silence of a stopped rank comes on top."""


@verify_app.command("collectives")
def verify_collectives(
    mpi: Mpi = "mpich",
    ranks: Annotated[
        int, typer.Option("--ranks", "-n", help="Largest number of ranks; smaller groups are tried, too.")
    ] = 8,
    sizes: Annotated[str, typer.Option(help="Floats of a vector, or of a block.")] = "0,1,7,1024,1000003",
    call: Annotated[
        list[str] | None, typer.Option(help="Only this call, by mpi4py's name; repeat for several.")
    ] = None,
    codec: NicCodec = "inceptionn",
    bound: Bound = config.BOUND_K_DEFAULT,
    offload: Offload = config.Offload.NIC,
    seed: Annotated[int, typer.Option(help="Decides all values.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds after which everything is ended.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Compare every call of CompComm with mpi4py's own, and with the codec's arithmetic, bit for bit.

    It tries calls that block and calls in the background, in place and not,
    with uneven counts and gaps, on 1, 2, 3, 4, 5, 8 and all ranks. It ends with
    exit code 1 at the first difference. To check calls through NICs:
    netoffload run -n 4 -- -m netoffload_mpi.verify

    Example: netoffload verify collectives --mpi openmpi --sizes 0,7,1024

    Example: netoffload verify collectives --offload inline --codec bounded
    """
    config.check_choice("codec", codec, config.CODECS)
    config.check_bound_k(bound)
    config.check_timeout_s(timeout)
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot try anything: say -n 8")
    words = ["-m", "netoffload_mpi.verify", "--progress", *(["--json"] if as_json else [])]
    words += ["--codec", codec, "--bound", str(bound), "--seed", str(seed), "--offload", offload]
    words += [word for size in sizes.split(",") for word in ("--size", _whole_number(size))]
    words += [word for name in call or () for word in ("--call", name)]
    _run_shown("calls", ranks, words, mpi, timeout)


def _run_shown(what: str, ranks: int, words: list[str], mpi: str, timeout_s: float) -> None:
    """Run a rank program that counts the ``what`` it has done, and exit with its exit code."""
    from netoffload.lab.testbed import run_local_ranks

    need("mpi4py")
    said: list[str] = []
    with shown_progress(what, None) as show:

        def hear(_rank: int, lines: bytes) -> None:
            for line in lines.splitlines():
                if step := STEP.fullmatch(line):
                    show(int(step[1]), int(step[2]), step[3].decode())
                elif line.startswith(b"netoffload: "):
                    said.append(line.decode(errors="replace"))
                else:
                    notes.print(line.decode(errors="replace"), highlight=False, markup=False)

        try:
            run_local_ranks(ranks, words, mpi=mpi, timeout_s=timeout_s, on_stderr=hear)
        except RunError as error:
            if not said:
                raise
            print(said[0], file=sys.stderr)
            raise typer.Exit(error.exit_code) from None


@verify_app.command("programs")
def verify_programs(
    programs: Annotated[str, typer.Option(help="How many: 200, 10k.")] = "10k",
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="MPI ranks; 1: threads of one process.")] = 1,
    mpi: Mpi = "mpich",
    seed: Annotated[int, typer.Option(help="Decides all programs.")] = 1,
    first: Annotated[int, typer.Option(help="Begin with this program.")] = 0,
    limit: Annotated[float, typer.Option(help="Seconds after which a program hangs.")] = 60.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which everything is ended.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Run random legal programs of messages and collectives; check their results, and that none hangs.

    The generator of a program knows every result. With several ranks, mpi4py's
    own calls run each program as well. The command ends with exit code 1 at the
    first program that is wrong or hangs, and prints its number:
    --first NUMBER --programs 1 repeats it.

    Example: netoffload verify programs -n 3 --programs 200
    """
    config.check_timeout_s(limit)
    config.check_timeout_s(timeout)
    count = config.parse_count(programs)
    if ranks < 1 or count < 1 or first < 0:
        raise UsageError(f"cannot try {count} programs from number {first} on {ranks} ranks: say --programs 200 -n 3")
    words = ["-m", "netoffload_mpi.verify.random_programs", "--progress", *(["--json"] if as_json else [])]
    words += ["--programs", str(count), "--seed", str(seed), "--first", str(first), "--limit", str(limit)]
    _run_shown("programs", ranks, words, mpi, timeout)


@verify_app.command("failures")
def verify_failures(
    mpi: Mpi = "mpich",
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="At least 3.")] = 5,
    victim: Annotated[int, typer.Option(help="The rank that is lost.")] = 2,
    strike: Annotated[str, typer.Option(help="How: kill (-9), or stop.")] = "kill",
    timeout: Annotated[float, typer.Option(help="Silence in seconds after which a rank is lost.")] = 30.0,
    offload: Offload = config.Offload.NIC,
    seed: Annotated[int, typer.Option(help="Decides the moment.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Lose a rank in the middle of every kind of call; every other rank must name it in time.

    All kinds of calls go on at the same time, each on a communicator of its
    own. The command ends with exit code 1 if a rank hangs, or raises another
    error.

    Example: netoffload verify failures --strike stop --timeout 4
    """
    from netoffload.lab.testbed import run_local_ranks

    config.check_choice("strike", strike, ("kill", "stop"))
    need("mpi4py")
    if ranks < 3 or not 0 <= victim < ranks:
        raise UsageError(f"cannot lose rank {victim} of {ranks}: at least two others must remain, say -n 5 --victim 2")
    if timeout <= 0:
        raise UsageError(f"--timeout {timeout:g}: a rank is lost after some seconds of silence: give more than 0")
    words = ["-m", "netoffload_mpi.verify.failures", "--victim", str(victim), "--strike", strike]
    words += ["--timeout", str(timeout), "--seed", str(seed), "--offload", offload]
    heard: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="netoffload-") as name:
        folder = Path(name)
        limit_s = FAMILIES_TIMEOUT_S + 2 * timeout
        try:
            with notes.status("losing a rank"):
                run_local_ranks(
                    ranks,
                    [*words, "--out", name],
                    mpi=mpi,
                    timeout_s=limit_s,
                    on_stderr=lambda _, lines: heard.append(lines),  # launchers lament the dead at length
                    until=lambda: len(list(folder.glob("told.*"))) == ranks - 1,
                )
        except RunError as error:
            if not (folder / "struck").exists():
                raise  # nothing was tried
            heard.append(str(error).encode())
        families = _judged(folder, ranks, victim, strike, timeout)
    if as_json:
        print(json.dumps({"mpi": mpi, "ranks": ranks, "victim": victim, "strike": strike, "families": families}))
    else:
        table = Table("call", "done before", "ranks told", "latest, s", "wrong", box=None)
        for name, told in families.items():
            latest = "-" if told["latest_s"] is None else f"{told['latest_s']:.3f}"
            table.add_row(name, str(told["calls"]), str(told["right"]), latest, "; ".join(told["wrong"]))
        console.print(table)
    if not families or any(told["right"] != ranks - 1 for told in families.values()):
        notes.print(b"".join(heard).decode(errors="replace"), highlight=False, markup=False)
        raise typer.Exit(MISMATCH)


@verify_app.command("group")
def verify_group(
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Processes of this machine, at least 2.")] = 256,
    files: Annotated[int, typer.Option(help="Files that each rank may open: its ulimit -n.")] = 1024,
    lose: Annotated[int | None, typer.Option(help="Kill this rank at the end; all others must name it.")] = None,
    timeout: Annotated[float, typer.Option(help="Silence in seconds after which a rank is lost.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Connect many ranks, without MPI and NICs; sum a vector, send messages, and count sockets.

    It ends with exit code 1 if a rank finds something wrong.

    Example: netoffload verify group -n 256 --files 1024 --lose 100
    """
    config.check_timeout_s(timeout)
    if ranks < 2 or files < 1 or (lose is not None and not 0 <= lose < ranks):
        raise UsageError(
            f"cannot try {ranks} ranks with {files} files each and lose rank {lose}: say -n 256 --lose 100"
        )
    os.environ["MPI4PY_RC_INITIALIZE"] = "0"  # forked ranks cannot share one initialised MPI
    from netoffload_mpi.verify import group

    record = group.run(group.Trial(ranks, files, timeout, lose))
    if as_json:
        print(json.dumps(record))
    else:
        table = Table("ranks", *record["most"], box=None)
        table.add_row(str(ranks), *("-" if one is None else f"{one:.4g}" for one in record["most"].values()))
        console.print(table)
        for text in record["wrong"]:
            notes.print(text, highlight=False, markup=False)
    if record["wrong"]:
        raise typer.Exit(MISMATCH)


def _judged(folder: Path, ranks: int, victim: int, strike: str, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return the survivors' reports by family of calls: who named the rank, what was wrong, the slowest rank's time."""
    struck_s = json.loads((folder / "struck").read_text())["at_s"]
    said = "died|is gone" if strike == "kill" else "was silent"
    named = re.compile(rf"PeerLostError: rank {victim} ({said})\b.*")
    limit_s = timeout_s if strike == "kill" else 1.5 * timeout_s  # a heartbeat may have come just before
    families: dict[str, dict[str, Any]] = {}
    for rank in range(ranks):
        with contextlib.suppress(FileNotFoundError):
            for name, told in json.loads((folder / f"told.{rank}").read_text()).items():
                family = families.setdefault(name, {"calls": 0, "right": 0, "latest_s": None, "wrong": []})
                took_s = told["at_s"] - struck_s
                family["calls"] = max(family["calls"], told["calls"])
                family["latest_s"] = max(family["latest_s"] or 0.0, took_s)
                if named.fullmatch(told["error"]) and took_s <= limit_s:
                    family["right"] += 1
                else:
                    family["wrong"].append(f"rank {rank} after {took_s:.1f} s: {told['error']}")
    return families


def _whole_number(text: str) -> str:
    if not text.strip().isdigit():
        raise UsageError(f"size {text!r} is no number of floats: write --sizes 0,7,1024")
    return text.strip()
