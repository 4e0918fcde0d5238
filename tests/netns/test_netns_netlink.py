"""The package's netlink calls on real kernel objects."""

import errno
import os
import secrets
import select
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netoffload.devices.netns import netns_cookie
from netoffload.devices.packet import open_packet
from netoffload.errors import NetlinkRefusedError
from netoffload.lab.testbed.links import TestbedNamespace
from netoffload.netlink import Namespace, netns_exists, netns_path, redirect, remove_netns
from netoffload.netlink.redirect import has_clsact
from tests.shared.beds import link_names
from tests.shared.formats import Vnet, emit_vnet, parse_vnet


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"no-t{secrets.token_hex(3)}-x"
    yield chosen
    remove_netns(chosen)


def netns_inode(name: str) -> int:
    """Return the inode that identifies a namespace (``/proc/PID/ns/net`` of its processes has the same one)."""
    return netns_path(name).stat().st_ino


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_create_open_remove(name: str) -> None:
    own = os.stat("/proc/self/ns/net").st_ino
    with Namespace.create(name) as made:
        assert netns_exists(name)
        assert link_names(made) == ["lo"]
        inside = made.call(lambda: os.stat("/proc/thread-self/ns/net").st_ino)
        assert inside == netns_inode(name) != own
    with Namespace.open(name) as opened:
        assert opened.call(lambda: os.stat("/proc/thread-self/ns/net").st_ino) == netns_inode(name)
    assert os.stat("/proc/thread-self/ns/net").st_ino == own
    assert remove_netns(name)
    assert not remove_netns(name)
    assert not netns_exists(name)


def test_a_namespace_with_the_inode_of_a_deleted_one_has_a_cookie_of_its_own(name: str) -> None:
    inodes, cookies = [0], [netns_cookie(None)]
    while len(inodes) < 300 and inodes[-1] not in inodes[:-1]:
        with Namespace.create(name) as made:
            inodes.append(netns_inode(name))
            cookies.append(netns_cookie(str(netns_path(name))))
            assert made.call(lambda: netns_cookie(None)) == cookies[-1]
        remove_netns(name)
    assert len(set(cookies)) == len(cookies)


def test_what_another_process_removes_at_the_same_time_is_no_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netoffload.netlink.netns_exists", lambda _name: True)
    assert not remove_netns(name)


def test_nothing_stays_open(name: str) -> None:
    Namespace.anonymous().close()  # whatever libraries open once
    before = descriptors(), threading.active_count()
    for _ in range(3):
        with TestbedNamespace.create(name) as namespace:
            namespace.add_veth("v0", "v1", None, 1500)
            namespace.add_tap("t0", 1500, 100)
        remove_netns(name)
    with pytest.raises(NetlinkRefusedError):
        Namespace.open(name)
    assert (descriptors(), threading.active_count()) == before


def test_a_taken_name_is_refused_and_kept(name: str) -> None:
    with Namespace.create(name):
        inode = netns_inode(name)
        with pytest.raises(NetlinkRefusedError, match="exists already"):
            Namespace.create(name)
        assert netns_inode(name) == inode


def test_refusals_are_one_line_of_ours() -> None:
    with TestbedNamespace.anonymous() as namespace:
        namespace.add_bridge("br0", 1500)
        with pytest.raises(NetlinkRefusedError, match=r"br0.*exists already"):
            namespace.add_bridge("br0", 1500)
        with pytest.raises(NetlinkRefusedError, match=r"x9.*no such device"):
            namespace.set_up("x9")
        with pytest.raises(NetlinkRefusedError, match="set net"):
            namespace.set_sysctl("net.ipv4.no_such_key", "1")
        with pytest.raises(NetlinkRefusedError, match="no-such-netns"):
            namespace.add_veth("v0", "v1", "no-such-netns", 1500)


def test_what_a_tap_must_be(name: str) -> None:
    with TestbedNamespace.create(name) as namespace:
        namespace.add_tap("inc0", 9000, 4096)
        shown = subprocess.run(
            ["ip", "-n", name, "-d", "link", "show", "inc0"], capture_output=True, check=True, text=True
        ).stdout
    for wanted in ("mtu 9000", "qlen 4096", "tun type tap pi off vnet_hdr on persist on"):
        assert wanted in shown


