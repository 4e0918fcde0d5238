"""``netoffload bench overlap`` refuses what cannot be measured before it builds anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netoffload.cli import app
from netoffload.errors import UsageError


def test_help_has_an_example() -> None:
    said = CliRunner().invoke(app, ["bench", "overlap", "--help"]).output
    assert "Example: netoffload bench overlap" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compute", "java"], "compute 'java' is unknown"),
        (["--rate", "fast"], "rate 'fast'"),
        (["--size", "3"], "one float32"),
        (["--compute-ms", "0"], "is no time"),
        (["--compute-ms", "nan"], "is no time"),
        (["--compute-ms", "inf"], "is no time"),
        (["--nic", "--bound", "17"], "outside 1..16"),
        (["--gradients", "gaussian:2"], "standard deviation"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "overlap", *words])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
