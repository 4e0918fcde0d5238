"""A NIC that forwards has given up all rights: user, groups and capabilities, in every thread."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.control import request
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import stream

pytestmark = pytest.mark.netns


def statuses(pid: int) -> list[dict[str, str]]:
    """What the kernel says about every thread of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread of our own request may end
            lines = (task / "status").read_text().splitlines()
            found.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
    return found


def test_a_nic_that_forwards_is_nobody(nic_bed: Testbed) -> None:
    pid = request(str(nic_bed.plan.nodes[0].control_path), "info")["pid"]
    found = statuses(pid)
    assert len(found) >= 3  # main, control, loop
    for status in found:
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65534"}
        assert status["Groups"].strip() == ""
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name], 16) == 0
    mine = [status for status in found if status["Name"] != "" and status["Pid"] == str(pid)]
    assert [(int(status["CapBnd"], 16), status["NoNewPrivs"]) for status in mine] == [(0, "1")]
    assert os.stat(f"/proc/{pid}/fd").st_uid == 0  # not dumpable: its user may not look into it
    assert stream(nic_bed, 400_000).wrong == 0


def test_the_control_socket_is_its_starters(nic_bed: Testbed) -> None:
    found = os.stat(str(nic_bed.plan.nodes[0].control_path))
    assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing")
@pytest.mark.parametrize("missing", ["setpcap", "setuid", "setgid"])
def test_a_capability_that_giving_up_needs_is_named(wire: str, missing: str) -> None:
    words = ["--host", f"tap:not{missing}", "--wire", "w0", "--wire-netns", wire]
    command = ["setpriv", f"--bounding-set=-{missing}", sys.executable, "-m", "netoffload_daemon", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert f"CAP_{missing.upper()} is missing" in done.stderr


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing")
def test_who_is_not_root_is_told_to_be() -> None:
    rights = ["--inh-caps=+net_admin,+net_raw", "--ambient-caps=+net_admin,+net_raw"]
    who = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *rights]
    command = [*who, sys.executable, "-m", "netoffload_daemon", "--host", "tap:notroot", "--wire", "lo"]
    env = {**os.environ, "HOME": "/"}  # root's may not be looked into
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "only root can give up its rights: start the NIC with sudo" in done.stderr


def test_a_start_without_rights_says_what_to_do(nic_bed: Testbed) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv (util-linux) is missing")
    node = nic_bed.plan.nodes[0]
    powerless = [setpriv, "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "netoffload_daemon"]
    for words in (["--host", "tap:not0", "--wire", "lo"], ["--host", "veth:not0", "--wire", "lo"]):
        netns = ["--host-netns", f"/run/netns/{node.netns}"]
        for arguments in (words, words + netns):
            done = subprocess.run([*powerless, *arguments], capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
            assert "start the NIC with sudo" in done.stderr
