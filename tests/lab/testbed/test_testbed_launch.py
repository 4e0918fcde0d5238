"""What becomes of ranks whose launcher does not do its part."""

import pytest

from netoffload.errors import RunError
from netoffload.lab.testbed import launch
from tests.shared import local_ranks


def test_a_launcher_that_misses_the_end_of_a_rank_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(_mpi: str, ranks: list[list[str]]) -> launch.Launch:
        return launch.Launch(["sh", "-c", '"$@"; sleep 60', "sh", *ranks[0]], {}, {})

    monkeypatch.setattr(local_ranks, "make_local_launch", blind)
    monkeypatch.setattr(launch, "FAILED_S", 0.1)
    with pytest.raises(RunError, match=r"rank 0 was killed by signal 9") as caught:
        local_ranks.run_local_ranks(1, ["sh", "-c", "kill -9 $$"], timeout_s=30)
    assert caught.value.exit_code == 128 + 9
