"""Output that takes nothing gets one clear line and no traceback; a narrow terminal and a file show all of it whole."""

import io
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from netoffload.cli import top
from netoffload.compiled.progress import COMPILING
from netoffload.engine.summary import Rates
from netoffload.lab import results
from netoffload.lab.cli import testbed
from tests.lab.records import a_run
from tests.shared.commands import PYTHONPATH, netoffload, python, refusal

PROGRAM = [sys.executable, "-m", "netoffload"]
COMMANDS = (["--version"], ["status", "--help"], pytest.param(["doctor", "--json"], marks=pytest.mark.slow))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_standard_output_is_one_clear_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (3, "netoffload: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("stats", "--watch", "inf"), "'--watch': Input should be less than or equal to 86400"),
        (("top", "--interval", "1e10"), "'--interval': Input should be less than or equal to 86400"),
        (("up", "--no-nic", "--fault", "loss=0.5"), "--no-nic makes plain nodes: leave it out, or the options of NICs"),
        (("run", "--no-nic", "--codec", "exact", "--", "true"), "--no-nic makes plain nodes"),
        (("verify", "stream", "--size", "3B"), "--size 3B is less than one float32: give at least 4"),
    ],
)
def test_what_cannot_be_waited_for_or_sent_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in refusal(*words)


@pytest.mark.slow
def test_a_sign_that_the_outputs_encoding_lacks_is_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(results.to_line(a_run("inc", 1.0)) + "\n")
    done = python("-m", "netoffload", "report", str(path), env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


def test_an_allocation_without_words_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sys.modules["netoffload.cli.app"], "_command", lambda: refuse)  # the name is typer's app
    assert refusal("status", exit_code=3) == "netoffload: not enough memory: ask for less at once"


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    program = """if True:
        import sys
        from netoffload.__main__ import main

        class Interrupted:
            def find_spec(self, name, *_):
                if name == "netoffload.cli":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupted())
        main()
    """
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (130, "netoffload: interrupted\n")


def test_what_does_not_fit_into_memory_is_one_line() -> None:
    command = f"ulimit -v 8000000; exec {sys.executable} -m netoffload bench eight-bit --sample 99999999999"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.splitlines()[-1].startswith("netoffload: not enough memory: Unable to allocate")
    assert "Traceback" not in ran.stderr


def test_a_closed_standard_output_changes_nothing() -> None:
    shell = f"exec {sys.executable} -m netoffload status --help >&-"
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_reader_that_has_seen_enough_is_no_error_worth_a_line() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run([*PROGRAM, "status", "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("up --rat 1", "No such option: --rat (Possible options: --fault, --ports, --rate): see netoffload up --help"),
        ("bench codec --repeat", "Option '--repeat' requires an argument"),
        ("train", "Missing argument 'model': see netoffload train --help"),
        ("stats --alerts --dashboard", "--dashboard and --alerts are two files: ask for one at a time"),
        ("stats --alerts --json", "--alerts are YAML, as Prometheus reads them: leave out --json"),
        ("reproduce all --mnist /none", "/none does not exist"),
        ("verify collectives --count 99G", "--count 99G is too many for a call of MPI: give less than 2^31"),
    ],
)
def test_words_that_are_no_command_are_one_line(words: str, line: str) -> None:
    assert refusal(*words.split()) == f"netoffload: {line}"


def test_lists_are_json_where_json_is_asked_for() -> None:
    for order in (["--list", "--json"], ["--json", "--list"]):
        listed = json.loads(netoffload("train", *order).stdout)
        assert ("wa+c" in listed["exchanges"], "terngrad" in listed["compressors"], "hdc" in listed["models"]) == (
            (True,) * 3
        )
    papers = json.loads(netoffload("reproduce", "--json").stdout)
    assert any("inceptionn-fig12" in items for items in papers.values())


def test_what_compiles_is_a_whole_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    monkeypatch.setattr(testbed, "notes", Console(file=out))
    line = f"{COMPILING}: 13 s, 41 ready, now run_ring (once per version and CPU, minutes)"
    with testbed.phases("building") as say:
        say(line)
        say("measuring")
    assert out.getvalue() == f"{line}\n"


CODEC = ("bench", "codec", "--codec", "inceptionn", "--size", "64KiB", "--data", "gaussian:0.001", "--repeat", "1")


def run(*words: str, columns: str | None) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment["PYTHONPATH"] = PYTHONPATH
    if columns is not None:
        environment["COLUMNS"] = columns
    done = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, text=True, timeout=110, check=False)
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
