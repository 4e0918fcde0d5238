"""If a package of an extra is missing, one line names it before anything is built."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.errors import EXTRAS
from tests.shared.commands import PYTHONPATH, ROOT

WITHOUT = str(Path(__file__).with_name("programs") / "without_package.py")
RUNS = str(ROOT / "docs/lab/hdc-mnist-100mbit.jsonl")
CASES = [
    ("torch", "train hdc -n 2"),
    ("torch", "bench ddp"),
    ("torch", "bench thresholds hdc"),
    ("mpi4py", "train hdc -n 2"),
    ("mpi4py", "verify collectives"),
    ("mpi4py", "bench allreduce -n 2"),
    ("mpi4py", "bench overlap"),
    ("matplotlib", f"report {RUNS} --out report"),
    ("scapy", "dissect frames.pcap"),
    ("zfpy", "bench compressors --compressor general:library=zfp"),
    ("cramjam", "bench compressors --compressor general:library=lz4"),
]


@pytest.fixture(scope="module")
def without() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported every command, but no package of an extra."""
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, WITHOUT], env=env, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("package", "command"), CASES, ids=[f"{package}: {words[:24]}" for package, words in CASES])
def test_a_missing_package_is_one_line(
    package: str, command: str, without: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert without.stdin is not None
    assert without.stdout is not None
    request = {"package": package, "words": command.split(), "folder": str(tmp_path)}
    print(json.dumps(request), file=without.stdin, flush=True)
    exit_code = int(without.stdout.readline())
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    (line,) = [line for line in err.splitlines() if line.startswith("netoffload: ")]
    assert (exit_code, out) == (2, "")
    assert line.endswith(f"pip install 'netoffload[{EXTRAS[package]}]'")
    assert package in line
    assert "Traceback" not in err


def test_the_extras_are_those_of_the_project() -> None:
    names = {"scikit-learn": "sklearn"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {
        names.get(word, word): extra
        for extra, lines in extras.items()
        for word in (re.split(r"[\[>]", line)[0] for line in lines)
        if extra not in ("dev", "docs") and word != "mpich"
    }
    assert brought == EXTRAS
