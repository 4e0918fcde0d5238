"""Passes on the output of running ranks: whole lines, each with its rank.

``mpiexec`` would mix ranks within a line, so every rank has two pipes and ``mpiexec`` itself one. A rank opens its
pipes through /proc, because only its argument list is sure to pass through ``mpiexec``.
"""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

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

TO_PIPES_AND_STAY: Final = 'out="$1" err="$2" && shift 3 && "$@" </dev/null >"$out" 2>"$err"; sleep 3600'
"""The same script for ranks that are meant to die, whose end the launcher must not see."""

STDOUT: Final = 1
STDERR: Final = 2
ENDS: Final = 3
"""Number of the pipe to which scripts report ended ranks, by number and exit code."""

_OPENMPI_KILLED: Final = re.compile(rb"process rank (\d+) with PID [^.]*exited on\s+signal (\d+)")

LAUNCHER: Final = -1
"""Rank number of the lines of ``mpiexec`` itself."""

OnLines = Callable[[int, bytes], None]
"""Called with a rank (or ``LAUNCHER``) and its whole lines, from the thread that reads the pipes."""


class RanksOutput:
    """Two pipes per rank, one for the launcher and one for ranks that failed; one thread passes on whole lines.

    Attributes:
        failed: the rank whose failure was reported first, and its exit code; None: none was.
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
        # MPI's own goodbye follows the exception that explains it.
        said = [line for line in lines if not line.startswith("Abort(")] or lines
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
        if cut > 0 and number == STDOUT:
            self._on_stdout(rank, held[:cut])
        elif cut > 0 and (rank != LAUNCHER or self._is_launcher_heard):
            self._on_stderr(rank, held[:cut])


def pass_on_stdout(_rank: int, octets: bytes) -> None:
    """Write lines of any rank to our standard output."""
    sys.stdout.write(octets.decode(errors="replace"))
    sys.stdout.flush()


def pass_on_stderr(_rank: int, octets: bytes) -> None:
    """Write lines of any rank to our standard error."""
    sys.stderr.write(octets.decode(errors="replace"))
    sys.stderr.flush()
