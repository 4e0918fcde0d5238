"""Which processes are ours, and how they are ended.

A pid alone says nothing: it is used again. A process is known by its pid *and* its start time, or by an entry in its
environment (``NETOFFLOAD_RUN=<run id>``) that everything started in a testbed inherits. Signals go through a pidfd
that is opened first and checked second, so that none can reach a process that took over a pid in between.

Run as a program, with a mark as its argument, this file is the guard of :func:`guarded`: it needs nothing but the
standard library, and starts in some milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GRACE_S: Final = 3.0
"""Between SIGTERM and SIGKILL: a NIC drains, a rank leaves its files whole."""

END_ROUNDS: Final = 5
"""What is being ended may start something until it is gone; but some processes cannot be ended."""

EXEC_LOOKS: Final = 20
"""How often processes without an environment are looked at; some have none for good."""
EXEC_PAUSE_S: Final = 0.001
"""Between two looks. Together they are longer than an exec takes."""


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from whoever gets its pid next."""

    pid: int
    start_ticks: int
    """Start time in clock ticks after boot: field 22 of /proc/PID/stat (proc(5))."""


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process, or None when there is none of this pid (a zombie counts as none)."""
    try:
        # The name in field 2 may hold spaces and parentheses; the rest starts after the last ")".
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start_ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessId(pid, start_ticks)


def is_alive(process: ProcessId) -> bool:
    """Say whether exactly this process still runs."""
    return identify(process.pid) == process


def marked(mark: str) -> list[ProcessId]:
    """Return the processes whose environment holds ``mark`` (``NAME=value``), without us and our ancestors.

    Between the old and the new program of an execve(2) a process shows no environment at all. One that starts as ours
    do (``ip netns exec``, then ``unshare``, then a shell) has several such moments, so those that show none are looked
    at again. Kernel threads and zombies never have one; they have no ``exe`` either, which is how they are told.
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
                if not environ and (entry / "exe").readlink():
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

    Args:
        processes: to end; those that are gone already do no harm.
        grace_s: seconds between the two signals.
        kill: send SIGKILL at once, as the kernel does when memory runs out.
    """
    steps = ((signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S))
    with contextlib.ExitStack() as descriptors:
        pidfds: dict[int, ProcessId] = {}
        for process in processes:
            pidfd = _open_pidfd(process)
            if pidfd is not None:
                descriptors.callback(os.close, pidfd)
                pidfds[pidfd] = process
        left = set(pidfds)
        for signal_number, wait_s in steps[1:] if kill else steps:
            for pidfd in left:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal_number)
            left = _wait(left, wait_s)


def end_marked(mark: str, grace_s: float = GRACE_S) -> None:
    """End what carries ``mark``, and what it started before it ended."""
    for _ in range(END_ROUNDS):
        if not (processes := marked(mark)):
            return
        end(processes, grace_s)


@contextlib.contextmanager
def guarded(mark: str, grace_s: float = GRACE_S) -> Iterator[None]:
    """End what carries ``mark`` when the body ends, and also when this process dies in it, by whatever signal.

    A process of its own sees the death: its standard input is a pipe of which only this process holds the other end.

    Args:
        mark: entry of the environment (``NAME=value``) of all that is to be ended; not of this process.
        grace_s: seconds between SIGTERM and SIGKILL.
    """
    command = [sys.executable, "-I", "-S", __file__, mark, str(grace_s)]
    quiet = subprocess.DEVNULL
    # In a session of its own: a Ctrl-C is for this process, and the guard has to outlive it. With an environment:
    # processes that show none are looked at again and again.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True, env={"PATH": os.defpath}
    ):  # its end closes the pipe, and waits for the guard
        try:
            yield
        finally:
            end_marked(mark, grace_s)


def _ancestors() -> set[int]:
    pids = {os.getpid()}
    pid = os.getppid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return pids


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
    """Wait until the processes are gone (a pidfd becomes readable then) and return those that are not."""
    left = set(pidfds)
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    for pidfd in left:
        poller.register(pidfd, select.POLLIN)
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(remaining_s * 1000):
            poller.unregister(pidfd)
            left.discard(pidfd)
    return left


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1], float(sys.argv[2]))
