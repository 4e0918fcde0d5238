"""The systemd units for real hosts: their commands, run in two namespaces that stand for hosts with one card each."""

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from netoffload import control
from netoffload.config import TAP_QUEUE_FRAMES
from netoffload.lab.testbed.plan import NodePlan
from netoffload.netlink import netns_exists, netns_path
from tests.shared.beds import built
from tests.shared.commands import netoffload
from tests.shared.transfers import transfer_words

START_S = 60

FLOATS = np.random.default_rng(1).normal(0, 0.002, 100_000).astype(np.float32).tobytes()
MSS = 1448


def unit(name: str, instance: str) -> dict[str, list[str]]:
    """Print a unit and return its [Service] settings, with the specifier for the instance filled in."""
    printed = netoffload("unit", name).stdout
    settings: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", printed.replace("%i", instance), re.MULTILINE):
        settings.setdefault(key, []).append(value)
    return settings


class Host:
    """A namespace with a card called inc0, as a systemd that starts our units would see it."""

    def __init__(self, node: NodePlan, folder: Path, asked: Mapping[str, str]) -> None:
        self.netns = str(netns_path(node.netns))
        self.name = node.netns
        self.instance = f"t{secrets.token_hex(4)}"
        self.address = node.address
        self.control = folder / "control.sock"
        self._file = {"WIRE": node.device, "ADDRESS": f"{node.address}/24", "RUNTIME_DIRECTORY": str(folder)}
        self._file |= asked

    def argv(self, line: str) -> list[str]:
        return ["nsenter", f"--net={self.netns}", "sh", "-c", f"exec {line.replace('$$', '$')}"]

    def bounded_argv(self, settings: dict[str, list[str]], line: str) -> list[str]:
        """The command with no more rights than the unit leaves it."""
        (names,) = settings["CapabilityBoundingSet"]
        kept = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in names.split())
        enter, netns, *command = self.argv(line)
        return [enter, netns, "setpriv", f"--bounding-set=-all{kept}", "--no-new-privs", *command]

    def env(self, settings: dict[str, list[str]]) -> dict[str, str]:
        defaults = [word.split("=", 1) for line in settings["Environment"] for word in line.split()]
        return {**os.environ, **{name: value for name, value in defaults if name != "XDG_CACHE_HOME"}, **self._file}

    @contextlib.contextmanager
    def links(self) -> Iterator[None]:
        settings = unit("link", self.instance)
        env = self.env(settings)
        try:
            for line in settings["ExecStartPre"] + settings["ExecStart"]:
                subprocess.run(self.argv(line), env=env, check=True)
            yield
        finally:
            for line in settings["ExecStopPost"]:
                here = line.removeprefix("-").replace("netns 1", f"netns {self.name}")
                subprocess.run(self.argv(here), env=env, check=False)

    @contextlib.contextmanager
    def nic(self) -> Iterator[None]:
        settings = unit("nic", self.instance)
        env = self.env(settings)
        for line in settings["ExecStartPre"]:
            subprocess.run(self.bounded_argv(settings, line.removeprefix("-")), env=env, check=True)
        (line,) = settings["ExecStart"]
        line = re.sub(r"(\$\{\w+\})", r'"\1"', line)  # one argument each, also of an empty one, as systemd does
        with subprocess.Popen(self.bounded_argv(settings, line), env=env) as process:
            try:
                env["MAINPID"] = str(process.pid)
                wait, *rest = settings["ExecStartPost"]
                subprocess.run(self.bounded_argv(settings, wait), env=env, check=True, timeout=START_S)
                for line in rest:
                    subprocess.run(self.bounded_argv(settings, line), env=env, check=True)
                yield
            finally:
                process.terminate()
                assert process.wait(10) == 0

    def has_its_card(self) -> bool:
        return subprocess.run(self.argv(f"ip link show dev {self._file['WIRE']}"), capture_output=True).returncode == 0

    def transfer(self, way: str, address: str) -> subprocess.Popen[bytes]:
        words = transfer_words(way, address, [(0x28, len(FLOATS))])
        pipe = subprocess.PIPE
        command = ["nsenter", f"--net={self.netns}", sys.executable, *words]
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def send_tagged(sender: Host, receiver: Host) -> int:
    """Send 400,000 octets over a tagged connection; return how many octets TCP sent again."""
    with receiver.transfer("receive", receiver.address) as server:
        assert server.stderr is not None
        assert server.stderr.readline() == b"listening\n"
        with sender.transfer("send", receiver.address) as client:
            again = client.communicate(FLOATS, timeout=30)[0]
            assert client.returncode == 0
        assert len(server.communicate(timeout=30)[0]) == 400_000
    return int(again)


