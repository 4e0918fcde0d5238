"""What a person types, as a process of its own: exit codes and one clear line; nothing here needs root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def netoffload(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "netoffload", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--exchange", "star"), "exchange 'star' is unknown: choose from wa, wa+c, inc, inc+c, fullsgd, psgd"),
        (("--exchange", "inc:p=3"), "exchange 'inc' takes no parameters"),
        (("--exchange", "psgd:p=none"), "p=none is not a number of iterations"),
        (("--exchange", "rsgd:levels=3"), "rsgd takes p=ITERATIONS and nothing else"),
        (("--exchange", "none:via=moon"), "via=moon is unknown: choose from gather, server, ring"),
        (("--exchange", "terngrad:via=ring,exempt=2"), "exempt=2 names layers of the model"),
        (("--exchange", "inc", "--error-feedback"), "none of inc can keep a residual"),
        (("--data", "cifar10", "--data-dir", "/nonexistent"), "hdc takes 28x28 grey images"),
        (("--sharing", "fair"), "sharing 'fair' is unknown: choose from partitioned, shared"),
        (("--nodes", "0"), "0 workers"),
        (("--nodes", "64"), "64 workers"),
        (("--rate", "fast"), "rate 'fast' is not a number with a unit"),
        (("--bound", "17"), "bound 17 is outside 1..16"),
        (("--codec", "zip"), "codec 'zip' is unknown"),
        (("--packing", "loose"), "packing 'loose' is unknown"),
        (("--mtu", "10"), "mtu 10 is outside"),
        (("--data", "mnist"), "mnist needs --data-dir"),
        (("--data", "mnist", "--data-dir", "/nonexistent"), "/nonexistent has no train-images-idx3-ubyte[.gz]"),
        (("--loss-scale", "3"), "not a power of two"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(words: tuple[str, ...], says: str) -> None:
    done = netoffload("train", "hdc", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("netoffload: ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("train", "hdc"), ("demo",), ("report",)], ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    done = netoffload(*command, "--help")
    assert done.returncode == 0
    assert f"Example: netoffload {' '.join(command)}" in " ".join(done.stdout.split())


def test_the_exchanges_are_listed() -> None:
    done = netoffload("train", "--list")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("wa+c", "psgd", "pqasgd", "compressors: none, nic"))


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    done = netoffload("report", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "report"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot read records" in done.stderr
    assert not (tmp_path / "report").exists()


def test_a_report_prints_json_alone_when_asked(tmp_path: Path) -> None:
    from netoffload import results
    from netoffload.results import ClassCounts, Configuration, Learning, NodeTraffic, Record, Spread, Timing, Traffic

    configuration = Configuration(
        "hdc",
        "inc",
        4,
        10,
        1,
        25,
        0.1,
        5.0,
        2000,
        0.9,
        5e-5,
        1.0,
        "digits",
        1149010,
        None,
        None,
        None,
        None,
        1500,
        False,
        "partitioned",
    )
    record = Record(
        results.FORMAT,
        "2026-01-01T00:00:00+00:00",
        configuration,
        results.Versions("0.1.0", "3.11", "2.0", "2.3", "MPICH", "6.1", "plain", "a CPU", 2),
        None,
        Timing(Spread.of([0.1]), Spread.of([0.02]), Spread.of([0.08])),
        Traffic((NodeTraffic("n0", 1000, 10),), 0, 0, 0, ClassCounts(0, 0, 0, 0), 0.0, {}),
        1.0,
        Learning(0.9, {}, 0.1),
        "ab",
    )
    results.append_records(tmp_path / "runs.jsonl", [record])
    done = netoffload("report", str(tmp_path / "runs.jsonl"), "--out", str(tmp_path / "report"), "--json")
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed["exchanges"]["inc"]["s_per_iteration"] == 0.1
    assert printed == json.loads((tmp_path / "report" / "summary.json").read_text())
