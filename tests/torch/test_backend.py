"""The backend of ``torch.distributed``, on ranks that are forks of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from netoffload.errors import UsageError
from netoffload.torch import BackendOptions
from netoffload.torch.backend import create
from netoffload.torch.options import BACKEND, ENV_BACKEND

ROOT = Path(__file__).parents[2]
SIZE = 4


def _run(*words: str | Path, extra_path: Path | None = None) -> str:
    path = os.pathsep.join([*([str(extra_path)] if extra_path else []), *sys.path])
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{error}: {bytes(error.stderr or b'').decode()}")
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _all_true(found: Any) -> bool:
    return all(map(_all_true, found)) if isinstance(found, list) else found is True


@pytest.mark.slow
def test_ranks_order_close_disagree_wait_train_and_die_as_torch_expects() -> None:
    said = dict(
        map(json.loads, _run(Path(__file__).with_name("programs") / "backend_ranks.py", str(SIZE)).splitlines())
    )
    assert said.keys() == set(range(SIZE - 1))
    for found in said.values():
        assert {name: what for name, what in found.items() if not _all_true(what)} == {}


@pytest.mark.slow
def test_every_call_agrees_with_gloo_and_a_killed_rank_is_named() -> None:
    words = [
        "-m",
        "netoffload",
        "verify",
        "torch",
        "-n",
        str(SIZE),
        "--quick",
        "--dtype",
        "bfloat16",
        "--dtype",
        "int64",
    ]
    record = json.loads(_run(*words, "--json"))
    assert record["holds"]
    assert {row["dtype"] for row in record["rows"]} == {"bfloat16", "int64"}
    assert len({row["call"] for row in record["rows"]}) > 30
    assert record["lost"] == {
        str(rank): f"rank {SIZE - 1} died: its connections closed without a farewell" for rank in range(SIZE - 1)
    }


@pytest.mark.slow
def test_torch_knows_the_backend_by_its_entry_point_and_loads_nothing_for_it(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = tmp_path / "entry-1.dist-info"
    folder.mkdir()
    points = project["entry-points"]["torch.backends"]
    lines = ["[torch.backends]", *(f"{name} = {where}" for name, where in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 1\n", encoding="utf-8")
    code = (
        "import sys, torch; import torch.distributed as dist;"
        "print(dist.Backend('netoffload'), dist.Backend.backend_capability['netoffload'],"
        "sorted(name for name in sys.modules if name.startswith(('netoffload', 'numba'))))"
    )
    assert _run("-c", code, extra_path=tmp_path) == "netoffload ['cpu'] ['netoffload', 'netoffload.torch_plugin']\n"


@pytest.mark.slow
def test_the_example_runs_under_torchrun() -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "examples" / "backend.py"]
    assert "replicas are equal" in _run(*map(str, words), "--steps", "3")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", None),
        ("bounded:10", BackendOptions("bounded", 10)),
        ("inceptionn:8:1MiB", BackendOptions("inceptionn", 8, min_octets=2**20)),
    ],
)
def test_the_environment_says_what_is_compressed(
    text: str, options: BackendOptions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_BACKEND, text)
    assert BackendOptions.of_environment() == options


@pytest.mark.parametrize("text", ["bounded", "bounded:", "bounded:99", "zip:10", "bounded:10:much"])
def test_what_cannot_be_compressed_by_is_refused_by_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_BACKEND, text)
    with pytest.raises(UsageError):
        BackendOptions.of_environment()


def test_options_that_the_backend_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match="offload"):
        BackendOptions(offload="gpu")
    for options in (BackendOptions(error_feedback=True), BackendOptions(compressor="fp16"), BackendOptions(seed=1)):
        with pytest.raises(UsageError, match=r"the backend has no .*: .* use CompressionState"):
            options.refuse_all_but(BACKEND, "the backend", "it sees no layers or steps; use CompressionState")
    with pytest.raises(UsageError, match="must be BackendOptions, not dict"):
        create(None, {"codec": "packed"})
