"""The benchmark for any cluster (``netoffload.lab.bench.rank_allreduce``), on ranks here; times are not tested."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from netoffload.config import ENV_OFFLOAD
from netoffload.lab.testbed.forks import ENV_FORK_SERVER
from tests.shared.commands import Done, ranks
from tests.shared.forked_ranks import _forks  # noqa: F401

pytestmark = pytest.mark.mpi

ALLREDUCE = "netoffload.lab.bench.rank_allreduce"


def bench(*words: str, module: str = ALLREDUCE, count: int = 3) -> Done:
    return ranks(count, "-m", module, *words)


def test_every_way_of_summing_gives_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_OFFLOAD, "off")
    np.save(tmp_path / "g.npy", np.random.default_rng(1).normal(0, 0.01, (2, 5000)).astype(np.float32))
    whats = ("ring", "ring_comp", "wa", "wa_comp", "mpi")
    words = [word for what in whats for word in ("--what", what)]
    words += ["--size", "4", "--size", "100KB", "--repeat", "2", "--rate", "1gbit"]
    done = bench(*words, "--gradients", str(tmp_path / "g.npy"), "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["ranks"] == 3
    assert [(row["size_octets"], row["what"]) for row in record["results"]] == [
        (size, what) for size in (4, 100_000) for what in whats
    ]
    for row in record["results"]:
        assert row["max_error"] < 1e-6  # nothing is rounded; the oracle adds in another order
        assert row["bound_s"] == pytest.approx(2 * 2 / 3 * row["size_octets"] * 8 / 1e9)
        assert len(row["times_s"]) == 2
        assert row["rank_cpu_s"] >= 0
        assert row["wire_octets"] is row["nic"] is row["nic_cpu_s"] is None


def test_a_broken_reduction_is_refused() -> None:
    done = ranks(3, str(Path(__file__).with_name("programs") / "broken_reductions.py"))
    assert done.returncode == 0, done.stderr
    verdicts = {tuple(line.split()[:2]): line.split()[2] for line in done.stdout.splitlines()}
    assert len(verdicts) == 4 * 4
    for (what, reduction), verdict in verdicts.items():
        # Exact sums of what NICs should have rounded: nothing was compressed.
        good = reduction == "right" or (what, reduction) == ("ring", "exact")
        assert verdict == ("accepted" if good else "refused"), (what, reduction)


def test_a_table_for_people() -> None:
    done = bench("--what", "ring", "--size", "40KB", "--repeat", "1", count=2)
    assert done.returncode == 0, done.stderr
    first, headings, row = done.stdout.splitlines()
    assert first.startswith("2 ranks, MPICH")
    assert headings.split()[:2] == ["what", "MB"]
    assert row.split()[:2] == ["ring", "0.04"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_gloo_gives_the_sum() -> None:
    done = bench("--what", "gloo", "--size", "40KB", "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]
    assert (row["what"], row["max_error"]) == ("gloo", 0.0)


@pytest.mark.parametrize(
    ("words", "message"), [(["--size", "3"], "nothing to time"), (["--gradients", "none.npy"], "are not a file")]
)
def test_what_cannot_be_timed_is_one_clear_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_FORK_SERVER)  # mpiexec kills the client of a fork that aborts
    done = bench("--what", "ring", *words, count=1)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if message in line and line.startswith("netoffload: ")]
    assert "Traceback" not in done.stderr


def test_overlap_is_timed_four_ways_and_every_sum_is_the_same() -> None:
    words = ("--buckets", "3", "--size", "40KB", "--compute-ms", "1", "--repeat", "2", "--json")
    done = bench(*words, module="netoffload.lab.bench.rank_overlap", count=2)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [result["compute_kind"] for result in record["results"]] == ["numpy", "python", "sleep"]
    for result in record["results"]:
        assert {name: len(times) for name, times in result["times_s"].items()} == dict.fromkeys(
            ("compute", "communication", "serial", "overlapped"), 2
        )
        hidden_s = result["serial_s"] - result["overlapped_s"]
        assert result["overlap"] == pytest.approx(hidden_s / min(result["compute_s"], result["communication_s"]))
