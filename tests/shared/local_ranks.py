"""MPI ranks of this machine, without a testbed: as a user would start them, with shared memory."""

import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence

from netoffload.config import ENV_ADDRESS, ENV_CONTROL, ENV_METER
from netoffload.errors import RunError
from netoffload.lab.testbed import launch
from netoffload.lab.testbed.forks import RANK_ENV
from netoffload.lab.testbed.launch import ENV_LAUNCH, Launch, OnLines, RanksOutput

UNTIL_S = 0.05
"""Time between two calls of ``until``."""
OPENMPI_ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # there may be more ranks than cores
}
TO_PIPES_AND_STAY = 'out="$1" err="$2" && shift 3 && "$@" </dev/null >"$out" 2>"$err"; sleep 3600'
"""The script around ranks that are meant to die, whose end the launcher must not see: it would end the others."""


def run_local_ranks(
    count: int,
    argv: Sequence[str],
    *,
    timeout_s: float = 3600,
    on_stdout: OnLines = launch.pass_on_stdout,
    on_stderr: OnLines = launch.pass_on_stderr,
    mpi: str = "mpich",
    until: Callable[[], bool] | None = None,
) -> None:
    """Run a program (see ``launch.run_ranks``), and return when all ranks have ended well.

    With ``until`` it returns when that says that the ranks have done their work, and ends them.
    """
    with (
        tempfile.TemporaryDirectory(prefix="netoffload-") as scratch,
        RanksOutput(count, on_stdout, on_stderr) as output,
    ):
        script = launch.script_of(mpi) if until is None else TO_PIPES_AND_STAY
        words = launch.program_argv(argv, mpi, os.environ)
        made = make_local_launch(mpi, [output.argv(rank, words, script) for rank in range(count)])
        ours = {name: value for name, value in os.environ.items() if name not in (ENV_ADDRESS, ENV_CONTROL, ENV_METER)}
        env = {**RANK_ENV, **ours, **made.env, ENV_LAUNCH: secrets.token_hex(8), "TMPDIR": scratch}
        if until is None:
            launch.carry_out(made, env, output, count, shlex.join(argv), timeout_s)
        else:
            _run_until(until, made, env, output, timeout_s)


def _run_until(
    until: Callable[[], bool], made: Launch, env: dict[str, str], output: RanksOutput, timeout_s: float
) -> None:
    deadline_s = time.monotonic() + timeout_s
    with launch.started(made.argv, env, output, f"{ENV_LAUNCH}={env[ENV_LAUNCH]}") as mpiexec:
        while not until():
            if mpiexec.poll() is not None or time.monotonic() > deadline_s:
                raise RunError(f"ranks did not do their work within {timeout_s:g} s{output.last_words()}")
            time.sleep(UNTIL_S)


def make_local_launch(mpi: str, programs: Sequence[Sequence[str]]) -> Launch:
    """Return the command of ``mpich`` or ``openmpi`` that starts one rank per program; there may be more than cores."""
    launch.check_launcher(mpi)
    ranks = [word for program in programs for word in (":", "-n", "1", *program)][1:]
    if mpi == "mpich":
        return Launch([str(launch.find_mpiexec()), *ranks], {}, {})
    prefix = launch.find_openmpi()
    assert prefix is not None
    command = [*launch.prterun(prefix), "--map-by", ":OVERSUBSCRIBE", *ranks]
    return Launch(command, OPENMPI_ENV | launch.openmpi_homes(prefix), {})
