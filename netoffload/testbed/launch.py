"""One MPI rank per node, and nothing of them left afterwards.

MPICH's ``mpiexec`` runs in our own namespaces and starts every rank through the node's entry command (MPMD, one
``-n 1`` each)::

    mpiexec  -n 1 <enter n0> python -m mpi4py app.py  :  -n 1 <enter n1> python -m mpi4py app.py  :  ...

PMI runs over an inherited descriptor, so ranks need no network but the data network. Three things keep it honest: each
rank has a ``/dev/shm`` and an IPC namespace of its own and MPICH is told that no two ranks share a node (NOLOCAL), so
no byte can avoid the wire; ``python -m mpi4py`` makes an uncaught exception end all ranks instead of hanging the
others, once MPI is imported; and a time limit ends what hangs all the same. A rank's output comes through pipes of its
own (``mpiexec`` would mix ranks within a line), so that lines stay whole and the error can show the words of the rank
that failed.
"""

from __future__ import annotations

import contextlib
import os
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
from pathlib import Path
from typing import Final

from netoffload.config import ENV_ADDRESS, ENV_CONTROL, ENV_METER
from netoffload.errors import RunError, SystemRefusedError, UsageError
from netoffload.testbed.build import Testbed
from netoffload.testbed.meter import Meter
from netoffload.testbed.processes import end, marked

TIMEOUT_S_DEFAULT: Final = 3600.0
TAIL_OCTETS: Final = 4096
PROGRAM_CHARACTERS: Final = 80
GRACE_S: Final = 1.0
ENV_LAUNCH: Final = "NETOFFLOAD_LAUNCH"

MPICH_ENV: Final = {
    "MPIR_CVAR_NOLOCAL": "1",  # no two ranks on one node, whatever their host names say
    "MPIR_CVAR_CH4_NETMOD": "ofi",  # UCX would look for shared memory first
    "FI_PROVIDER": "tcp",
}
DEFAULT_ENV: Final = {
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",  # the automatic choice varies by 30 % at some sizes
    "OMP_NUM_THREADS": "1",  # ranks share this machine's cores
    "PYTHONUNBUFFERED": "1",
}

TO_PIPES: Final = 'out="$1" err="$2" && shift 2 && exec "$@" </dev/null >"$out" 2>"$err"'
"""Standard input too: ``mpiexec`` would give rank 0 a pipe that never ends, and what reads it would wait for ever."""

STDOUT: Final = 1
STDERR: Final = 2

LAUNCHER: Final = -1
"""Stands for the rank when ``mpiexec`` itself says something."""

OnStderr = Callable[[int, bytes], None]


@dataclass(frozen=True)
class RanksResult:
    """How a launch went: its wall time, and the ranks' standard output if it was captured (else empty)."""

    wall_s: float
    stdout: str


def run_ranks(
    bed: Testbed,
    node_indices: Sequence[int],
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    capture_stdout: bool = False,
    on_stderr: OnStderr | None = None,
) -> RanksResult:
    """Run a program as one MPI rank per listed node and return when all ranks have ended well.

    Args:
        bed: a running testbed; a meter is served for as long as the ranks run.
        node_indices: rank i runs on node ``node_indices[i]``.
        argv: the program. A leading ``python`` stands for this interpreter with ``-m mpi4py``, and so does nothing
            at all before ``-m MODULE`` or a file that ends in ``.py``.
        env: added to every rank's environment, before any default of ours.
        timeout_s: after which everything is ended.
        capture_stdout: return what the ranks wrote to standard output instead of passing it on.
        on_stderr: called with rank (-1: ``mpiexec`` itself) and whole lines, from a thread of its own; default: they
            are passed on to our standard error.

    Raises:
        RunError: a rank failed or could not be started, or time ran out; ``exit_code`` is that of ``mpiexec``.
        SystemRefusedError: there is no MPICH.
    """
    if not argv or not node_indices:
        raise UsageError("nothing to run: give a program and at least one node")
    program = shlex.join(argv)[:PROGRAM_CHARACTERS]
    launch_id = secrets.token_hex(8)
    started_s = time.monotonic()
    captured: list[bytes] = []
    on_stdout = captured.append if capture_stdout else _pass_on_stdout
    with Meter(bed) as meter, _Output(len(node_indices), on_stdout, on_stderr or _pass_on_stderr) as output:
        command = _mpiexec_argv(bed, node_indices, _program_argv(argv), output)
        merged = {**_base_env(bed), **(env or {}), ENV_METER: str(meter.path), ENV_LAUNCH: launch_id}
        merged["TMPDIR"] = str(bed.make_scratch())  # hydra leaves a file there when it is ended
        with _started(command, merged, output.launcher_fd, f"{ENV_LAUNCH}={launch_id}") as mpiexec:
            try:
                mpiexec.wait(timeout_s)
            except subprocess.TimeoutExpired:
                took = f"did not end within {timeout_s:g} s"
                raise RunError(f"{len(node_indices)} ranks of `{program}` {took}{output.last_words()}") from None
        output.drain()
        if mpiexec.returncode != 0:
            failed = f"`{program}` failed with exit code {mpiexec.returncode}"
            error = RunError(f"{failed}{output.last_words()}")
            error.exit_code = mpiexec.returncode if 0 < mpiexec.returncode < 256 else 1
            raise error
    return RanksResult(time.monotonic() - started_s, b"".join(captured).decode(errors="replace"))


