"""What a process says while it compiles kernels: for how long, how many are ready, and which one is under way.

Numba reports each kernel that the cache lacks (``jit``). So ranks, NICs and commands all speak. A process that finds
its kernels in the cache starts no thread and says nothing::

    netoffload: compiling kernels: 13 s, 41 ready, now run_ring (once per version and CPU, minutes)

Of processes that share a cache, one speaks at a time. A terminal's line is written over every second; elsewhere a line
follows every five.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Final

from netoffload import log

COMPILING: Final = "compiling kernels"
"""What every such line begins with."""

SILENT_S: Final = 3.0
"""How long a process may compile before it says so."""

EVERY_S: Final = 5.0
EVERY_ON_TERMINAL_S: Final = 1.0

_SPEAKER: Final = "speaker.lock"
"""File in the cache's folder. The process that has locked it speaks."""


class CompilationProgress:
    """The kernels that this process compiles. Numba holds a lock while it compiles, so one thread at a time calls."""

    def __init__(self) -> None:
        """Nothing is compiled yet."""
        self.folder: Path | None = None
        """The cache's folder, which the speaker locks; None: nothing is kept, and every process speaks."""
        self._names: list[str] = []
        self._ready = 0
        self._before_s = 0.0
        self._began_s = 0.0
        self._next_s = SILENT_S
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, kernel: str) -> None:
        """Note that a kernel is being compiled, perhaps because the kernel that began before calls it."""
        self._names.append(kernel)
        if len(self._names) == 1:
            self._began_s = time.monotonic()
            self._ended.clear()
            self._thread = threading.Thread(target=self._speak, name="compiling", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Note that the kernel that began last is ready, or could not be compiled."""
        self._names.pop()
        self._ready += 1
        if not self._names and self._thread is not None:
            self._before_s += time.monotonic() - self._began_s
            self._ended.set()
            self._thread.join()  # this process may fork
            self._thread = None

    def _speak(self) -> None:
        """Write a line whenever one is due, if no other process does; end when nothing is compiled."""
        on_terminal = log.is_terminal()
        with contextlib.ExitStack() as stack:
            speaks = False
            while not self._ended.wait(max(self._next_s - self._elapsed_s(), 0)):
                elapsed_s = self._elapsed_s()
                self._next_s = elapsed_s + (EVERY_ON_TERMINAL_S if on_terminal else EVERY_S)
                if not speaks and not (speaks := self._may_speak(stack)):
                    continue
                kernel = self._names[-1] if self._names else ""
                line = (
                    f"{COMPILING}: {elapsed_s:.0f} s, {self._ready} ready, now {kernel} "
                    "(once per version and CPU, minutes)"
                )
                if on_terminal:
                    _write_over(line)
                else:
                    log.say("compiling", line, elapsed_s=round(elapsed_s), ready=self._ready, kernel=kernel)
            if on_terminal and speaks:
                _write_over("")

    def _elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._began_s

    def _may_speak(self, stack: contextlib.ExitStack) -> bool:
        """Lock the folder until the stack ends; return False if another process has locked it."""
        if self.folder is None:
            return True
        try:
            descriptor = os.open(self.folder / _SPEAKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:  # nobody can lock there
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        stack.callback(os.close, descriptor)
        return True


def _write_over(line: str) -> None:
    """Write a line over the last one of the terminal."""
    width = shutil.get_terminal_size().columns - 1
    line = f"netoffload: {line}" if line else ""
    sys.stderr.write(f"\r\x1b[K{line[:width]}")
    sys.stderr.flush()


PROGRESS: Final = CompilationProgress()
"""The one of this process."""
