"""``netoffload bench nic`` refuses what cannot be measured before it builds anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netoffload.cli import app
from netoffload.errors import UsageError
from netoffload.testbed import build


@pytest.fixture(autouse=True)
def _root_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are refused before anything is made, so no root is needed to see it."""
    monkeypatch.setattr(build, "check_root", lambda: None)


def test_help_has_an_example() -> None:
    said = CliRunner().invoke(app, ["bench", "nic", "--help"]).output
    assert "Example: netoffload bench nic" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--peers", "wireguard"], "peer"),
        (["--rates", "fast"], "not a number with a unit"),
        (["--size", "3"], "one float32"),
        (["--bound", "17"], "outside 1..16"),
        (["--gradients", "gaussian:2"], "standard deviation"),
        (["--gradients", "no-such-file.npy"], "no-such-file.npy"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "nic", *words])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