def find_mpiexec() -> Path | None:
    """Return MPICH's launcher: the one beside this interpreter (PyPI's ``mpich``), else the one on PATH."""
    beside = Path(sys.executable).parent / "mpiexec.hydra"
    if beside.exists():
        return beside
    found = shutil.which("mpiexec.hydra")
    return None if found is None else Path(found)


def _program_argv(argv: Sequence[str]) -> list[str]:
    first, rest = argv[0], argv[1:]
    if first in ("python", "python3"):
        return [sys.executable, "-m", "mpi4py", *rest]
    is_for_python = first in ("-m", "-c") or first.endswith(".py")
    return [sys.executable, "-m", "mpi4py", *argv] if is_for_python else list(argv)


def _mpiexec_argv(bed: Testbed, node_indices: Sequence[int], argv: list[str], output: _Output) -> list[str]:
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise SystemRefusedError("MPICH is missing: pip install 'netoffload[mpi]'")
    command = [str(mpiexec), "-genv", "TMPDIR", tempfile.gettempdir()]
    for rank, node_index in enumerate(node_indices):
        node = bed.plan.nodes[node_index]
        own = {ENV_ADDRESS: node.address}
        own |= {} if node.control_path is None else {ENV_CONTROL: str(node.control_path)}
        command += [":"] if rank > 0 else []
        command += ["-n", "1", *(word for name, value in own.items() for word in ("-env", name, value))]
        command += bed.entry_argv(node, ["/bin/sh", "-c", TO_PIPES, "rank", *output.paths(rank), *argv])
    return command


def _base_env(bed: Testbed) -> dict[str, str]:
    own = bed.node_env(bed.plan.nodes[0])
    for name in (ENV_ADDRESS, ENV_CONTROL):  # these differ from rank to rank
        own.pop(name, None)
    return {**DEFAULT_ENV, **own, **MPICH_ENV, "FI_TCP_IFACE": bed.plan.nodes[0].device}


@contextlib.contextmanager
def _started(command: list[str], env: dict[str, str], output_fd: int, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``mpiexec``; whatever happens, nothing that carries ``mark`` is left afterwards."""
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output_fd,
            stderr=output_fd,
            start_new_session=True,  # a Ctrl-C reaches us, and we end the ranks
        )
        yield process
    except OSError as error:
        raise RunError(f"cannot start {command[0]}: {error}") from error
    finally:
        end(marked(mark), GRACE_S)
        if process is not None:
            process.wait()


class _Output:
    """Two pipes per rank and one for ``mpiexec``, read by one thread that passes on whole lines."""

    def __init__(self, ranks: int, on_stdout: Callable[[bytes], None], on_stderr: OnStderr) -> None:
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr
        self._read_fds: dict[int, tuple[int, int]] = {}
        self._write_fds: dict[tuple[int, int], int] = {}
        for stream in [(rank, number) for rank in range(ranks) for number in (STDOUT, STDERR)] + [(LAUNCHER, STDERR)]:
            read_fd, self._write_fds[stream] = os.pipe()
            self._read_fds[read_fd] = stream
        self._unfinished = dict.fromkeys(self._write_fds, b"")
        self._tails = dict.fromkeys(range(LAUNCHER, ranks), b"")
        self._first_traceback: int | None = None
        self._last_writer: int | None = None
        self._thread = threading.Thread(target=self._read_forever, name="ranks-output", daemon=True)

    @property
    def launcher_fd(self) -> int:
        """Where ``mpiexec`` itself writes."""
        return self._write_fds[LAUNCHER, STDERR]

    def paths(self, rank: int) -> list[str]:
        """Where a rank opens its two pipes: a pipe can be opened again through /proc while we hold it."""
        return [f"/proc/{os.getpid()}/fd/{self._write_fds[rank, number]}" for number in (STDOUT, STDERR)]

    def __enter__(self) -> _Output:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        for read_fd in self._read_fds:
            os.close(read_fd)

    def drain(self) -> None:
        """Close our write ends, so that the thread comes to the end of every pipe when the ranks are gone."""
        while self._write_fds:
            os.close(self._write_fds.popitem()[1])
        self._thread.join(timeout=GRACE_S)

    def last_words(self) -> str:
        """Return, for the error line, what the rank that failed first said last."""
        rank = self._last_writer if self._first_traceback is None else self._first_traceback
        if rank is None:
            return ""
        lines = [line.strip() for line in self._tails[rank].decode(errors="replace").splitlines() if line.strip()]
        # MPI's own goodbye follows the exception that explains it.
        said = [line for line in lines if not line.startswith("Abort(")] or lines
        return f"; rank {rank} said: {said[-1]}" if said else ""

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
        if octets and number == STDERR and rank != LAUNCHER:
            self._tails[rank] = (self._tails[rank] + octets)[-TAIL_OCTETS:]
            self._last_writer = rank
            if self._first_traceback is None and b"Traceback" in octets:
                self._first_traceback = rank
        held = self._unfinished[rank, number] + octets
        # A carriage return ends a line of a progress display; at the end of the pipe all goes out.
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1 if octets else len(held)
        self._unfinished[rank, number] = held[cut:]
        if cut > 0 and number == STDOUT:
            self._on_stdout(held[:cut])
        elif cut > 0:
            self._on_stderr(rank, held[:cut])


def _pass_on_stdout(octets: bytes) -> None:
    sys.stdout.write(octets.decode(errors="replace"))
    sys.stdout.flush()


def _pass_on_stderr(_rank: int, octets: bytes) -> None:
    sys.stderr.write(octets.decode(errors="replace"))
    sys.stderr.flush()
