"""Runs one rank per node, and leaves no process behind.

``launch_backends`` has the launchers (two MPIs and torchrun); ``launch_output`` passes on what ranks write. No octet
can avoid the wire: each rank has its own ``/dev/shm`` and IPC namespace, and MPI is told that no two ranks share a
node. No launch hangs: once MPI is imported, ``python -m mpi4py`` makes an uncaught exception end all ranks. If a
launcher misses the end of a killed rank, the other ranks are ended here, and a time limit ends the rest. If this
process dies, a guard ends its ranks. Each rank writes to its own pipes, so lines stay whole, and an error can quote the
rank that failed.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from netoffload.config import ENV_ADDRESS, ENV_CONTROL, ENV_METER, chosen_offload
from netoffload.errors import RunError, UsageError
from netoffload.lab.testbed import nics
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.forks import RANK_ENV, python_argv
from netoffload.lab.testbed.launch_backends import REMARKS, TORCHRUN, Launch, RankPlace, make_launch, make_local_launch
from netoffload.lab.testbed.launch_output import (
    LAUNCHER,
    TO_PIPES,
    TO_PIPES_AND_STAY,
    TO_PIPES_AND_TELL,
    TO_PIPES_AND_TELL_ALL,
    OnLines,
    RanksOutput,
    pass_on_stderr,
    pass_on_stdout,
)
from netoffload.lab.testbed.meter import Meter
from netoffload.lab.testbed.processes import guarded

TIMEOUT_S_DEFAULT: Final = 3600.0
MPI4PY: Final = ("-m", "mpi4py")
PROGRAM_CHARACTERS: Final = 80
GRACE_S: Final = 1.0
UNTIL_S: Final = 0.05
"""Time between two calls of ``until``."""
FAILED_S: Final = 3.0
"""How long a launcher may take to end the other ranks of one that failed. MPICH's sometimes does not see the end of a
killed rank, and would wait for ever."""
FAILED_EVERY_S: Final = 0.5
"""Time between two looks for a rank that failed."""
ENV_LAUNCH: Final = "NETOFFLOAD_LAUNCH"
ENV_MASTER: Final = "MASTER_ADDR"
"""Variable with the address at which torch's ranks meet."""
TORCH_INTERFACES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that name the interface of torch's gloo and RPC."""


@dataclass(frozen=True)
class RanksResult:
    """How a launch went: its wall time, and the ranks' standard output if it was captured (else empty)."""

    wall_s: float
    stdout: str


