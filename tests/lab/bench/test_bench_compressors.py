"""``netoffload bench compressors`` reports every method, and refuses wrong options in one line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import Layout, registry
from netoffload.lab.bench.compressors import quality, specs
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
