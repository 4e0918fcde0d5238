"""The backend of ``torch.distributed``, on ranks that are forks of one process; and torch's own tests over it."""

import json
import os
import re
import sys
import threading
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError
from torch.futures import Future

from netoffload.errors import MalformedError, UsageError
from netoffload.torch import BackendOptions
from netoffload.torch.backend_group import create
from netoffload.torch.backend_work import CallWork
from netoffload.torch.options import BACKEND, ENV_BACKEND, compare
from netoffload.transport import Request
from tests.shared.commands import python
from tests.torch.launcher import Launcher

ROOT = Path(__file__).parents[2]
SIZE = 4


def _all_true(found: Any) -> bool:
    return all(map(_all_true, found)) if isinstance(found, list) else found is True


@pytest.mark.slow
def test_what_libraries_do_with_a_group_works(launcher: Launcher, tmp_path: Path) -> None:
    said = launcher.by_rank("programs.backend_doors", 2, tmp_path / "checkpoint")
    assert said.keys() == {0, 1}
    for found in said.values():
        assert {name: what for name, what in found.items() if not _all_true(what)} == {}


@pytest.mark.slow
def test_calls_that_differ_are_an_error_on_all_ranks_that_names_both_calls(launcher: Launcher) -> None:
    """Some 230 of 944 pairs; ``backend_differences 0 1`` tries all."""
    said = launcher.by_rank("programs.backend_differences", 0, 8)
    assert said.keys() == {0, 1, 2}
    assert len(said[0]) > 200
    named = re.compile(
        r"(ranks|counts) disagree.*: rank \d (calls|sends) .*rank \d,? (calls|which expects|receives)"
        r"|message truncated: rank 0 sent float32.10. with tag 5 to a buffer of 9 floats"
    )
    for found in said.values():
        assert [one for one in found if not named.search(one[2])] == []
    by_pair = {(one, other): text for one, other, text in said[1]}
    assert re.search(
        r"rank \d calls scatter of float32 from root [01], rank \d calls scatter of float32 from root [01];",
        by_pair["scatter", "scatter from 1"],
    )
    sent = "rank 0 sends int8[5] with tag 5, rank 1 receives int8[6]"
    assert sent in by_pair["message", "torch.int8[5] as torch.int8[6]"]


@pytest.mark.slow
@pytest.mark.parametrize("refusing", [0, 2])
def test_all_ranks_hear_why_one_cannot_set_up_though_the_store_may_end_with_it(
    launcher: Launcher, refusing: int
) -> None:
    said = launcher.by_rank("programs.backend_refused", refusing, 3)
    reason = "a chunk of 1 octets is less than one float32: give at least 4"
    assert said.pop(refusing) == reason
    assert len(said) == 2
    assert all(text.endswith(reason) and f"rank {refusing}" in text for text in said.values())


@pytest.mark.slow
def test_ranks_order_close_disagree_wait_train_and_die_as_torch_expects(launcher: Launcher) -> None:
    said = launcher.by_rank("programs.backend_ranks", SIZE)
    assert said.keys() == set(range(SIZE - 1))
    for found in said.values():
        assert {name: what for name, what in found.items() if not _all_true(what)} == {}


@pytest.mark.slow
def test_every_call_agrees_with_gloo_and_a_killed_rank_is_named(launcher: Launcher) -> None:
    done = launcher.run("beside_gloo", "-n", SIZE, "--quick", "--dtype", "bfloat16", "--dtype", "int64")
    record = json.loads(done.stdout)
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
    done = python("-c", code, env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    assert done.stdout == "netoffload ['cpu'] ['netoffload', 'netoffload.torch_plugin']\n", done.stderr


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


@pytest.mark.parametrize("words", ["nonsense", None, [1], 3.5])
def test_a_rank_that_sends_no_options_is_named(words: Any) -> None:
    given: list[Any] = []

    def gather(value: Any) -> list[Any]:
        given.append(value)
        return [value, words]

    with pytest.raises(MalformedError, match=r"rank 1 sent .* where options belong"):
        compare(gather, {"scale": "auto"})
    assert given == [{"scale": "auto"}, None]  # rank 0, which may have the store, stays until all have read


def _waited(work: CallWork, done: Future[Any]) -> Any:
    return work.wait(), done.value()


def test_a_future_is_done_when_a_wait_is_over_and_its_callbacks_may_wait() -> None:
    for number in range(200):
        request, tensors = Request(), [torch.tensor([number])]
        work = CallWork(request, tensors, [0])
        future = work.get_future()
        again = future.then(partial(_waited, work))
        ending = threading.Thread(target=request.complete)
        ending.start()
        assert work.wait()
        assert future.done()
        assert again.wait() == (True, tensors)
        ending.join()
    request = Request()
    work = CallWork(request, [], [0])
    future = work.get_future()
    request.fail(MalformedError("no"))
    with pytest.raises(DistBackendError, match="no"):
        work.wait()
    with pytest.raises(RuntimeError, match="no"):
        future.wait()


def test_options_that_the_backend_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match="min_octets is -1"):
        BackendOptions(min_octets=-1)
    with pytest.raises(UsageError, match="offload"):
        BackendOptions(offload="gpu")
    for options in (BackendOptions(error_feedback=True), BackendOptions(compressor="fp16"), BackendOptions(seed=1)):
        with pytest.raises(UsageError, match=r"the backend has no .*: .* use CompressionState"):
            options.refuse_all_but(BACKEND, "the backend", "it sees no layers or steps; use CompressionState")
    with pytest.raises(UsageError, match="must be BackendOptions, not dict"):
        create(None, {"codec": "packed"})


@pytest.mark.slow
def test_one_round_over_the_ranks_of_torchrun_is_compared_with_gloo(launcher: Launcher) -> None:
    done = launcher.torchrun(["--standalone"], "programs.verify_round")
    assert done.returncode == 0, done.stderr[-4000:]
    record = json.loads(done.stdout)
    assert (record["ranks"], record["numbers"]) == (2, 1000)
    assert len(record["wrong"]) == 14
    assert not any(record["wrong"].values())
    done = launcher.torchrun(["--standalone"], "programs.verify_round", "broken")
    assert done.returncode == 1
    wrong = {name: texts for name, texts in json.loads(done.stdout)["wrong"].items() if texts}
    said = ["rank 1: 1 of 1000 values differ"]
    assert wrong == dict.fromkeys(("all_reduce of float32", "all_reduce of int64"), said)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("ranks", "is_quick", "passed_min"),
    [(3, True, 50), *(pytest.param(ranks, False, 115, marks=pytest.mark.night) for ranks in (3, 4, 8))],
)
def test_torchs_own_tests_pass(launcher: Launcher, ranks: int, is_quick: bool, passed_min: int) -> None:
    words = ["--quick"] if is_quick else []
    done = launcher.run("torch_suite", "--json", "--ranks", ranks, *words, timeout_s=3500)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["unexpected"], found["mended"]) == ([], [])
    assert len(found["passed"]) >= passed_min