# Nine parameters: six have defaults, like those of subprocess.run, and few calls name more than two.
def run_ranks(
    bed: Testbed,
    node_indices: Sequence[int],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    capture_stdout: bool = False,
    on_stdout: OnLines | None = None,
    on_stderr: OnLines | None = None,
    mpi: str = "mpich",
) -> RanksResult:
    """Run a program as one rank per listed node and return when all ranks have ended well.

    Args:
        bed: a running testbed; a meter is served for as long as the ranks run.
        node_indices: rank i runs on node ``node_indices[i]``.
        argv: the program. A leading ``python`` stands for this interpreter with ``-m mpi4py`` (without it under
            torchrun). It may be left out before ``-m MODULE`` or a file that ends in ``.py``. Within
            :func:`~netoffload.lab.testbed.forks.prepared_ranks` MPICH's ranks are forks.
        env: variables for every rank; they win over our defaults.
        timeout_s: time after which all ranks are ended.
        capture_stdout: return what the ranks wrote to standard output instead of passing it on.
        on_stdout: called with rank and whole lines, from a thread of its own; default: they are passed on to our
            standard output.
        on_stderr: likewise, also for the lines of ``mpiexec`` itself (rank -1); default: to our standard error.
        mpi: who starts the ranks: ``mpich`` or ``openmpi``, which carry messages, or ``torchrun``.

    Raises:
        RunError: a rank failed or could not be started, or time ran out. Its ``exit_code`` is the launcher's (under
            torchrun the rank's), or 128 plus the signal that ended a rank.
        SystemRefusedError: the launcher is missing, or the NIC of one of these nodes has ended.
        UsageError: nothing to run, or an unknown launcher.
    """
    if not argv or not node_indices:
        raise UsageError("nothing to run: give a program and at least one node")
    nics.check_alive(bed.plan, [bed.plan.nodes[index] for index in node_indices])
    program = " ".join(shlex.join(argv).split())[:PROGRAM_CHARACTERS]  # an error is one line
    launch_id = secrets.token_hex(8)
    started_s = time.monotonic()
    captured: list[bytes] = []
    if capture_stdout:
        on_stdout = lambda _rank, lines: captured.append(lines)  # noqa: E731
    heard = _without_remarks(on_stderr or pass_on_stderr, REMARKS.get(mpi, ()))
    with Meter(bed) as meter, RanksOutput(len(node_indices), on_stdout or pass_on_stdout, heard) as output:
        words = _program_argv(argv, mpi, {**os.environ, **(env or {})})
        launch = make_launch(mpi, bed, _places(bed, node_indices, words, output, _script(mpi)))
        first = bed.plan.nodes[node_indices[0]]
        merged = {**RANK_ENV, **launch.default_env, ENV_MASTER: first.address, **_common_env(bed), **launch.env}
        merged |= {**dict.fromkeys(TORCH_INTERFACES, first.device), **(env or {})}
        merged |= {ENV_METER: str(meter.path), ENV_LAUNCH: launch_id}
        merged["TMPDIR"] = str(bed.make_scratch())  # launchers leave files there when they are ended
        _carry_out(launch, merged, output, len(node_indices), program, timeout_s)
    return RanksResult(time.monotonic() - started_s, b"".join(captured).decode(errors="replace"))


def run_local_ranks(
    count: int,
    argv: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    on_stdout: OnLines | None = None,
    on_stderr: OnLines | None = None,
    mpi: str = "mpich",
    until: Callable[[], bool] | None = None,
) -> None:
    """Run a program as MPI ranks of this machine, without a testbed, and return when all have ended well.

    Args:
        count: number of ranks.
        argv: as in :func:`run_ranks`.
        timeout_s: time after which all ranks are ended.
        on_stdout: called with rank and whole lines.
        on_stderr: likewise.
        mpi: ``mpich`` or ``openmpi``.
        until: returns whether the ranks have done their work; they are then ended. With it the launcher does not see
            the end of a rank, because it would then end the others.

    Raises:
        RunError, SystemRefusedError, UsageError: as in :func:`run_ranks`.
    """
    program = " ".join(shlex.join(argv).split())[:PROGRAM_CHARACTERS]
    launch_id = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="netoffload-") as scratch,
        RanksOutput(count, on_stdout or pass_on_stdout, on_stderr or pass_on_stderr) as output,
    ):
        script = _script(mpi) if until is None else TO_PIPES_AND_STAY
        words = _program_argv(argv, mpi, os.environ)
        ranks = [output.argv(rank, words, script) for rank in range(count)]
        launch = make_local_launch(mpi, ranks)
        ours = {name: value for name, value in os.environ.items() if name not in (ENV_ADDRESS, ENV_CONTROL, ENV_METER)}
        merged = {**RANK_ENV, **ours, **launch.env, ENV_LAUNCH: launch_id, "TMPDIR": scratch}
        _carry_out(launch, merged, output, count, program, timeout_s, until)


