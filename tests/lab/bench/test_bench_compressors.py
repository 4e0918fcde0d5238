"""``netoffload bench compressors`` reports every method; and the search for thresholds."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout, registry
from netoffload.errors import UsageError
from netoffload.lab.bench import compressors
from netoffload.lab.bench.compressors import quality, specs
from netoffload.lab.bench.thresholds import Trial, best, search
from netoffload.lab.training import inprocess
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import load_digits
from tests.shared.commands import Done, netoffload

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="times compiled kernels")


def bench(*words: str) -> Done:
    return netoffload("bench", "compressors", *words)


@pytest.mark.slow
@pytest.mark.timeout(400)  # may compile every kernel there is
def test_every_method_is_reported_with_its_ratio_and_q(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).normal(0, 0.01, (2, 3000)).astype(np.float32)
    np.save(tmp_path / "kept.npy", vectors)
    done = bench("--gradients", str(tmp_path / "kept.npy"), "--layers", "2000,1000", "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["configuration"]["layers"] == [2000, 1000]
    assert report["configuration"]["data"] == "kept.npy"
    rows = {row["spec"]: row for row in report["results"]}
    assert list(rows) == [registry.parse(spec).spec for spec in specs()]
    for row in rows.values():
        assert row["encode_GBps"] > 0
        assert row["decode_GBps"] > 0
        assert all(math.isfinite(row[key]) for key in ("ratio", "variance_ratio", "bias", "mean_error", "max_error"))
    layout = Layout((2000, 1000))
    wanted = quality(registry.get("terngrad"), vectors[0], layout, repeats=2, seed=1)
    assert rows["terngrad"]["variance_ratio"] == wanted.variance_ratio
    assert rows["terngrad"]["ratio"] == 12000 / (8 + 8 + 600)
    assert rows["none"]["variance_ratio"] == 0


def test_the_table_names_what_was_asked_for() -> None:
    done = bench("--compressor", "qsgd:levels=15", "--size", "40KB", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    assert "qsgd:levels=15" in done.stdout
    assert "10000 floats of gaussian:0.002" in done.stdout


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("text", "is_unbiased"),
    [("terngrad", False), ("terngrad:clip_factor=0", True), ("qsgd", True), ("8bit-dynamic", False)],
)
def test_only_what_does_not_clip_is_called_unbiased(text: str, is_unbiased: bool) -> None:
    assert compressors.is_unbiased(registry.parse(text)) == is_unbiased
