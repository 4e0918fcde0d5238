"""``netoffload advise``: its predictions against figures worked out by hand, its recommendations, its measurements."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netoffload import codec
from netoffload.compiled.arrays import Float32Array
from netoffload.lab.bench import advice as bench
from netoffload.lab.models import advice
from netoffload.lab.models.advice import Coding, Network, Prediction, Workload
from netoffload.transport.rendezvous.agreement import Precision
from tests.shared.commands import netoffload

MS = 1e-3
SLOW = Coding(ratio=8, encode_Bps=1e9, decode_Bps=2e9, relative_error=0.02, worst_over_bound=1.0)
CODINGS = {
    "packed": SLOW,
    "8bit-dynamic": dataclasses.replace(SLOW, ratio=16),
    "terngrad": dataclasses.replace(SLOW, ratio=16, encode_Bps=1e12, decode_Bps=1e12, relative_error=0.8),
}
HDC = Workload("hdc", 4 * 1149010, 10 * MS)


def predicted(network: Network, work: Workload = HDC) -> dict[str, Prediction]:
    return {row.exchange: row for row in advice.predict(network, work, CODINGS)}


def test_predictions_are_those_made_by_hand() -> None:
    """4 MB, 4 ranks, 1 Gb/s, 1 ms, computing 10 ms: a ring sends 6 MB in 48 ms, 2 * 3 steps and 2 rounds late."""
    rows = predicted(Network(4, 1e9, 1 * MS), Workload("made", 4_000_000, 10 * MS))
    steps_ms = {
        "ring": 10 + 48 + 8,
        "packed inline": 10 + max(48 / 8, 6 + 3) + 8,
        "packed in NICs": 10 + max(48 / 8, 6 + 3) + 8 + 6 * 0.016,
        "gloo": 10 + 48 + 6,
        "8bit-dynamic": 10 + 12 * 8 / 16 + (4 + 16 / 2) + 3,
        "terngrad": 10 + 12 * 8 / 16 + (4 + 16) / 1000 + 3,
        "Periodic, every 8": 10 + (48 + 8) / 8,
    }
    assert {name: row.step_s / MS for name, row in rows.items()} == pytest.approx(steps_ms)
    assert rows["ring"].wire_octets == 6_000_000
    assert rows["packed inline"].wire_octets == 750_000
    assert rows["packed inline"].speedup == pytest.approx(66 / 27)
    assert predicted(Network(4, 1e8, 0))["packed inline"].step_s == pytest.approx(
        10 * MS + 6 * 1149010 * 8 / 1e8 / 8  # the wire, not the codec, is slow
    )


@pytest.mark.parametrize(("rate_bps", "exchange"), [(1e8, "packed inline"), (1e9, "packed inline"), (1e11, "ring")])
def test_slow_links_want_compression_and_fast_ones_with_a_slow_codec_do_not(rate_bps: float, exchange: str) -> None:
    rows = advice.predict(Network(4, rate_bps, 50e-6), HDC, CODINGS)
    assert advice.recommended(rows).exchange == exchange
    assert advice.in_words(rows).startswith("Stay with" if exchange == "ring" else f"Take {exchange}")


def test_an_error_beyond_the_limit_is_not_recommended_and_a_trial_goes_before_predictions() -> None:
    rows = advice.predict(Network(4, 1e9, 50e-6), HDC, CODINGS)
    by_step = sorted(rows, key=lambda row: row.step_s)
    assert [row.exchange for row in by_step[:2]] == ["Periodic, every 8", "terngrad"]
    assert advice.recommended(rows).exchange == "packed inline"
    assert advice.recommended(rows, error_max=1.0).exchange == "terngrad"
    measured = {"ring": 20 * MS, "packed inline": 25 * MS}
    tried = [dataclasses.replace(row, measured_s=measured.get(row.exchange)) for row in rows]
    assert advice.recommended(tried, error_max=1.0).exchange == "ring"
    assert "20 ms per step (measured)" in advice.in_words(tried)


def gradients(vectors: int = 2, count: int = 70_000) -> Float32Array:
    values = np.random.default_rng(7).standard_normal((vectors, count), np.float32) * np.float32(0.001)
    values[:, ::3] = 0
    return values


@pytest.mark.parametrize("name", advice.INLINE)
def test_a_codec_is_measured_by_what_a_ring_sends(name: str) -> None:
    vectors = gradients()
    found = bench.coding_of(Precision(name, 10), vectors, ranks=2)
    scales = [2.0**exponent for exponent in range(12)]
    fitting = [scale for scale in scales if 0.5 <= scale * float(vectors[0].std()) / (1 / 64) < 2]
    if name == "inceptionn":
        fitting = [4 * scale for scale in fitting]
    errors = []
    for scale in fitting:  # one or two powers of two come near the root mean square that the doors scale to
        scaled = vectors[0] * np.float32(scale)
        errors.append(np.abs(codec.get(name).round_trip(scaled, 10) - scaled).max() * 1024)
    assert any(found.worst_over_bound == pytest.approx(error, rel=1e-6) for error in errors)
    assert found.worst_over_bound is not None
    assert (found.worst_over_bound <= 1) is (name != "inceptionn")  # the paper's codec breaks its bound
    assert 0 < found.relative_error < 0.2
    assert 2 < found.ratio < 8


def test_a_sum_of_ranks_has_a_ratio_of_its_own() -> None:
    one = gradients(1)
    alone = bench.coding_of(Precision("bounded", 10), one, ranks=2).ratio
    assert bench.coding_of(Precision("bounded", 10), one, ranks=64).ratio < alone


def advised(*words: str) -> dict[str, Any]:
    done = netoffload("advise", "--json", *words)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_a_file_and_a_given_network(tmp_path: Path) -> None:
    np.save(tmp_path / "held.npy", gradients())
    file = str(tmp_path / "held.npy")
    found = advised("--rate", "1mbit", "--delay", "2", "-n", "8", "--compute", "3", "--gradients", file)
    assert found["network"] == {"ranks": 8, "rate_bps": 1_000_000, "delay_s": 0.002, "source": "given"}
    assert found["workload"] == {"name": "held.npy", "gradient_octets": 280_000, "compute_s": 0.003}
    assert found["recommended"] == "packed inline"
    assert len(found["predictions"]) == 10
    assert all(row["measured_s"] is None for row in found["predictions"])


def test_a_trial_times_four_rings_between_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROBE_OCTETS", (1 << 16, 1 << 16))
    np.save(tmp_path / "held.npy", gradients())
    found = advised("--try", "-n", "2", "--gradients", str(tmp_path / "held.npy"))
    tried = {row["exchange"]: row["measured_s"] for row in found["predictions"] if row["measured_s"] is not None}
    assert tried.keys() == {"ring", "packed inline", "bounded inline", "inceptionn inline"}
    assert min(tried.values()) > 0
    assert found["recommended"] in tried
    assert found["network"]["source"] == "loopback of this machine"
    assert 0 < found["network"]["rate_bps"] < math.inf


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rate 1gbit -- /nonexistent.py", "there is no script /nonexistent.py"),
        ("--rate 1gbit --gradients held.npy -- train.py", "leave --gradients out"),
        ("", "which network?"),
        ("--rate fast", "rate 'fast'"),
        ("--rate 1gbit --try", "leave --rate out"),
        ("--try --delay 1", "add --rate"),
        ("--rate 1gbit -n 1", "at least 2"),
        ("--rate 1gbit --bound 17", "outside 1..16"),
        ("--rate 1gbit --model nosuch", "model 'nosuch' is unknown"),
        ("--rate 1gbit --compute nan", "compute is nan"),
        ("--rate 1gbit --gradients /nonexistent.npy", "cannot read gradients"),
    ],
)
def test_what_cannot_be_advised_is_refused(words: str, message: str) -> None:
    done = netoffload("advise", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("netoffload: ")
    assert message in line
