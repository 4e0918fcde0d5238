"""A NIC of a testbed without root: the real engine, journal and control commands, but no devices."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from netoffload.control import serve_control
from netoffload.lab.testbed import NicSettings, Plan, TestbedSettings, make_plan
from netoffload.lab.testbed.journal import Journal
from netoffload.lab.testbed.plan import ENV_STATE_DIR
from netoffload.nic_options import NicProcess
from netoffload_daemon.control import make_handlers
from tests.cli.watched_nic import RUN_ID, Cli, port_of, used_nic
from tests.engine.nic_pair import Nic
from tests.shared.commands import netoffload


@pytest.fixture(scope="session")
def nic() -> Nic:
    return used_nic()


@pytest.fixture
def testbed_plan(tmp_path: Path) -> Plan:
    """A run of one node in a state directory of its own, as far as its journal says."""
    plan = make_plan(TestbedSettings(1, nic=NicSettings()), RUN_ID, tmp_path / "state")
    plan.state_dir.parent.mkdir()
    Journal.create(plan).append("ready", rate_bps_measured=None)
    return plan


@pytest.fixture
def served(nic: Nic, testbed_plan: Plan) -> Iterator[Path]:
    """The control socket of that run's NIC."""
    path = testbed_plan.nodes[0].control_path
    assert path is not None
    handlers = make_handlers(NicProcess(host="tap:inc0", wire="wire0"), port_of(nic), -1)
    with serve_control(path, handlers):
        yield path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command line, which sees only this test's testbeds."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return netoffload(*words, env={ENV_STATE_DIR: str(tmp_path / "state")})

    return run
