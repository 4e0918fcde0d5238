"""A process's standard error: as JSON, every line is one object, also a traceback."""

import datetime
import json
from pathlib import Path

import pytest

from netoffload import log
from tests.shared.commands import python

PROGRAM = str(Path(__file__).with_name("programs") / "speak_json.py")


def test_what_nobody_catches_is_an_object_on_a_line() -> None:
    made, divided, raised = map(json.loads, python(PROGRAM).stderr.splitlines())
    said = datetime.datetime.fromisoformat(made.pop("time"))
    assert datetime.datetime.now(datetime.UTC) - said < datetime.timedelta(minutes=1)
    assert made == {"level": "info", "event": "made", "message": "made it", "path": "/a"}
    assert (divided["level"], divided["event"]) == ("error", "uncaught")
    assert divided["traceback"].startswith("Traceback")
    assert divided["traceback"].endswith("ZeroDivisionError: division by zero\n")
    assert raised["message"] == "ValueError: two\nlines"


def test_a_text_has_its_level_only_where_it_warns(capsys: pytest.CaptureFixture[str]) -> None:
    log.say("a", "it is so", level="warning", field=1)
    log.say("b", "it went", level="error")
    log.note("c", "all is well")
    assert capsys.readouterr().err == "netoffload: warning: it is so\nnetoffload: it went\n"
