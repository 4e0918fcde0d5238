"""What a process says while it compiles kernels."""

import io
import json
import os
import pty
import queue
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from netoffload import log
from netoffload.compiled import jit, progress
from netoffload.compiled.progress import PROGRESS, CompilationProgress
from tests.shared.commands import PYTHONPATH

WAIT_S = 30.0

COMPILE = """
from netoffload.compiled import jit, progress
progress.SILENT_S = progress.PROGRESS._next_s = 0.0
@jit.compiled_with
def of_this_test(value):
    return value + 1
of_this_test(1)
print("done")
"""
"""Compiles a kernel, which the cache never has, and speaks at once."""


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is due at once, and then every millisecond."""
    monkeypatch.setattr(progress, "SILENT_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)


class Lines(io.StringIO):
    """Takes the place of standard error; each line can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue()
        self.get, self.empty = self._lines.get, self._lines.empty

    def write(self, text: str) -> int:
        if text.strip():
            self._lines.put(text.removeprefix("netoffload: "))
        return len(text)


def listen(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Take standard error, and stop the clock of the lines: a busy machine may stop for a second.

    Not a fixture, because pytest puts its own standard error back between a fixture and its test.
    """
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    lines = Lines()
    monkeypatch.setattr(sys, "stderr", lines)
    return lines


def compiler(folder: Path | None) -> CompilationProgress:
    made = CompilationProgress()
    made.folder = folder
    return made


def await_line(begin: str, lines: Lines) -> None:
    while not lines.get(timeout=WAIT_S).startswith(begin):
        pass


@pytest.mark.usefixtures("spoken")
def test_lines_name_the_kernel_and_how_many_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listen(monkeypatch)
    ours = compiler(None)
    ours.begin("outer")
    ours.begin("inner")
    await_line("compiling kernels: 0 s, 0 ready, now inner ", lines)
    ours.end()
    await_line("compiling kernels: 0 s, 1 ready, now outer ", lines)
    ours.end()
    ours.begin("next")
    await_line("compiling kernels: 0 s, 2 ready, now next ", lines)
    ours.end()


def test_short_compilations_say_nothing_until_they_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listen(monkeypatch)
    ours = compiler(None)
    ours.begin("short")
    ours.end()
    assert lines.empty()
    monkeypatch.setattr(ours, "_before_s", progress.SILENT_S)
    ours.begin("short")
    assert "3 s, 1 ready" in lines.get(timeout=WAIT_S)
    ours.end()


@pytest.mark.usefixtures("spoken")
def test_of_processes_with_one_cache_one_speaks_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listen(monkeypatch)
    first, second = compiler(tmp_path), compiler(tmp_path)
    first.begin("a")
    lines.get(timeout=WAIT_S)
    second.begin("b")
    for _ in range(20):
        assert "now a" in lines.get(timeout=WAIT_S)
    first.end()
    while "now b" not in lines.get(timeout=WAIT_S):
        pass
    second.end()


@pytest.mark.usefixtures("spoken")
def test_a_cache_that_cannot_be_locked_silences_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listen(monkeypatch)
    ours = compiler(tmp_path / "none")
    ours.begin("a")
    lines.get(timeout=WAIT_S)
    ours.end()


@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
@pytest.mark.usefixtures("spoken")
def test_numba_reports_what_it_compiles_and_no_call_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = listen(monkeypatch)
    monkeypatch.setattr(PROGRESS, "_next_s", 0.0)
    monkeypatch.setattr(PROGRESS, "folder", None)

    @jit.compiled_with
    def half_of_this_test(value: int) -> int:
        return value // 2

    half_of_this_test(4)
    assert "now half_of_this_test (once per version and CPU, minutes)" in lines.get(timeout=WAIT_S)
    began_s = PROGRESS._began_s
    half_of_this_test(6)
    assert began_s == PROGRESS._began_s


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
@pytest.mark.parametrize("form", log.FORMATS)
def test_without_a_terminal_a_line_goes_to_the_log(form: str, tmp_path: Path) -> None:
    code = f"from netoffload import log; log.choose({form!r})\n{COMPILE}"
    # A cache of its own: of the processes that share one, a single one speaks.
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    line = done.stderr.splitlines()[0]
    said = line if form == "text" else f"netoffload: {json.loads(line)['message']}"
    assert re.match(r"netoffload: compiling kernels: \d+ s, 0 ready, now of_this_test ", said)
    if form == "json":
        assert json.loads(line)["event"] == "compiling"


@pytest.mark.slow
@pytest.mark.skipif(jit.JIT_DISABLED, reason="needs compiled kernels")
def test_a_terminals_line_is_written_over_and_gone_at_the_end(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "COLUMNS": "60", "XDG_CACHE_HOME": str(tmp_path)}
    try:
        subprocess.run([sys.executable, "-c", COMPILE], env=env, stdout=theirs, stderr=theirs, check=True)
    finally:
        os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        shown = b""
        while b"done" not in shown:
            shown += terminal.read(4096)
    first, *_, last = shown.split(b"\r\x1b[K")[1:]
    assert first.startswith(b"netoffload: compiling kernels: ")
    assert len(first) == 59
    assert last.startswith(b"done")
