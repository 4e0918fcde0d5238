"""The report of the codec bench; speeds are not tested."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import CODECS, Codec, get
from netoffload.codec.kernels import usable_kernels
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.compressors import libraries as peers
from netoffload.errors import RunError
from netoffload.lab.bench import codec as bench
from tests.shared.commands import netoffload
from tests.shared.quick_cases import by_day

VALUES = np.random.default_rng(1).normal(0, 0.05, 1003).astype(np.float32)

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="times compiled kernels")


CONTENDERS = [(codec, kernel) for codec in CODECS.values() for kernel in bench.variants(codec)]


@pytest.fixture(autouse=True)
def one_call_per_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SAMPLE_OCTETS", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "kernel"),
    by_day(CONTENDERS, [(codec, kernel) for codec, kernel in CONTENDERS if kernel == bench.variants(codec)[0]]),
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_every_contender_is_checked_and_described(codec: Codec, kernel: str) -> None:
    wanted = codec.oracle.round_trip(VALUES, 10)
    measured = bench.measure(codec, kernel, VALUES, wanted, 10, 2)
    assert measured["ratio"] == VALUES.nbytes / codec.encode(VALUES, 10).size
    assert sum(measured["shares"]) == pytest.approx(1)
    assert measured["max_error"] == np.abs(VALUES.astype(np.float64) - wanted).max()
    assert measured["max_error"] >= measured["mean_error"] >= 0
    for name in ("memcpy", "compress", "decompress"):
        assert measured[f"{name}_best_GBps"] >= measured[f"{name}_GBps"] > 0


@pytest.mark.slow
def test_each_half_is_coded_by_itself() -> None:
    zeros = np.zeros(1003, np.float32)  # of which packed makes one run, or one per half
    measured = bench.measure(get("packed"), usable_kernels()[0], zeros, zeros, 10, 1)
    assert measured["ratio"] == zeros.nbytes / get("packed").encode(zeros, 10).size


def test_codecs_with_tags_have_every_kernel_and_others_one() -> None:
    assert bench.variants(get("bounded")) == usable_kernels()
    assert bench.variants(get("truncate16")) == ["plain"]
    assert bench.variants(get("bounded"), ["plain"]) == ["plain"]


def test_a_wrong_answer_is_not_timed() -> None:
    wanted = get("inceptionn").oracle.round_trip(VALUES, 10)
    wanted[17] += 1
    with pytest.raises(RunError, match=r"inceptionn .* is wrong"):
        bench.measure(get("inceptionn"), "plain", VALUES, wanted, 10, 1)


def test_errors_leave_out_what_is_not_finite() -> None:
    values = np.array([1, np.inf, np.nan, 2], np.float32)
    assert bench.errors(values, np.array([1, 0, 0, 2.5], np.float32)) == (0.5, 0.25)
    assert bench.errors(values[1:2], values[1:2]) == (0.0, 0.0)


@pytest.mark.parametrize("name", [*peers.PACKAGES, bench.QUANTISING, bench.ZIPNN])
def test_peers_return_what_they_got(name: str) -> None:
    package = bench.ZIPNN if name == bench.ZIPNN else peers.PACKAGES.get(name, "cramjam")
    if importlib.util.find_spec(package) is None:
        assert package in peers.missing() or name == bench.ZIPNN
        assert name not in bench.peers()
        pytest.skip(f"{package} is not installed")
    assert name in bench.peers()
    compress_gbps, decompress_gbps, ratio, max_error = bench.measure_library(name, VALUES, 10, 1)
    assert ratio > 0.9
    assert max_error <= (1.0001 * 2.0**-10 if name in bench.WITH_BOUND else 0)
    assert min(compress_gbps, decompress_gbps) > 0


@pytest.mark.slow
def test_the_command_reports_every_key(tmp_path: Path) -> None:
    np.save(tmp_path / "kept.npy", VALUES.reshape(17, 59))
    asked = "--codec bounded --codec none --bound 6 --bound 10 --size 4096 --size 1KB --data gaussian:0.01"
    words = [*asked.split(), "--gradients", str(tmp_path / "kept.npy"), "--kernel", "plain"]
    words += ["--repeat", "1", "--figure", str(tmp_path / "pareto.svg"), "--json"]
    done = netoffload("bench", "codec", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["memcpy_GBps"] > 0
    assert [(row["codec"], row["k"], row["size_octets"]) for row in report["results"]] == 2 * [
        (codec, k, size) for codec, k in (("bounded", 6), ("bounded", 10), ("none", None)) for size in (4096, 1000)
    ]
    assert {row["data"] for row in report["results"]} == {"gaussian:0.01", "kept.npy"}
    keys = {"codec", "k", "kernel", "data", "size_octets", "compress_GBps", "decompress_GBps", "ratio", "shares"}
    keys |= {"max_error", "mean_error"}
    assert all(row.keys() >= keys and len(row["shares"]) == 4 for row in report["results"])
    of_peers = {(row["name"], row["k"]) for row in report["peers"]}
    wanted = {(name, k) for name in bench.peers() for k in ((6, 10) if name in bench.WITH_BOUND else (None,))}
    assert of_peers == wanted
    assert len(report["peers"]) == 4 * len(wanted)
    drawn = (tmp_path / "pareto.svg").read_text()
    assert all(f"{word}</text>" in drawn for word in ("bounded", "kept.npy", "worst error"))
    assert {"numba", "numpy", "netoffload"} <= report["versions"].keys()
    assert report["cpu"]