def test_two_hosts_with_the_units_compress(tmp_path: Path) -> None:
    """What a NIC makes of its file is tested in ``tests/cli``; here it needs the rights that the unit leaves it."""
    key = tmp_path / "inc0.key"
    key.write_text(f"{secrets.token_hex(32)}\n")
    key.chmod(0o600)
    asked = {"KEY": str(key), "CODEC": "packed", "ENCAPSULATION": "ipcomp"}
    traced = {"BYPASS": "user", "TRACE": str(tmp_path / "n0" / "frames.pcapng"), "THREADS": "2", "BUSY_POLL": "20"}
    with built(nic=None) as bed, contextlib.ExitStack() as stack:
        hosts: list[Host] = []
        for node in bed.plan.nodes:
            folder = tmp_path / node.name
            folder.mkdir()
            hosts.append(Host(node, folder, asked | ({"BYPASS": "kernel"} if node.index else traced)))
            stack.enter_context(hosts[-1].links())
            shown = subprocess.run(hosts[-1].argv("ip link show"), capture_output=True, text=True, check=True).stdout
            (tap,) = [line for line in shown.splitlines() if hosts[-1].instance in line]
            assert tap.endswith(f"qlen {TAP_QUEUE_FRAMES}")
        with hosts[1].nic():
            with hosts[0].nic():
                again = send_tagged(hosts[0], hosts[1])
                counters = control.request(hosts[0].control, "counters")["counters"]
                # A last segment of a few floats gains nothing, and crosses plain.
                short = MSS * counters["bypass_no_gain"]
                assert counters["tx_payload_octets"] < counters["tx_raw_octets"] / 5
                assert 400_000 - short <= counters["tx_raw_octets"] <= 400_000 + again
                assert hosts[0].control.stat().st_mode & 0o777 == 0o660
            table = hosts[0].control.with_name("flows.bin")
            written = table.read_bytes()
            table.write_bytes(b"netoffload flow table 0.0.9 4096 20\n")  # the package was updated meanwhile
            with hosts[0].nic():  # started again, with the interfaces that are there
                assert table.read_bytes()[:100] == written[:100]
                assert table.with_name("flows.bin.old").read_bytes().endswith(b"0.0.9 4096 20\n")
                assert hosts[0].control.stat().st_mode & 0o777 == 0o660
                send_tagged(hosts[1], hosts[0])
        assert Path(traced["TRACE"]).stat().st_size > 0
        stack.close()
        for host in hosts:
            assert not netns_exists(f"netoffload-{host.instance}")
            assert host.has_its_card()


def test_a_nic_that_ended_is_not_awaited(tmp_path: Path) -> None:
    wait = unit("nic", "t0")["ExecStartPost"][0]
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    env = {**os.environ, "RUNTIME_DIRECTORY": str(tmp_path), "MAINPID": str(ended.pid)}
    assert subprocess.run(["sh", "-c", f"exec {wait}"], env=env, timeout=10).returncode == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for name in ("nic", "link"):
        printed = netoffload("unit", name).stdout
        (tmp_path / f"netoffload-{name}@inc0.service").write_text(printed)
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "netoffload-nic@inc0.service")], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    for name in ("nic", "link"):
        path = tmp_path / f"netoffload-{name}@inc0.service"
        judge = ["systemd-analyze", "security", "--offline=yes", "--threshold=40", "--no-pager", str(path)]
        judged = subprocess.run(judge, capture_output=True, text=True)
        assert judged.returncode == 0, judged.stdout.splitlines()[-1:]
