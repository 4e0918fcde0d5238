"""Long commands report their findings even if an error or a signal ends them."""

import pytest

from netoffload.cli.app import Interrupted
from netoffload.errors import TestbedError
from netoffload.lab.cli.figures import report_on_exit
from netoffload.lab.cli.training_runs import RunSeries
from netoffload.lab.training.config import TrainSettings


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TestbedError("too busy"), "too busy"), (Interrupted(), "interrupted"), (KeyError(), "KeyError")],
)
def test_the_reason_is_told_and_the_error_goes_on(error: BaseException, reason: str) -> None:
    told: list[str | None] = []
    with pytest.raises(type(error)), report_on_exit(told.append):
        raise error
    assert told == [reason]


def test_at_the_end_there_is_no_reason() -> None:
    told: list[str | None] = []
    with report_on_exit(told.append):
        assert not told
    assert told == [None]


def test_runs_without_a_record_are_missing() -> None:
    runs = [TrainSettings(name, nodes=2) for name in ("wa", "inc", "inc+c")]
    found = RunSeries.of(runs, "direct")
    assert found.missing("it broke") == dict.fromkeys(("wa", "inc", "inc+c"), "it broke")
    found.failed["inc"] = "a rank failed"
    assert found.missing("it broke") == {"wa": "it broke", "inc": "a rank failed", "inc+c": "it broke"}
    assert list(RunSeries.of(runs, "both").missing(None)) == ["wa", "inc", "wa via NICs", "inc via NICs", "inc+c"]
