"""Fixtures of tests on real namespaces: the skip, a state directory, and a small testbed with NICs."""

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netoffload.errors import SystemRefusedError
from netoffload.lab.testbed import Testbed, state_root
from netoffload.lab.testbed.build import check_root, check_tun
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from netoffload.lab.testbed.processes import marked
from netoffload.netlink import NETNS_DIR, Namespace
from tests.shared.beds import built
from tests.shared.forked_ranks import forks_of

ROOT = Path(__file__).parents[2]


def why_not() -> str | None:
    """Why no namespaces can be made here, in the words a user would see."""
    try:
        check_root()
        check_tun()
        Namespace.anonymous().close()
    except SystemRefusedError as error:
        return str(error)
    return None


@pytest.fixture(scope="session", autouse=True)
def _netns_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of these tests are listed apart, so that no test sees (or ends) a testbed of somebody else."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_STATE_DIR, str(tmp_path_factory.mktemp("state")))
        with forks_of():
            yield


@pytest.fixture
def run_id() -> str:
    """A run id that nobody else uses."""
    return f"t{secrets.token_hex(3)}"


@pytest.fixture
def left_of() -> Callable[[str], list[str]]:
    """A function from a run id to everything of that run that still exists."""

    def left(run_id: str) -> list[str]:
        names = (
            [name for name in os.listdir(NETNS_DIR) if name.startswith(f"no-{run_id}-")] if NETNS_DIR.exists() else []
        )
        processes = [f"pid {process.pid}" for process in marked(f"NETOFFLOAD_RUN={run_id}")]
        files = [str(path) for path in state_root().glob(f"*{run_id}*")] if state_root().exists() else []
        return [*names, *processes, *files]

    return left


@pytest.fixture
def _host_unchanged() -> Iterator[None]:
    """Links and qdiscs outside of all namespaces are the same afterwards."""

    def seen() -> list[str]:
        commands = (["ip", "-o", "link", "show"], ["tc", "qdisc", "show"])
        return [subprocess.run(command, capture_output=True, check=True, text=True).stdout for command in commands]

    before = seen()
    yield
    assert seen() == before


@pytest.fixture(scope="session")
def plain_bed(_netns_session: None) -> Iterator[Testbed]:
    """Four nodes without NICs, unshaped, for tests that need namespaces and nothing else."""
    with built(4, nic=None) as bed:
        yield bed


@pytest.fixture(scope="session")
def nic_bed(_netns_session: None) -> Iterator[Testbed]:
    """Four nodes with NICs (inceptionn, k = 10, coalesced), unshaped, for every test that needs NICs."""
    with built(4) as bed:
        yield bed
