"""Ranks and NICs that start with their imports done: forks of one process that has imported once what all need.

A rank of ``netoffload train`` needs seconds of a core to import torch and load kernels, a NIC one second. A server does
it once per command, while the testbed is built. A fork is a process of its own, and starts in some ten milliseconds::

    owner ── stdin ── server ──┬── keeper ── rank      keeper ── socket ── client <enter n0> ── mpiexec
                               └── keeper ── NIC       keeper ── socket ── owner, until the NIC forwards

A launcher starts a *client* where it would start Python. The fork takes on its environment, descriptors, namespaces
and folder; the client passes signals on, and ends as the fork ends. If the client is gone, the *keeper* kills the fork.
If the owner is gone, server, keepers and ranks end. A NIC *outlives* both. Server and client are this file, which
imports the standard library only: ``forks.py serve LISTENER FOLDER MODULE...``, ``forks.py ask SOCKET -m MODULE ...``.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

ENV_FORK_SERVER: Final = "NETOFFLOAD_FORK_SERVER"
"""Variable that names a server: in JSON, its socket, its modules, and the variables that its imports read."""
RANK_ENV: Final = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # ranks share this machine's cores
"""Defaults of every rank's environment, and of the server's; the user's own values win."""
READ_BY_IMPORTS: Final = ("MKL_", "NETOFFLOAD_KERNEL", "NUMBA_", "OMP_", "PYTHON", "XDG_CACHE_HOME")
"""Prefixes of the names of the variables that imports read; where they differ from the server's, nothing is forked."""
NAMESPACES: Final = {"ipc": 0x08000000, "uts": 0x04000000, "net": 0x40000000, "mnt": 0x00020000}  # setns(2)
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # by a client, to its fork
READY: Final = b"ready"
ENDED: Final = "the process that ranks and NICs are forks of has ended"
MESSAGE_OCTETS_MAX: Final = 1 << 20


