"""Training in one process, and the search for thresholds on top of it."""

import pytest

from netoffload.errors import UsageError
from netoffload.lab.bench.thresholds import Trial, best, search
from netoffload.lab.training import inprocess
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.dataset import load_digits


def test_a_larger_threshold_sends_less_and_what_diverges_is_no_best_one() -> None:
    settings = TrainSettings("inc", nodes=2, iterations=2, learning_rate=0.05)
    found = list(search(settings, load_digits(1), methods=("wgt",), grid=(1e-4, 100.0)))
    assert [(trial.method, trial.threshold) for trial in found] == [("wgt", 1e-4), ("wgt", 100.0)]
    assert 0.2 < found[0].efficiency < 1
    assert found[1].efficiency < 1e-4


def test_the_best_threshold_sends_least_of_those_that_learn_as_well() -> None:
    trials = [
        Trial("wgt", 0.001, 0.918, 0.1, 0.5),
        Trial("wgt", 0.002, 0.912, 0.1, 0.3),
        Trial("wgt", 0.005, 0.907, 0.1, 0.1),
        Trial("wgt", 0.01, 0.0, None, 0.0),
    ]
    assert best(trials).threshold == 0.002
    with pytest.raises(UsageError, match="no threshold"):
        best([])


def test_what_needs_nics_is_not_trained_in_one_process() -> None:
    with pytest.raises(UsageError, match=r"inc\+c needs NICs"):
        inprocess.train(TrainSettings("inc+c"), load_digits(1))
