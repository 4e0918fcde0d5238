"""Jobs that ``torchrun`` starts again over the same store, after a rank was killed, raised, or stopped."""

import json
import socket
from pathlib import Path

import pytest

from tests.torch.launcher import Launcher


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def rendezvous_of(kind: str) -> list[str]:
    if kind == "c10d":
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "job"]
    if kind == "static":
        return ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return ["--standalone"]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("door", "fault", "rendezvous"),
    [
        ("hook", "kill", "standalone"),
        ("optimizer", "exception", "c10d"),
        ("netoffload", "kill", "static"),
        ("periodic", "stop", "standalone"),  # torchrun waits half a minute before it kills a stopped rank
    ],
)
def test_the_next_attempt_finishes_through_every_door(
    launcher: Launcher, door: str, fault: str, rendezvous: str, tmp_path: Path
) -> None:
    options = [*rendezvous_of(rendezvous), "--max-restarts", "2", "--monitor-interval", "0.2"]
    done = launcher.torchrun(options, "programs.restarted_ranks", door, fault, tmp_path, timeout_s=180)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert found[0]["attempt"] == 1  # the first one after the fault
