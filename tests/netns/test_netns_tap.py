"""A TAP that a NIC makes outlives it, with the host's addresses and connections, unless an option says otherwise."""

import contextlib
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from netoffload.devices.netns import in_netns
from netoffload.lab.testbed.links import TestbedNamespace
from netoffload.netlink import netns_path, remove_netns
from tests.shared.beds import link_names, nic_command
from tests.shared.commands import running_nic

HOST, PEER = "10.97.7.1", "10.97.7.2"
NETWORK = "10.97.7.0/24"


class Place:
    """Three namespaces: one for the host, one for the wire ``w0``, one for a peer with the wire's other end."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        run = secrets.token_hex(3)
        self.names = [f"life-{run}-{role}" for role in ("host", "wire", "peer")]
        made = []
        for name in self.names:
            made.append(stack.enter_context(TestbedNamespace.create(name)))
            stack.callback(remove_netns, name)
        self.host, self.wire, self.peer = made
        self.wire.add_veth("w0", "w1", self.names[2], 1500)
        self.wire.set_up("w0")
        self.peer.set_up("w1")
        self.peer.add_address("w1", PEER, NETWORK, "cubic")

    def path(self, index: int) -> str:
        return str(netns_path(self.names[index]))

    def nic(self, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """A NIC that forwards; whoever is still there in the end is killed."""
        words = ["--host", "tap:t0", "--host-netns", self.path(0), "--wire", "w0", "--wire-netns", self.path(1), *more]
        return running_nic(words, command=nic_command(), stderr=subprocess.PIPE)

    def socket_in(self, index: int) -> socket.socket:
        with in_netns(self.path(index)):
            sock = socket.socket()
        sock.settimeout(20)
        return sock


@pytest.fixture
def place() -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        yield Place(stack)


def test_a_connection_outlives_a_kill(place: Place, tmp_path: Path) -> None:
    words = ["--flow-table", str(tmp_path / "flows.bin")]
    with contextlib.ExitStack() as stack:
        with place.nic(*words) as first:
            place.host.set_up("t0")
            place.host.add_address("t0", HOST, NETWORK, "cubic")
            listening = stack.enter_context(place.socket_in(2))
            listening.bind((PEER, 5001))
            listening.listen()
            near = stack.enter_context(place.socket_in(0))
            near.connect((PEER, 5001))
            far = stack.enter_context(listening.accept()[0])
            far.settimeout(20)
            near.sendall(b"before")
            assert far.recv(100) == b"before"
            first.send_signal(signal.SIGKILL)
            said = first.communicate(timeout=10)[1]
        near.sendall(b"between")
        with place.nic(*words) as second:
            assert far.recv(100) == b"between"
            far.sendall(b"after")
            assert near.recv(100) == b"after"
            second.terminate()
            assert second.communicate(timeout=10)[1] == ""  # the TAP was there
    assert said.splitlines() == [
        "netoffload: made the TAP t0; it stays when this NIC ends, and so do the host's connections; "
        f"`nsenter --net={place.path(0)} ip link del t0` removes it (with --ephemeral it ends with the NIC)"
    ]
    shown = subprocess.run(
        ["ip", "-n", place.names[0], "address", "show", "t0"], capture_output=True, text=True, check=True
    ).stdout
    assert "qlen 4096" in shown
    assert f"inet {HOST}/24" in shown
    subprocess.run(said.partition("`")[2].partition("`")[0].split(), check=True)
    assert "t0" not in link_names(place.host)


def test_an_ephemeral_tap_goes_with_its_nic(place: Place) -> None:
    with place.nic("--ephemeral") as nic:
        assert "t0" in link_names(place.host)
        nic.terminate()
        assert nic.communicate(timeout=10)[1] == ""
    assert "t0" not in link_names(place.host)


def test_a_tap_that_was_there_stays_what_it_is(place: Place) -> None:
    place.host.add_tap("t0", 1500, 77)
    with place.nic("--ephemeral") as nic:
        nic.terminate()
        assert nic.communicate(timeout=10)[1] == ""
    shown = subprocess.run(["ip", "-n", place.names[0], "link"], capture_output=True, text=True, check=True).stdout
    assert "qlen 77" in shown
