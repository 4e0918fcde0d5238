"""The program of a training's ranks: what ends it is one line of each rank."""

from pathlib import Path

import pytest

from netoffload.config import ENV_OFFLOAD
from netoffload.errors import RunError, UsageError
from netoffload.lab.testbed import run_local_ranks
from netoffload.lab.testbed.launch import find_mpiexec

pytestmark = [pytest.mark.mpi]


@pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")
def test_an_error_is_a_line_without_a_traceback(tmp_path: Path) -> None:
    said: list[bytes] = []
    argv = ["-m", "netoffload.lab.training.rank", str(tmp_path / "none.json"), str(tmp_path)]
    with pytest.raises(RunError, match=r"failed with exit code 2; rank . said: netoffload: rank .: ") as failed:
        run_local_ranks(2, argv, on_stderr=lambda _rank, lines: said.append(lines))
    text = b"".join(said).decode()
    assert "Traceback" not in text
    assert f"{tmp_path}/none.json" in text
    assert failed.value.exit_code == 2


@pytest.mark.skipif(find_mpiexec() is None, reason="mpich is not installed (scripts/setup installs it)")
def test_a_wrong_wish_in_the_environment_is_refused_before_a_rank_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_OFFLOAD, "nick")
    with pytest.raises(UsageError, match=r"\$NETOFFLOAD_OFFLOAD: offload 'nick' is unknown"):
        run_local_ranks(2, ["-m", "this"])
