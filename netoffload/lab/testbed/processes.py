"""Finds our processes and ends them; the CPU time of processes and of the machine (proc(5)).

A pid alone does not identify a process, because the kernel uses pids again. So a process is identified by its pid *and*
its start time, or by an entry in its environment (``NETOFFLOAD_RUN=<run id>``) that everything started in a testbed
inherits. Signals go through a pidfd that is opened first and checked second. So no signal reaches a process that took
over a pid in between.

Run as a program, with a mark as its argument, this file is the guard of :func:`guarded`. It imports only the standard
library, and starts in some milliseconds.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GRACE_S: Final = 3.0
"""Time between SIGTERM and SIGKILL, in which a NIC drains and a rank completes its files."""

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

END_ROUNDS: Final = 5
"""Rounds of ending marked processes: a process may start another one until it is gone, and some cannot be ended."""

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""Ticks per second of the counts in /proc, usually 100: nothing here is finer than 10 ms."""

EXEC_LOOKS: Final = 1000
"""How often a process in the middle of an exec is looked at. A full machine can let it wait there for some time."""
EXEC_PAUSE_S: Final = 0.001
"""Time between two looks."""


@dataclass(frozen=True)
class ProcessId:
    """A process, identified by pid and start time, because another process may get its pid later."""

    pid: int
    start_ticks: int
    """Start time in clock ticks after boot: field 22 of /proc/PID/stat (proc(5))."""


def find_program(name: str) -> str | None:
    """Return the path of a program, also from folders of daemons, which a user's PATH may lack; None: it is missing."""
    return shutil.which(name) or shutil.which(name, path=SYSTEM_PATH)


def identify(pid: int) -> ProcessId | None:
    """Return the identity of the process with this pid, or None if there is no such process or it is a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else ProcessId(pid, int(fields[19]))


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs."""
    return identify(process.pid) == process


def marked(mark: str) -> list[ProcessId]:
    """Return the processes whose environment holds ``mark`` (``NAME=value``), without us and our ancestors.

    During an execve(2) a process shows no environment at all. Our processes start with several of them (``ip netns
    exec``, then ``unshare``, then a shell), so such a process is looked at again.
    """
    wanted = mark.encode()
    ours = _ancestors()
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) not in ours]
    found = []
    for look in range(EXEC_LOOKS):
        time.sleep(EXEC_PAUSE_S if look else 0)
        blank = []
        for entry in entries:
            with contextlib.suppress(OSError):  # gone, or not ours to look at
                environ = (entry / "environ").read_bytes()
                if not environ and _may_be_in_exec(entry):
                    blank.append(entry)
                if wanted in environ.split(b"\0"):
                    process = identify(int(entry.name))
                    found += [process] if process is not None else []
        if not blank:
            break
        entries = blank
    return found


def end(processes: Iterable[ProcessId], grace_s: float = GRACE_S, *, kill: bool = False) -> None:
    """End processes: SIGTERM, then SIGKILL for what is left after ``grace_s``; returns when they are gone.

    With ``kill`` they get SIGKILL at once, as from the kernel when memory runs out.
    """
    steps = ((signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S))
    with contextlib.ExitStack() as descriptors:
        left = set()
        for process in processes:
            if (pidfd := _open_pidfd(process)) is not None:
                descriptors.callback(os.close, pidfd)
                left.add(pidfd)
        for signal_number, wait_s in steps[1:] if kill else steps:
            for pidfd in left:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal_number)
            left = _wait(left, wait_s)


def end_marked(mark: str, grace_s: float = GRACE_S) -> None:
    """End every process that carries ``mark``, and those that it starts before it ends."""
    for _ in range(END_ROUNDS):
        if not (processes := marked(mark)):
            return
        end(processes, grace_s)


@contextlib.contextmanager
def guarded(mark: str, grace_s: float = GRACE_S) -> Iterator[None]:
    """End every process that carries ``mark`` when the body ends, or when any signal kills this process in the body.

    This process must not carry the mark. A guard process notices its end: the guard's standard input is a pipe, and
    only this process holds the other end.
    """
    command = [sys.executable, "-I", "-S", __file__, mark, str(grace_s)]
    quiet = subprocess.DEVNULL
    # It has its own session, because a Ctrl-C is for this process and the guard must outlive it.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True, env={"PATH": os.defpath}
    ):  # its end closes the pipe, and waits for the guard
        try:
            yield
        finally:
            end_marked(mark, grace_s)


def _ancestors() -> set[int]:
    pids, pid = {os.getpid()}, os.getppid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        if (fields := _stat(pid)) is None:
            break
        pid = int(fields[1])
    return pids


def _may_be_in_exec(entry: Path) -> bool:
    """Return whether a process that shows no environment may have one; raise OSError if it has no memory.

    A kernel thread and a zombie have no memory, so they have no ``exe``. An exec ends by setting the place of the code
    (field 26 of proc(5)); until then the environment (fields 50 and 51) may have no length. If it has one by now, the
    old memory was read.
    """
    (entry / "exe").readlink()
    fields = _stat(int(entry.name))
    return fields is not None and (fields[23] == "0" or fields[47] != fields[48])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third on; None where it cannot be read."""
    try:
        # The name in field 2 may hold spaces and parentheses; the rest starts after the last ")".
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it is gone, another user's, or behind another PID namespace
        return None


def _open_pidfd(process: ProcessId) -> int | None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if is_alive(process):
        return pidfd
    os.close(pidfd)
    return None


def _wait(pidfds: set[int], timeout_s: float) -> set[int]:
    """Wait until the processes are gone (their pidfds become readable) and return those that remain."""
    left, deadline = set(pidfds), time.monotonic() + timeout_s
    poller = select.poll()
    for pidfd in left:
        poller.register(pidfd, select.POLLIN)
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(remaining_s * 1000):
            poller.unregister(pidfd)
            left.discard(pidfd)
    return left


def process_cpu_s(pid: int) -> float | None:
    """Return the user and system time of a process, all threads together; None where it cannot be read."""
    fields = _stat(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def processes_cpu_s(pids: Iterable[int]) -> float:
    """Return the sum of :func:`process_cpu_s` over processes and their living children; ended ones count nothing."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            children = Path("/proc", str(pid), "task", str(pid), "children").read_text().split()
            total_s += (process_cpu_s(pid) or 0.0) + processes_cpu_s(map(int, children))
    return total_s


def machine_cpu_s() -> tuple[float, float]:
    """Return seconds since boot, summed over the cores: of work, and of work that had to wait because a hypervisor gave
    the cores to others (steal)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / TICKS_PER_S, steal / TICKS_PER_S


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1], float(sys.argv[2]))
