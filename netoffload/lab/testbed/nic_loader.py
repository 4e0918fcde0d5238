"""The owner's side of ``netoffload_daemon.prefork``: a process that loads the kernels, and then forks into NICs.

Within ``forks.prepared_ranks`` with the imports of NICs, the process has the kernels already.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from netoffload.errors import TestbedError
from netoffload.lab.testbed.forks import NIC_IMPORTS, interpreter_argv

READY_TIMEOUT_S: Final = 900.0
"""Time limit for loading. Compiling takes two and a half minutes of a free core, and several times that on a busy
one."""
LOG_TAIL_CHARACTERS: Final = 400


class NicLoader:
    """A process that loads kernels while the context's body runs.

    Args:
        mark: environment entry (``NAME=value``) of the process and of the NICs.
        log_path: file that gets the process's output before there is a NIC.
        log_format: one of :data:`netoffload.log.FORMATS`.
        progress: called with each line of :mod:`netoffload.compiled.progress` while the process compiles.
    """

    def __init__(self, mark: str, log_path: Path, log_format: str, progress: Callable[[str], None]) -> None:
        """Prepare; nothing is started yet."""
        self._mark = mark
        self._log_path = log_path
        self._log_format = log_format
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Iterator[dict[str, Any]] = iter(())

    def __enter__(self) -> NicLoader:
        """Start the process, which begins to load.

        Raises:
            TestbedError: the process cannot be started.
        """
        name, _, value = self._mark.partition("=")
        try:
            with open(self._log_path, "ab") as log_file:
                self._process = subprocess.Popen(
                    [*interpreter_argv(NIC_IMPORTS), "-m", "netoffload_daemon.prefork", self._log_format],
                    env={**os.environ, name: value},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    start_new_session=True,  # a Ctrl-C reaches us, and we end our NICs
                )
        except OSError as error:
            raise TestbedError(f"cannot start a NIC: {error}") from error
        self._said = self._lines(self._process)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the process; its NICs go on."""
        assert self._process is not None
        if error is not None:
            self._process.kill()  # it may compile for minutes
        self._process.__exit__(kind, error, None)

    def wait(self) -> None:
        """Return when the kernels are loaded.

        Raises:
            TestbedError: the kernels cannot be loaded, or loading takes too long.
        """
        if next(self._said, None) is None:
            raise TestbedError(f"the kernels of NICs cannot be loaded{tail(self._log_path)}")

    def become(self, asked: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Fork into NICs, and yield the process's reports until each NIC forwards or has ended.

        Args:
            asked: the NICs; :class:`netoffload_daemon.prefork.Asked` describes these requests and the reports.

        Raises:
            TestbedError: a NIC takes too long.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: there are no answers
            self._process.stdin.write(json.dumps(asked).encode())
            self._process.stdin.close()
        yield from self._said

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        assert process.stdout is not None
        said, end_s = b"", time.monotonic() + READY_TIMEOUT_S
        while select.select([process.stdout], [], [], max(end_s - time.monotonic(), 0))[0]:
            if not (octets := os.read(process.stdout.fileno(), 4096)):
                return
            *lines, said = (said + octets).split(b"\n")
            for report in map(json.loads, lines):
                if "compiling" in report:
                    self._progress(report["compiling"])
                else:
                    yield report
        raise TestbedError(f"NICs were not ready after {READY_TIMEOUT_S:.0f} s{tail(self._log_path)}")


def tail(log_path: Path) -> str:
    """Return the end of a log, for an error message."""
    lines = [line.strip() for line in log_path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:].splitlines()]
    text = " | ".join(line for line in lines[-4:] if line)
    return f": {text}" if text else ""
