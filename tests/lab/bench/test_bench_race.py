"""``netoffload bench ddp --until`` on a testbed: learning rates, accuracies and octets; times are not tested."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from netoffload.errors import RunError
from netoffload.lab.bench.ddp import Ddp, Race
from netoffload.lab.bench.jobs import DdpRecord, RacePoint, RaceResult
from netoffload.lab.bench.rank_ddp import held_out
from netoffload.lab.bench.settings import DdpSettings
from netoffload.lab.declared import Progress, Table
from netoffload.lab.training.data import Dataset
from tests.shared.commands import netoffload, refusal
from tests.shared.forked_ranks import _forks  # noqa: F401


def ended(what: str, time_s: float, accuracy: float = 0.9) -> RaceResult:
    curve = (RacePoint(5, time_s / 2, 1000, 0.5), RacePoint(10, time_s, 2000, accuracy))
    return RaceResult(what, accuracy >= 0.9, 0.1, 10, time_s / 10, time_s, 2000, accuracy, {"0.1": 0.5}, curve)


def race(*results: RaceResult) -> Race:
    training = {"model": "hdc", "data": "digits", "batch": 25}
    configuration = {"training": training, "until": 0.9, "nodes": 4, "rate_bps": 1e9}
    return Race(configuration, 1e9, 0.1, "a CPU", {}, {}, list(results))


def test_the_table_begins_with_the_fastest_and_a_line_says_who_of_ours_is_later() -> None:
    table, line = race(
        ended("diloco", 1.0, 0.8),
        ended("inline_packed", 5.0),
        ended("fp16", 4.0),
        ended("gloo", 6.0),
        ended("pqasgd", 3),
    ).shown()
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["pqasgd", "fp16", "inline_packed", "gloo", "diloco"]
    assert [row[1] for row in table.rows] == ["", "", "", "", "not reached"]
    assert line == "later than fp16, the fastest of torch's: inline_packed, diloco"


def test_what_was_raced_is_reported_if_a_later_contender_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Ddp, _folder: Path, _codec: str | None, names: list[str], _progress: Progress) -> None:
        if "diloco" in names:
            raise RunError("rank 1 failed")
        self._records.append(DdpRecord({}, raced=tuple(ended(name, 1.0) for name in names)))
        self._measured_bps.append(1e9)

    monkeypatch.setattr(Ddp, "_run", run)
    experiment = Ddp(DdpSettings(until=0.5, what=("gloo", "fp16", "diloco")))
    with pytest.raises(RunError):
        experiment.measure(lambda said, share=None: None)
    found = experiment.findings("rank 1 failed")
    assert isinstance(found, Race)
    assert [row.what for row in found.results] == ["gloo", "fp16"]
    assert list(found.shown())[-1] == "diloco: missing: rank 1 failed"


@pytest.mark.slow
def test_the_figure_has_a_curve_for_each(tmp_path: Path) -> None:
    race(ended("gloo", 2.0), ended("diloco", 1.0)).draw(tmp_path / "race.svg")
    drawn = (tmp_path / "race.svg").read_text()
    assert all(words in drawn for words in ("MB on all wires", "seconds of training"))
    assert (drawn.count(">gloo<"), drawn.count(">diloco<")) == (1, 1)  # in the legend of the left panel


def test_what_decides_the_learning_rate_is_not_trained_on() -> None:
    labels = np.arange(25)
    kept = held_out(
        Dataset(labels[:, None].astype(np.float32), labels, labels[:1, None].astype(np.float32), labels[:1])
    )
    assert (kept.train_labels.tolist(), kept.test_labels.tolist()) == (list(range(22)), [22, 23, 24])
    assert kept.train_images[:, 0].tolist() == list(range(22))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--until", "90"), "--until 90.0 is no accuracy: give more than 0, and 1 at most"),
        (("--until", "0.9", "--factors", "1,x"), "--factors '1,x' are not numbers above 0, with commas, like 0.5,1,2"),
        (("--until", "0.9", "--factors", "0"), "--factors '0' are not numbers above 0, with commas, like 0.5,1,2"),
        (("--factors", "1,2"), "--factors and --every go with --until ACCURACY"),
        (("--figure", "race"), "cannot draw into race: the name of a figure ends in .png, .svg or .pdf"),
        (("--figure", "/none/race.png"), "cannot write /none/race.png: /none is not a folder"),
        (("--optimizer", "lion"), "optimizer 'lion' is unknown: choose from sgd, adam, adamw, rmsprop, adagrad"),
        (("--until", "0.9", "--what", "nic_packed"), "--until trains without NICs: leave out nic_packed"),
    ],
)
def test_what_makes_no_race_is_refused(words: tuple[str, ...], line: str) -> None:
    assert refusal("bench", "ddp", *words) == f"netoffload: {line}"


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_contenders_train_until_the_accuracy_with_the_better_learning_rate() -> None:
    names = ("gloo", "inline_exact", "pqasgd", "diloco")
    words = [word for name in names for word in ("--what", name)]
    asked = ["-n", "2", "--rate", "2gbit", "--steps", "60", "--every", "6", "--until", "0.5", "--factors", "1,1e9"]
    done = netoffload("bench", "ddp", *asked, *words, "--json")
    assert done.returncode == 0, done.stderr
    results = {result["what"]: result for result in json.loads(done.stdout)["results"]}
    assert tuple(results) == names
    for result in results.values():
        accuracies = [point["accuracy"] for point in result["curve"]]
        assert all(accuracy < 0.5 for accuracy in accuracies[:-1])
        assert result["is_reached"] is (accuracies[-1] >= 0.5)
        assert [point["steps"] for point in result["curve"]] == list(range(6, result["steps"] + 1, 6))
        assert list(result["tried"]) == ["0.1", "1e+08"]  # with the last one pqasgd's values are not finite
        assert result["tried"][f"{result['learning_rate']:.6g}"] == max(result["tried"].values())
    assert results["gloo"]["is_reached"]
    per_step = {name: result["wire_octets"] / result["steps"] for name, result in results.items()}
    assert per_step["inline_exact"] < 0.9 * per_step["gloo"]
    assert per_step["pqasgd"] < 0.5 * per_step["gloo"]
    assert per_step["diloco"] < 0.02 * per_step["gloo"]