@contextlib.contextmanager
def fork_server(modules: Collection[str], env: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """Run a server, and yield the variables by which programs become its forks; it imports meanwhile.

    Modules (``MODULE:FUNCTION`` also calls) must start no threads, and open nothing that forks must not share.
    """
    import subprocess  # here, because clients have no time for it
    import tempfile

    from netoffload.errors import TestbedError

    with tempfile.TemporaryDirectory(prefix="netoffload-forks-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "socket")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen(1024)  # clients may wait for the imports
                process = subprocess.Popen(
                    [sys.executable, "-P", __file__, "serve", str(listener.fileno()), folder, *modules],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    env={**RANK_ENV, **env, "NETOFFLOAD_ROOM": 4096 * "-"},  # a fork's environment takes its place
                    start_new_session=True,  # a Ctrl-C is for its owner
                )
        except OSError as error:
            raise TestbedError(f"cannot start the process that ranks and NICs are forks of: {error}") from error
        said = {"path": path, "modules": [*modules], "read": _read_by_imports(env)}
        with process:
            try:
                yield {ENV_FORK_SERVER: json.dumps(said)}
            finally:
                process.terminate()  # even during its imports


@contextlib.contextmanager
def prepared_ranks(modules: Collection[str], env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let all ranks and NICs that this process or its children start be forks of a server: ours, if it has all.

    A new server has the variables of ``env`` too, for what imports read.
    """
    with contextlib.ExitStack() as stack:
        if server_path(modules) is None:
            if (outer := os.environ.get(ENV_FORK_SERVER)) is not None:
                stack.callback(os.environ.update, {ENV_FORK_SERVER: outer})
            ours = stack.enter_context(fork_server(modules, {**os.environ, **(env or {})}))
            stack.callback(os.environ.pop, ENV_FORK_SERVER)
            os.environ.update(ours)
        yield


def server_path(modules: Collection[str], env: Mapping[str, str] = os.environ) -> str | None:
    """Return the socket of the environment's server, if it has some modules and imported them as we would."""
    said = json.loads(env.get(ENV_FORK_SERVER, '{"modules": [], "path": "", "read": {}}'))
    has_all = set(modules) <= set(said["modules"]) and said["read"] == _read_by_imports(env)
    return str(said["path"]) if has_all and os.path.exists(said["path"]) else None


def python_argv(modules: Collection[str] = (), env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that starts ``python`` for ``-m MODULE``: as a fork, if there is a server with modules."""
    path = server_path(modules, env)
    return [sys.executable] if path is None else [sys.executable, "-I", "-S", __file__, "ask", path]


def _read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**RANK_ENV, **env}.items() if name.startswith(READ_BY_IMPORTS)}


def connect(path: str, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to a server, when its imports are done; ImportError has the traceback of one that failed."""
    with contextlib.ExitStack() as stack:
        conn = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        conn.settimeout(timeout_s)
        conn.connect(path)
        said = b""
        with contextlib.suppress(ConnectionResetError):  # it ended with the connection in its queue
            said = conn.recv(MESSAGE_OCTETS_MAX)
        if said != READY:
            raise ImportError(said.decode().rstrip()) if said else ConnectionResetError(ENDED)
        stack.pop_all()
    return conn


def ask(
    conn: socket.socket, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], *, outlives: bool = False
) -> tuple[int, int]:
    """Ask for one fork of ``-m MODULE ARGUMENT...``, with this process's namespaces and folder; return pid and pidfd.

    ``fds`` are its standard input, output and error, and others that keep their numbers. Then :func:`end_of` waits for
    its end. If it ``outlives``, it goes on, in a session of its own, when ``conn`` closes or the server ends.
    """
    said = {"argv": [*argv], "env": {**env}, "kept": fds[3:], "pid": os.getpid(), "outlives": outlives}
    socket.send_fds(conn, [json.dumps(said).encode()], fds)
    pid, pidfds, _flags, _address = socket.recv_fds(conn, MESSAGE_OCTETS_MAX, 1)
    if not pid:
        raise ConnectionResetError(ENDED)
    return int(pid), pidfds[0]


def end_of(conn: socket.socket) -> int | None:
    """Wait for the end of a fork; return its exit code, or minus a signal; None if its server ended first."""
    status = conn.recv(MESSAGE_OCTETS_MAX)
    return os.waitstatus_to_exitcode(int(status)) if status else None


def be_client(path: str, argv: list[str]) -> None:
    """Ask for a fork and end as it ends; without a server, become an interpreter."""
    kept = [int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ]  # MPICH's manager has the other end
    try:
        conn = connect(path)
        # The program may run before it can get a signal, and its signals wait here until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        _pid, pidfd = ask(conn, argv, os.environ, [0, 1, 2, *kept])
    except ImportError as error:
        sys.exit(str(error))
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execv(sys.executable, [sys.executable, *argv])

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    for fd in kept:
        os.close(fd)
    code = end_of(conn)
    if code is not None and code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(ENDED if code is None else code)


def serve(listener: socket.socket, folder: str, *wanted: str) -> tuple[dict[str, Any], list[int]] | None:
    """Return in each fork its request and descriptors, and None in the server after its owner has ended."""
    ready = READY
    try:
        for name, _, function in (one.partition(":") for one in wanted):
            module = importlib.import_module(name)
            if function:
                getattr(module, function)()
    except Exception:  # without a client a failed import is no error
        ready = traceback.format_exc().encode()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave nothing to wait for
    server = os.getpid()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        conn = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            _die_with(server)
            return _keep(conn, ready)
        conn.close()
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _keep(conn: socket.socket, ready: bytes) -> tuple[dict[str, Any], list[int]]:
    """Return in a client's fork, and see both to their ends beside it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):  # the client is gone, or said nothing
        conn.send(ready)
        octets, fds, _flags, _address = socket.recv_fds(conn, MESSAGE_OCTETS_MAX, 16)
        request, keeper = json.loads(octets), os.getpid()
        if (pid := os.fork()) == 0:
            conn.close()
            os.setsid() if request["outlives"] else _die_with(keeper)
            return request, fds
        pidfd = os.pidfd_open(pid)
        for fd in fds:
            os.close(fd)
        socket.send_fds(conn, [str(pid).encode()], [pidfd])
        if conn.fileno() in select.select([conn.fileno(), pidfd], [], [])[0]:  # a client says no more: it is gone
            if request["outlives"]:
                os._exit(0)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        conn.send(str(os.waitpid(pid, 0)[1]).encode())
    os._exit(0)


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG (linux/prctl.h)
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(1)


def become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Take on everything in a request except the program."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 256) for fd in fds]  # above all numbers that a program may want
    for fd in fds:
        os.close(fd)
    for number, fd in zip((0, 1, 2, *request["kept"]), high, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    theirs = f"/proc/{request['pid']}"
    root, folder = (os.open(f"{theirs}/{name}", os.O_PATH) for name in ("root", "cwd"))
    # Only root may enter a namespace, even the one in which a process already is.
    others = [kind for kind in NAMESPACES if not os.path.samefile(f"{theirs}/ns/{kind}", f"/proc/self/ns/{kind}")]
    libc = ctypes.CDLL(None, use_errno=True)
    if others and libc.setns(os.pidfd_open(request["pid"]), sum(NAMESPACES[kind] for kind in others)):
        raise OSError(ctypes.get_errno(), f"cannot enter namespaces: {', '.join(others)}")
    if "mnt" in others:  # this led to the namespace's own root: out of a chroot
        os.fchdir(root)
        os.chroot(".")
    os.fchdir(folder)
    os.close(root)
    os.close(folder)
    os.environ.clear()  # nothing points into the memory of the first environment any more
    os.environ.update(request["env"])
    _show_environment(request["env"])


def _show_environment(env: Mapping[str, str]) -> None:
    """Let ``/proc/PID/environ``, where testbeds look, show an environment: our variables first, while there is room."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])  # env_start, env_end (proc(5))
    names = sorted(env, key=lambda name: not name.startswith("NETOFFLOAD_"))
    shown = os.fsencode("".join(f"{name}={env[name]}\0" for name in names))
    shown = shown[: shown.rfind(b"\0", 0, end - start) + 1]  # whole ones
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def run(module: str) -> None:
    """Run a program; end as Python does, but leave the server's imports to the kernel: that saves 0.3 s of a core."""
    code: Any = None
    try:
        sys.modules.pop(f"{module}.__main__", None)  # which the server imported, and of which runpy would warn
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if "mpi4py.MPI" not in sys.modules and isinstance(code, int | None):
        # As the children of multiprocessing do.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):  # Python has an exit code of its own for it
            sys.stdout.flush()
            sys.stderr.flush()
            ctypes.CDLL(None).fflush(None)
            os._exit(code or 0)
    sys.exit(code)  # MPICH's goodbye to its launcher, and mpi4py's abort, come when Python and libc end


if __name__ == "__main__":
    _, role, place, *words = sys.argv
    if role == "ask":
        be_client(place, words)
    elif asked := serve(socket.socket(fileno=int(place)), *words):
        become(*asked)
        _, *sys.argv = asked[0]["argv"]
        sys.path.insert(0, os.getcwd())  # as Python does for -m
        run(sys.argv[0])
