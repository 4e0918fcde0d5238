"""The packages for torch on real ranks: replicas agree and resumed runs go on to the bit; errors name the lost rank."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netoffload.errors import UsageError
from netoffload.torch import CompressionState, Options
from netoffload.transport.launchers import set_rank_environment

RANKS = Path(__file__).with_name("programs") / "doors_ranks.py"
EXAMPLES = Path(__file__).parents[2] / "examples"


def found_by(*scenarios: str) -> dict[str, dict[int, Any]]:
    """By scenario and rank, what was found."""
    words = [sys.executable, str(RANKS), *scenarios]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[int, Any]] = {scenario: {} for scenario in scenarios}
    for line in map(json.loads, done.stdout.splitlines()):
        found[line["scenario"]][line["rank"]] = line["found"]
    return found


@pytest.mark.slow
def test_replicas_agree_and_a_resumed_run_goes_on_bit_for_bit() -> None:
    found = found_by("doors", "pickled")
    assert all(whole == rest and same for whole, rest, same in found["pickled"].values())
    by_rank = found["doors"]
    assert by_rank.keys() == {0, 1, 2}
    by_door = list(zip(*(by_rank[rank] for rank in range(3)), strict=True))
    assert len(by_door) == 10
    for ranks in by_door:
        assert len({digest for whole, rest, *_ in ranks for digest in (whole, rest)}) == 1
    assert len({ranks[0][0] for ranks in by_door}) == 10  # none of them is another one's
    scales = [ranks[0][3] for ranks in by_door]
    assert scales[0] > 1  # a power of two per bucket
    assert by_door[0][0][2] > 2  # octets that were not sent
    assert by_door[3][0][2] > 3
    assert by_door[8][0][2] > 10


@pytest.mark.slow
def test_ranks_that_die_or_refuse_are_errors_that_say_so_and_halves_are_summed_in_float32() -> None:
    found = found_by("half", "death", "refusal")
    assert list(found["half"].values()) == [["torch.bfloat16", [86.0]]] * 3
    assert found["death"].keys() == {0, 2}
    assert all("PeerLostError: rank 1 died" in error for error in found["death"].values())
    assert "the gradient is not finite" in found["refusal"][1]
    assert all("rank 1 refuses" in found["refusal"][rank] for rank in (0, 2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compressor": "wa"}, "wa moves weights, not gradients: use netoffload.torch.Periodic"),
        ({"compressor": "psgd:p=4"}, "psgd moves weights"),
        ({"compressor": "pqasgd"}, "pqasgd moves weights"),
        ({"compressor": "terngrad:via=server"}, "needs a server"),
        ({"compressor": "qsgd", "bound": 8}, "not both"),
        ({"codec": "zip"}, "zip"),
        ({"offload": "gpu"}, "gpu"),
        ({"scale": 100.0}, "not a power of two"),
        ({"start_step": 0}, "first step"),
        ({"exact_names": "norm"}, "write"),
        ({"exact_last": True}, "named_parameters"),
    ],
)
def test_options_that_cannot_be_are_refused_before_a_rank_waits(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        CompressionState(**options)


def test_a_server_is_replaced_by_a_gather_where_there_is_none() -> None:
    assert Options(compressor="terngrad").spec().name == "terngrad:via=gather"
    assert Options(compressor="terngrad:packing=bits").spec().name == "terngrad:packing=bits,via=gather"


@pytest.mark.parametrize(
    "said",
    [
        {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_ranks_of_every_launcher_get_the_environment_of_torch(said: dict[str, str]) -> None:
    environment = {**said, "MASTER_ADDR": "10.0.0.1"}
    set_rank_environment(environment)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [environment[name] for name in names] == ["2", "4", "0", "10.0.0.1", "29500"]


@pytest.mark.slow
def test_the_examples_run_under_torchrun_without_rights() -> None:
    lines = [
        f"{EXAMPLES}/ddp.py --steps 50 --offload inline",
        f"{EXAMPLES}/optimizer.py --steps 50 --compressor 8bit-dynamic",
        f"{EXAMPLES}/periodic.py --steps 50 --method pqasgd --outer",
    ]
    # What root may do beside reading its own files is taken away, where there is something to take.
    rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*rights, *torchrun, str(RANKS.with_name("all_examples.py")), *lines],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ratios = [float(found) for found in re.findall(r"accuracy .* ratio ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(ratios) == len(lines)
    assert min(ratios) > 2
