"""A NIC that forwards has given up all rights: user, groups and capabilities, in every thread."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import asked


def statuses(pid: int) -> list[dict[str, str]]:
    """What the kernel says about every thread of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread of our own request may end
            lines = (task / "status").read_text().splitlines()
            found.append(dict(line.split(":\t", 1) for line in lines if ":\t" in line))
    return found


def test_a_nic_that_forwards_is_nobody(nic_bed: Testbed) -> None:
    pid = asked(nic_bed, 0, "info")["pid"]
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


NOBODY = ("--reuid=65534", "--regid=65534", "--clear-groups")
NETWORK_ONLY = ("--inh-caps=+net_admin,+net_raw", "--ambient-caps=+net_admin,+net_raw")
NO_RIGHTS = ("--bounding-set=-all", "--inh-caps=-all")
IN_NETNS = " --host-netns WIRE"
SUDO = "start the NIC with sudo"


LACKING = [
    *(
        ((f"--bounding-set=-{name}",), "tap:not1 --wire w0 --wire-netns WIRE", f"CAP_{name.upper()} is missing")
        for name in ("setpcap", "setuid", "setgid")
    ),
    ((*NOBODY, *NETWORK_ONLY), "tap:not1 --wire lo", f"only root can give up its rights: {SUDO}"),
    *((NO_RIGHTS, f"{kind}:not1 --wire lo{more}", SUDO) for kind in ("tap", "veth") for more in ("", IN_NETNS)),
]


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing")
@pytest.mark.parametrize(("rights", "words", "said"), LACKING)
def test_a_start_that_lacks_rights_says_what_to_do(wire: str, rights: Sequence[str], words: str, said: str) -> None:
    nic = [sys.executable, "-m", "netoffload_daemon", "--host", *words.replace("WIRE", wire).split()]
    env = {**os.environ, "HOME": "/"} if NOBODY[0] in rights else None  # nobody may not look into root's
    command = ["setpriv", *rights, *nic]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert said in done.stderr


LINES = (
    *(b"\0", b'\0{"command": "info"}', b"\0\0{", b"\0\0\0{", b"{\0", b"{\0\0\0"),
    *(b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b"\xfe\xff\0{\0}", b"\xff\xfe\0\0{\0\0\0}\0\0\0"),  # marks of UTF
    *(b"\xc3\x28", b""),
)


def test_a_line_that_is_no_request_gets_one_line(nic_bed: Testbed) -> None:
    """The NIC is user nobody here, who may not be able to read all of Python's modules."""
    node = nic_bed.plan.nodes[0]
    assert node.log_path is not None
    logged = node.log_path.read_text()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(node.control_path))
        with sock.makefile("rb") as answers:
            for line in LINES:
                sock.sendall(line + b"\n")
                assert json.loads(answers.readline() or "{}").keys() == {"ok", "error"}, line
                sock.sendall(b'{"command": "info"}\n')
                assert json.loads(answers.readline())["ok"] is True
    assert node.log_path.read_text() == logged
