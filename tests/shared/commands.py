"""Runs command lines: in this process, which has imported everything, or as a new process."""

import contextlib
import io
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from netoffload.compiled.progress import COMPILING
from netoffload.devices.netns import netns_cookie
from netoffload.netlink import netns_exists, netns_path

Done = subprocess.CompletedProcess[str]

ROOT = Path(__file__).parents[2]
SOURCE_PATHS = [str(ROOT / folder) for folder in ("", "daemon", "mpi_ext")]
PYTHONPATH = os.pathsep.join(SOURCE_PATHS)
"""For a process of its own, since pytest's ``pythonpath`` is not its."""
CLI = "netoffload.cli.known:import_all"
"""Imports all commands, in a server of forks."""
NIC_END_MS = 10_000


def netoffload(*words: str, env: Mapping[str, str] | None = None) -> Done:
    """``netoffload WORDS``, here: for what is refused, printed or computed in this process."""
    from netoffload.cli import main

    with _arguments("netoffload", *words):
        return _called(main, words, env)


def refusal(*words: str, exit_code: int = 2) -> str:
    """The line with which ``netoffload WORDS`` is refused, and which is all that it prints."""
    done = netoffload(*words)
    assert (done.returncode, done.stdout) == (exit_code, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("netoffload: ")
    return line


def netoffloadd(*words: str, env: Mapping[str, str] | None = None) -> Done:
    """``netoffloadd WORDS``, here: for what is refused before it opens anything."""
    from netoffload_daemon.__main__ import main

    return _called(lambda: sys.exit(main(words)), words, env)


def started(
    *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 60, module: str = "netoffload"
) -> Done:
    """``python -m MODULE WORDS`` as a process that starts from nothing."""
    return python("-m", module, *words, env=env, timeout_s=timeout_s)


def forked(*words: str, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Done:
    """``netoffload WORDS`` as a process of its own: a fork where the environment names a server that has ``CLI``."""
    from netoffload.lab.testbed.forks import python_argv

    whole = {**os.environ, **(env or {})}
    return _run([*python_argv([CLI], whole), "-m", "netoffload", *words], whole, timeout_s)


def ranks(count: int, *program: str, mpi: str = "mpich", timeout_s: float = 110) -> Done:
    """``python PROGRAM`` as ranks of this machine, and why they failed: forks, where the environment names a server."""
    from netoffload.errors import RunError
    from netoffload.lab.testbed import launch
    from tests.shared.local_ranks import run_local_ranks

    if (launch.find_mpiexec if mpi == "mpich" else launch.find_openmpi)() is None:
        pytest.skip(f"{mpi} is not installed (scripts/setup installs it)")
    out: list[bytes] = []
    err: list[bytes] = []
    code = 0
    try:
        run_local_ranks(
            count,
            ["python", *program],
            timeout_s=timeout_s,
            mpi=mpi,
            on_stdout=lambda _rank, lines: out.append(lines),
            on_stderr=lambda _rank, lines: err.append(lines),
        )
    except RunError as error:
        code = error.exit_code
        err.append(str(error).encode())
    return _without_progress(Done(list(program), code, b"".join(out).decode(), b"".join(err).decode()))


def python(
    *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 60, folder: Path | None = None
) -> Done:
    """``python WORDS`` in a folder, as a process that starts from nothing."""
    whole = {**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})}
    return _run([sys.executable, *words], whole, timeout_s, folder)


def _run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, folder: Path | None = None) -> Done:
    return _without_progress(
        subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=folder, check=False)
    )


def _without_progress(done: Done) -> Done:
    """Return what a process said, as if it had found all kernels in the cache."""
    done.stderr = re.sub(f".*{COMPILING}: .*\n", "", done.stderr)
    return done


@contextlib.contextmanager
def started_nic(
    words: Sequence[str], command: Sequence[str] = (sys.executable, "-m", "netoffload_daemon"), **streams: Any
) -> Iterator[tuple[subprocess.Popen[str], bool]]:
    """A process of a NIC, once it forwards or has ended, and whether it forwards; in the end it is gone.

    The command may ask a server of forks: it passes on the descriptor that ``PMI_FD`` names. The NIC keeps standard
    input open until its end.
    """
    reader, writer = os.pipe()
    stdin, held = os.pipe()
    argv = [*command, *words, "--ready-fd", str(writer)]
    env = {**os.environ, "PMI_FD": str(writer)}
    with subprocess.Popen(argv, stdin=stdin, pass_fds=[writer], env=env, text=True, **streams) as nic:
        os.close(writer)
        os.close(stdin)
        try:
            yield nic, os.read(reader, 6) == b"ready\n"
        finally:
            nic.kill()
            ending = select.poll()
            ending.register(held, 0)
            ending.poll(NIC_END_MS)
            os.close(reader)
            os.close(held)


def forget_tables(*names: str) -> None:
    """Remove the flow tables that NICs left in namespaces: 9 MB each, which would stay when a namespace is gone."""
    for name in filter(netns_exists, names):
        for table in Path("/run/netoffload-flows").glob(f"*-{netns_cookie(str(netns_path(name)))}.bin*"):
            table.unlink()


@contextlib.contextmanager
def running_nic(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process of a NIC that forwards; see :func:`started_nic`."""
    with started_nic(words, **options) as (nic, forwards):
        assert forwards
        yield nic


@contextlib.contextmanager
def _arguments(*argv: str) -> Iterator[None]:
    before, sys.argv = sys.argv, list(argv)
    try:
        yield
    finally:
        sys.argv = before


def _called(command: Callable[[], object], words: tuple[str, ...], env: Mapping[str, str] | None) -> Done:
    """Return what ``command`` prints and exits with; signal handlers and environment are afterwards as they were."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
                command()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    code = ended.value.code
    return Done(list(words), code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())