def _carry_out(
    launch: Launch,
    env: dict[str, str],
    output: RanksOutput,
    ranks: int,
    program: str,
    timeout_s: float,
    until: Callable[[], bool] | None = None,
) -> None:
    """Start the launcher and wait until it ends or ``until`` returns True."""
    chosen_offload(None, env)  # here, or every rank would print a traceback
    with _started(launch.argv, env, output, f"{ENV_LAUNCH}={env[ENV_LAUNCH]}") as mpiexec:
        deadline_s = time.monotonic() + timeout_s
        failed_s = math.inf
        while mpiexec.poll() is None:
            if until is not None and until():
                return
            now_s = time.monotonic()
            if output.failed is not None:
                failed_s = min(failed_s, now_s)
            if now_s > failed_s + FAILED_S:
                raise _failure(program, 1, output)
            if now_s > deadline_s:
                took = f"did not end within {timeout_s:g} s"
                raise RunError(f"{ranks} ranks of `{program}` {took}{output.last_words()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                mpiexec.wait(FAILED_EVERY_S if until is None else UNTIL_S)
    output.drain()
    if mpiexec.returncode != 0:
        raise _failure(program, mpiexec.returncode, output)


def _failure(program: str, returncode: int, output: RanksOutput) -> RunError:
    if output.failed is not None:
        returncode = output.failed[1]
    if output.killed is not None:
        rank, number = output.killed
        error = RunError(f"`{program}` failed: rank {rank} was killed by signal {number}")
        error.exit_code = 128 + number  # as shells report it
        return error
    error = RunError(f"`{program}` failed with exit code {returncode}{output.last_words()}")
    error.exit_code = returncode if 0 < returncode < 256 else 1
    return error


def _program_argv(argv: Sequence[str], mpi: str, env: Mapping[str, str]) -> list[str]:
    first, rest = argv[0], argv[1:]
    python = [*(python_argv(env=env) if mpi == "mpich" else [sys.executable]), *([] if mpi == TORCHRUN else MPI4PY)]
    if first in ("python", "python3"):
        return [*python, *rest]
    is_for_python = first in ("-m", "-c") or first.endswith(".py")
    return [*python, *argv] if is_for_python else list(argv)


def _script(mpi: str) -> str:
    if mpi == TORCHRUN:
        return TO_PIPES_AND_TELL_ALL
    return TO_PIPES if mpi == "openmpi" else TO_PIPES_AND_TELL


def _places(
    bed: Testbed, node_indices: Sequence[int], argv: list[str], output: RanksOutput, script: str
) -> list[RankPlace]:
    places = []
    for rank, node_index in enumerate(node_indices):
        node = bed.plan.nodes[node_index]
        # Only the launcher uses the scratch folder; a rank's temporary files belong into the user's folder.
        own = {ENV_ADDRESS: node.address, "TMPDIR": tempfile.gettempdir()}
        own |= {} if node.control_path is None else {ENV_CONTROL: str(node.control_path)}
        places.append(RankPlace(node, own, output.argv(rank, argv, script)))
    return places


def _common_env(bed: Testbed) -> dict[str, str]:
    common = bed.node_env(bed.plan.nodes[0])
    for name in (ENV_ADDRESS, ENV_CONTROL):  # these differ from rank to rank
        common.pop(name, None)
    return common


def _without_remarks(on_lines: OnLines, remarks: Sequence[bytes]) -> OnLines:
    def pass_on(rank: int, lines: bytes) -> None:
        if rank == LAUNCHER and remarks:
            kept = [line for line in lines.splitlines(keepends=True) if not any(remark in line for remark in remarks)]
            lines = b"".join(kept)
        if lines:
            on_lines(rank, lines)

    return pass_on


@contextlib.contextmanager
def _started(
    command: list[str], env: dict[str, str], output: RanksOutput, mark: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the launcher; at the end no process that carries ``mark`` is left."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with guarded(mark, GRACE_S):
            try:
                process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output.launcher_fd,
                    stderr=output.launcher_fd,
                    start_new_session=True,  # a Ctrl-C reaches us, and we end the ranks
                )
                yield process
            finally:
                if process is not None and process.poll() is None:
                    output.mute_launcher()
    except OSError as error:
        raise RunError(f"cannot start {command[0]}: {error}") from error
    finally:
        if process is not None:
            process.wait()
