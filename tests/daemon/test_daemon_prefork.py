"""NICs as forks of one process: what it says of them, and where their output goes. Traffic: tests/netns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.errors import TestbedError
from netoffload.lab.testbed.nic_loader import NicLoader
from tests.shared.commands import PYTHONPATH

MARK = "NETOFFLOAD_TEST=prefork"


@pytest.fixture(autouse=True)
def _this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.mark.slow
def test_nics_that_end_are_reported_by_place_and_write_to_their_own_logs(tmp_path: Path) -> None:
    logs = [tmp_path / f"n{place}.log" for place in range(2)]
    words = [["--host", "tap:t0", "--wire", "lo", "--bound", "17"], ["--host", "tap:", "--wire", "lo"]]
    asked = [{"argv": argv, "log_path": str(log)} for argv, log in zip(words, logs, strict=True)]
    with NicLoader(MARK, tmp_path / "first.log", "text", lambda _phrase: None) as loader:
        loader.wait()
        said = list(loader.become(asked))
    assert len({line["pid"] for line in said if "pid" in line}) == 2
    ended = sorted((line["nic"], line["exit_code"]) for line in said if "exit_code" in line)
    assert ended == [(0, 2), (1, 2)]
    assert "bound 17 is outside 1..16" in logs[0].read_text()
    assert "is not tap:NAME" in logs[1].read_text()
    assert (tmp_path / "first.log").read_text() == ""


@pytest.mark.slow
def test_a_loader_that_nobody_asks_ends(tmp_path: Path) -> None:
    with NicLoader(MARK, tmp_path / "n0.log", "text", lambda _line: None) as loader:
        loader.wait()


def test_lines_of_a_loader_that_compiles_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "python"
    compiler.write_text("""#!/bin/sh
        echo '{"compiling": "compiling kernels: 3 s"}'
        echo '{"compiling": "compiling kernels: 8 s"}'
        echo '{}'
    """)
    compiler.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(compiler))
    said: list[str] = []
    with NicLoader(MARK, tmp_path / "n0.log", "text", said.append) as loader:
        loader.wait()
    assert said == ["compiling kernels: 3 s", "compiling kernels: 8 s"]


@pytest.mark.slow
def test_what_the_loader_says_has_the_logs_format(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "netoffload_daemon.prefork", "json"]
    done = subprocess.run(words, input="no request", capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert json.loads(line)["event"] == "uncaught"


def test_kernels_that_cannot_be_loaded_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        pytest.raises(TestbedError, match="the kernels of NICs cannot be loaded"),
        NicLoader(MARK, tmp_path / "n0.log", "text", lambda _phrase: None) as loader,
    ):
        loader.wait()
