"""``netoffload run`` refuses wrong programs before it builds anything."""

from pathlib import Path

import pytest

from netoffload.errors import UsageError
from netoffload.lab.cli.testbed import _check_script


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program of PATH that ends in .py and is not in this folder."""
    path = tmp_path / "bin/tool.py"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.chdir(tmp_path)
    return path.name


def test_a_program_of_path_may_end_like_a_script(tool: str) -> None:
    _check_script(["--", tool, "--fast"])
    for words in (["python", "-m", "nosuch.py"], ["sh", "-c", "x.py"], []):
        _check_script(words)


@pytest.mark.parametrize("words", [["python3", "tool.py"], ["--", "python", "nosuch.py"], ["nosuch.py"]], ids=" ".join)
def test_a_script_that_is_not_there_is_refused(tool: str, words: list[str]) -> None:
    with pytest.raises(UsageError, match=rf"there is no script {words[-1]} in "):
        _check_script(words)