def test_a_namespace_is_silent_and_its_sysctls_are_its_own() -> None:
    key = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    before = key.read_text()
    with Namespace.anonymous() as namespace:
        namespace.set_sysctl("net.ipv4.tcp_slow_start_after_idle", "0")
        assert namespace.call(key.read_text).strip() == "0"
        assert namespace.call(Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").read_text).strip() == "1"
    assert key.read_text() == before


def test_qdiscs_count_what_leaves_and_what_arrives() -> None:
    with TestbedNamespace.anonymous() as namespace, ExitStack() as stack:
        namespace.add_veth("v0", "v1", None, 1500)
        namespace.add_tbf("v0", 10**9, 131072, 4194304)
        namespace.add_pfifo("v1")
        namespace.add_ingress_counter("v1")
        for link in ("v1", "v0"):  # the sender last: a link with a carrier takes frames as soon as it is up
            namespace.set_up(link)
        namespace.add_address("v0", "10.98.1.1", "10.98.1.0/24", "cubic")
        before, arrived = namespace.qdisc_counters(), namespace.qdisc_counters(("ingress",))
        assert set(before) == {"v0", "v1"}
        assert set(arrived) == {"v1"}

        import socket

        udp = namespace.call(lambda: stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for _ in range(5):
            udp.sendto(bytes(100), ("10.98.1.255", 9))
        after, arrived_after = namespace.qdisc_counters(), namespace.qdisc_counters(("ingress",))
        assert after["v0"].frames - before["v0"].frames == 5
        assert after["v0"].octets - before["v0"].octets == 5 * (100 + 8 + 20 + 14)
        assert arrived_after["v1"].frames - arrived["v1"].frames == 5
        assert after["v1"] == before["v1"]


def test_a_redirect_moves_frames_and_leaves_the_filters_of_others_alone() -> None:
    with Namespace.anonymous() as namespace:
        for pair in (("a0", "a1"), ("b0", "b1")):
            namespace.add_veth(*pair, None, 1500)
            for name in reversed(pair):  # the sender last: a link with a carrier takes frames as soon as it is up
                redirect.set_silent(namespace, name)
        way = redirect.Redirect("a1", "ingress", "b0", "egress")
        redirect.add_redirect(namespace, way, redirect.EVERYTHING)
        frame = b"\xff" * 6 + b"\x02\x00\x00\x00\x00\x01\x88\xb5" + bytes(86)
        sender = namespace.call(lambda: open_packet("a0")[0])
        receiver = namespace.call(lambda: open_packet("b1")[0])
        with sender, receiver:
            sender.send(emit_vnet(Vnet(), frame))
            assert select.select([receiver], [], [], 10)[0]
            assert parse_vnet(receiver.recv(2000))[1] == frame
        assert redirect.redirected(namespace, way) == redirect.Redirected(frames=1, octets=86)
        other = {"parent": 0xFFFF_FFF2, "prio": 1, "protocol": 3, "target": "1:1", "keys": ["0x0/0x0+0"]}
        index = redirect.index_and_address(namespace, "a1")[0]
        namespace.request("add a filter", lambda links: links.tc("add-filter", "u32", index, **other))
        for link in ("a1", "a1", "b0", "c0"):  # twice, without any, or no link: no harm is done
            redirect.remove_redirects(namespace, link)
        assert namespace.call(lambda: has_clsact("a1"))  # the other's filter hangs there
        assert not namespace.call(lambda: has_clsact("b0"))
        with pytest.raises(NetlinkRefusedError, match="it does not exist"):
            redirect.redirected(namespace, way)


def test_a_kernel_without_qdiscs_has_no_clsact(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NetlinkError(errno.EOPNOTSUPP)

    monkeypatch.setattr(IPRoute, "get_qdiscs", refuse, raising=False)
    assert not has_clsact("lo")
    with pytest.raises(NetlinkRefusedError, match="no such device"):
        has_clsact("nowhere")
