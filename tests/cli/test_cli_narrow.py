"""A narrow terminal and a file show every number whole."""

import io
import os
import platform
import subprocess
import sys

import pytest
from rich.console import Console

from netoffload.cli import top
from netoffload.engine.summary import Rates
from tests.shared.commands import PYTHONPATH

CODEC = ("bench", "codec", "--codec", "inceptionn", "--size", "64KiB", "--data", "gaussian:0.001", "--repeat", "1")


def run(*words: str, columns: str | None) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment["PYTHONPATH"] = PYTHONPATH
    if columns is not None:
        environment["COLUMNS"] = columns
    command = [sys.executable, "-m", "netoffload", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert "Traceback" not in done.stderr
    assert "…" not in done.stdout
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["80", None])
def test_the_codecs_figures_are_whole(columns: str | None) -> None:
    said = run(*CODEC, columns=columns)
    assert max(map(len, said)) <= int(columns or 200)
    assert any(line.split()[:4] == ["gaussian:0.001", "0.0655", "inceptionn", "10"] for line in said)


@pytest.mark.slow
def test_the_doctors_lines_are_whole() -> None:
    in_file = [line.split() for line in run("doctor", columns=None)]
    assert ["ok", "Python", platform.python_version()] in in_file
    assert all(set(words[:1]) & {"what", "ok", "missing", "-"} for words in in_file)  # one line for each check
    assert max(map(len, run("doctor", columns="60"))) <= 60


def test_top_fits_into_80_columns() -> None:
    rates = Rates(1, 958.4e6, 941.2e6, 13.25, 1.234e9, 93.15e6, 12.75, 123456, 1234, 654321, 0)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as said:
        console.print(top._nic_table({"a12345/n0": rates}))
    sent, received = said.get().splitlines()[-2:]
    words = ["a12345/n0", "sent", "958.4", "Mb/s", "941.2", "Mb/s", "13.25", "123456", "654321", "1234"]
    assert (sent.split(), received.split()) == (words, ["received", "1.234", "Gb/s", "93.15", "Mb/s", "12.75"])
