"""Help, Tab completion and manual pages follow the commands; help and Tab do not import them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from netoffload.cli import app
from netoffload.cli.known import commands
from netoffload.nic_options import NicProcess, options_of
from tests.shared.commands import PYTHONPATH, netoffload, python
from tests.shared.quick_cases import by_day

SAY_IMPORTS = str(Path(__file__).with_name("programs") / "say_imports.py")
HEAVY = {"numba", "numpy", "pyroute2", "torch", "matplotlib"}
COMMANDS = commands()


def modules_of(*words: str) -> set[str]:
    """What a command line imports."""
    ran = python(SAY_IMPORTS, *words)
    assert ran.returncode == 0
    return set(ran.stderr.split())


def test_help_imports_no_command_and_nothing_heavy() -> None:
    modules = modules_of("--help")
    assert not modules & HEAVY
    assert {name for name in modules if name.startswith("netoffload.cli.")} == {
        "netoffload.cli.app",
        "netoffload.cli.known",
    }


def test_the_version_imports_next_to_nothing() -> None:
    assert not modules_of("--version") & {*HEAVY, "typer", "rich", "netoffload.cli"}


def test_help_has_every_command_and_a_typing_error_gets_a_suggestion() -> None:
    shown = netoffload("--help", env={"COLUMNS": "200"}).stdout
    for name, said in COMMANDS.items():
        assert name in shown
        assert said["summary"].split("[")[0][:60] in shown
    refused = netoffload("statsu")
    assert refused.returncode == 2
    assert "Did you mean 'stats', 'status', " in " ".join(refused.stderr.replace("│", "").split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    by_day(
        [
            (("--exchange", "star"),),
            (("--optimizer", "adamm"),),
            (("--seeds", "x"),),
            (("--resume",),),
            (("--rate", "5"),),
        ],
        [(("--exchange", "star"),), (("--optimizer", "adamm"),)],
    ),
)
def test_a_wrong_option_of_train_is_refused_before_torch_is_imported(words: tuple[str, ...]) -> None:
    ran = python(SAY_IMPORTS, "train", "hdc", *words)
    said, modules = ran.stderr.splitlines()
    assert (ran.returncode, said.startswith("netoffload: ")) == (2, True)
    assert "netoffload.lab.training.config" in modules.split()
    assert "torch" not in modules.split()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "nic"])
def test_help_in_a_narrow_terminal_is_whole(name: str) -> None:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    named = command.get_command(typer.Context(command), name)
    commands = [((name,), named), *(((name, part), one) for part, one in getattr(named, "commands", {}).items())]
    for words, found in commands:
        shown = netoffload(*words, "--help", env={"COLUMNS": "80"}).stdout
        assert "…" not in shown
        for parameter in found.params:
            for flag in parameter.opts if parameter.param_type_name == "option" else ():
                assert re.search(rf"{flag}[ ,]", shown), flag


def tab(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word, through the script that we give it."""
    shell = (
        'source script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        '_netoffload_completion netoffload; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", "-c", shell, "bash", "netoffload", *words]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture(scope="module")
def with_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and the script for bash that it prints."""
    folder = tmp_path_factory.mktemp("tab")
    program = folder / "netoffload"
    program.write_text(f"#!{sys.executable}\nfrom netoffload.__main__ import main\nmain()\n")
    program.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "_NETOFFLOAD_COMPLETE": "source_bash"}
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    (folder / "script").write_text(done.stdout)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("st",), ["stats", "status"]),
        (("verify", "co"), ["codec", "collectives"]),
        (("train", "--exch"), ["--exchange"]),
        (("nic", "--log"), ["--log-format"]),
    ],
)
def test_tab_completes_commands_and_options(words: tuple[str, ...], offered: list[str], with_script: Path) -> None:
    assert tab(with_script, *words) == offered


def test_the_manual_has_a_page_for_every_command_that_troff_reads(tmp_path: Path) -> None:
    assert netoffload("manual", "--out", str(tmp_path)).returncode == 0
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {f"netoffload-{name}.1" for name in COMMANDS} | {"netoffload.1", "netoffload-verify-codec.1"} <= pages.keys()
    assert "[bold]" not in "".join(pages.values())
    assert f"\\fB{'--exchange'.replace('-', chr(92) + '-')} " in pages["netoffload-train.1"]
    for _, asked in options_of(NicProcess):
        assert asked.flag.replace("-", "\\-") in pages["netoffload-nic.1"]
    if shutil.which("groff") is None:
        return
    ran = subprocess.run(["groff", "-man", "-ww", "-z", "-Kutf8", *tmp_path.iterdir()], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_manual_of_no_command_is_refused() -> None:
    assert "choose from advise, bench" in netoffload("manual", "nosuch").stderr
    assert netoffload("manual", "train", "x").stderr == "netoffload: netoffload train has no command 'x'\n"
    assert netoffload("manual", "up", "--out", "x").returncode == 2
