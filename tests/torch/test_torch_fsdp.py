"""FSDP2 with compressed gradients on real ranks: they agree to the bit, resumed runs go on, and gradients are few."""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.torch.launcher import Launcher

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp.py"


def found_by(launcher: Launcher, size: int, folder: Path, *scenarios: str) -> tuple[list[dict[str, Any]], str]:
    """What each rank found, by scenario; and what all said."""
    done = launcher.run("programs.fsdp_ranks", size, folder, *scenarios)
    found = [found for _, found in sorted(json.loads(done.stdout or "[]"))]
    assert len(found) == size, done.stderr
    return found, done.stderr


@pytest.mark.slow
def test_ranks_agree_and_a_checkpoint_goes_on_bit_for_bit(launcher: Launcher, tmp_path: Path) -> None:
    found, said = found_by(launcher, 3, tmp_path, "doors", "odd", "refused")
    off, packed, fed, qsgd, half = zip(*(one["doors"] for one in found), strict=True)
    for ranks in (off, packed, fed, qsgd, half):
        assert len({digest for whole, rest, *_ in ranks for digest in (whole, rest)}) == 1
        assert all(steps == 6 for _, _, _, steps, *_ in ranks)
    assert len({ranks[0][0] for ranks in (off, packed, fed, qsgd, half)}) == 5
    assert all(distance < 1e-6 for _, _, distance, *_ in off)
    for ranks, limit, ratio in ((packed, 0.2, 2), (fed, 0.1, 1.2), (qsgd, 0.05, 2), (half, 1e-3, 0.9)):
        assert all(0 < distance < limit for _, _, distance, *_ in ranks)
        assert all(one > ratio for *_, one, _, _ in ranks)
    assert packed[0][5] == off[0][5] / 2  # all-gathers: parameters that stay are not gathered again
    assert "blocks.1.bias" in packed[0][6]
    assert not [name for name in fed[0][6] if name.endswith("bias")]
    assert not [name for name in half[0][6] if name.startswith("blocks.1.")]
    for one in found:
        assert one["odd"] == [pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-5)]
        nothing, factor, other = one["refused"]
        assert nothing.startswith("no module here has sharded parameters")
        assert "set_force_sum_reduction_for_comms(True)" in factor
        assert "belongs to another model" in other
    assert said.count("parameters of blocks.0 have no gradient, so the others' travel exact") == 3


@pytest.mark.slow
def test_exact_sums_of_two_ranks_have_gloos_bits(launcher: Launcher, tmp_path: Path) -> None:
    found, _ = found_by(launcher, 2, tmp_path, "two")
    assert len({digest for one in found for digest in one["two"]}) == 1


@pytest.mark.slow
def test_replicas_of_sharded_models_agree(launcher: Launcher, tmp_path: Path) -> None:
    found, _ = found_by(launcher, 4, tmp_path, "replicas")
    for at in range(2):
        assert len({one["replicas"][at][0] for one in found}) == 1
        assert 0 < found[0]["replicas"][at][1] < 0.2
    for one in found:
        _, _, shards, replicas, (some_calls, all_calls) = one["replicas"]
        assert shards > 1.5
        assert replicas == 6 * 3  # a sum by step and module
        assert some_calls == 2 * all_calls  # with half a mesh the others are over two of four ranks


def example(launcher: Launcher, *words: str, ranks: int = 4) -> tuple[float, int, int]:
    """The loss at the end, and octets of gradients: sent, and of float32 in a ring."""
    launch = ["--standalone", "--nproc-per-node", str(ranks)]
    done = launcher.torchrun(launch, "programs.all_examples", " ".join([str(EXAMPLE), *words]), timeout_s=600)
    assert done.returncode == 0, done.stderr[-4000:]
    digests, losses = zip(*re.findall(r"parameters (\w{16}), loss ([\d.]+)", done.stdout), strict=True)
    assert len(digests) == ranks
    assert len(set(digests)) == 1
    octets = re.search(r"sent ([\d,]+) octets of gradients.*uncompressed gradients ([\d,]+)", done.stdout)
    sent, plain = (int(one.replace(",", "")) for one in octets.groups()) if octets else (0, 0)
    return float(losses[0]), sent, plain


@pytest.mark.slow
def test_the_example_runs(launcher: Launcher) -> None:
    loss, sent, plain = example(launcher, "--steps", "10", ranks=2)
    assert loss < 5
    assert plain > 4 * sent


@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("words", [[], ["--bf16", "param"]])
def test_a_gpt_learns_as_with_bfloat16_from_a_third_of_its_octets(launcher: Launcher, words: Sequence[str]) -> None:
    bf16 = ["--offload", "plain", "--bf16", words[-1] if words else "reduce"]
    runs = [[example(launcher, *some, "--seed", str(seed)) for seed in range(3)] for some in (words, bf16)]
    ours, theirs = ([loss for loss, *_ in some] for some in runs)
    assert abs(statistics.mean(ours) - statistics.mean(theirs)) <= max(theirs) - min(theirs)
    for _, sent, plain in runs[0]:
        assert 3 * sent <= plain / 2
