"""The events of a soak: what it does to a testbed of two nodes while its flows run, one event per round.

The seed decides the events. An event that breaks the path repairs it before it returns. Losses, MTUs and the window
scaling of new connections stay until another event changes them, so that several disturbances act together.
"""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from netoffload.control import request
from netoffload.errors import ControlError, SystemRefusedError
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.journal import read_run
from netoffload.lab.testbed.plan import NodePlan
from netoffload.lab.testbed.processes import ProcessId
from netoffload.netlink import Namespace
from tests.soak.damage import SBIN, Damage, DamagedSwitch
from tests.soak.flows import ipv6_address

MTUS: Final = (1280, 1400, 1492, 1500, 1500, 3000, 9000)
"""MTUs for all links together. Below 1280 octets the kernel removes a link's IPv6 addresses."""
ROUTE_MTUS: Final = (576, 1000, 1450, 1280)
OUTAGE_S: Final = (1.0, 3.0)
STOPPED_S: Final = (0.5, 5.0)
DAMAGES: Final = (
    Damage(),
    Damage(loss=0.003),
    Damage(loss=0.01),
    Damage(loss=0.03, duplication=0.01, reordering=0.02),
    Damage(duplication=0.05),
    Damage(reordering=0.05),
    Damage(loss=0.01, duplication=0.02, reordering=0.08),
)
GONE_S: Final = 10.0

Attend = Callable[[float], None]
"""Waits a number of seconds, and reads the flows' endpoints meanwhile."""


class Events:
    """The events that are possible on this machine; ``missing`` has a line for each kind that is not."""

    def __init__(self, bed: Testbed, switch: DamagedSwitch | None, draw: random.Random, attend: Attend) -> None:
        """Take a testbed of two nodes, and its switch if this machine damages frames; ``attend`` stands for sleep."""
        self.bed, self._switch, self._draw, self._attend = bed, switch, draw, attend
        self.missing: list[str] = []
        self._killed = Counter[str]()
        self._events: dict[str, tuple[int, Callable[[], str]]] = {
            "mtu of links": (2, self._link_mtu),
            "mtu of routes": (2, self._route_mtu),
            "link flap": (3, self._flap),
            "nic killed": (3, self._kill),
            "nic stopped": (2, self._stop),
            "window scaling": (1, self._window_scaling),
        }
        if switch is not None:
            self._events["damage"] = (5, self._damage)
        else:
            self.missing.append("nft is missing: no frame is lost, doubled or overtaken at the switch")
        if ethtool_path() is not None:
            self._events["segmentation"] = (1, self._segmentation)
        else:
            self.missing.append("ethtool is missing: segmentation offload of the wires stays on")

    def next(self) -> tuple[str, str]:
        """Let the next event happen; return its kind and its details."""
        kinds = list(self._events)
        kind = self._draw.choices(kinds, [self._events[name][0] for name in kinds])[0]
        return kind, self._events[kind][1]()

    def counters(self) -> dict[str, int]:
        """Return the counters of both NICs, added up, with those of the processes that were killed before."""
        total = self._killed.copy()
        for node in self.bed.plan.nodes:
            total.update(_counters(node))
        return dict(total)

    def _node(self) -> NodePlan:
        return self._draw.choice(self.bed.plan.nodes)

    def _damage(self) -> str:
        assert self._switch is not None
        damage = self._draw.choice(DAMAGES)
        self._switch.set_damage(damage)
        self._attend(self._draw.uniform(1, 4))
        return f"loss {damage.loss:g}, duplication {damage.duplication:g}, reordering {damage.reordering:g}"

    def _link_mtu(self) -> str:
        mtu = str(self._draw.choice(MTUS))
        plan = self.bed.plan
        links = [(plan.switch_netns, plan.bridge)]
        for node in plan.nodes:
            links += [(plan.switch_netns, node.port), (node.wire_netns, node.wire_device), (node.netns, node.device)]
        self._draw.shuffle(links)
        for netns, device in links:
            ip("-n", netns, "link", "set", device, "mtu", mtu)
        return mtu

    def _route_mtu(self) -> str:
        node, mtu = self._node(), self._draw.choice(ROUTE_MTUS)
        # A link may shrink later, and untagged flows never cross a link with less than a locked MTU.
        may_lock = self._draw.random() < 0.5 and mtu <= min(MTUS)
        locked = ["mtu", *(["lock"] if may_lock else []), str(mtu)]
        networks = {"-4": self.bed.plan.network}
        if mtu >= 1280:
            networks["-6"] = "fd98::/64"
        for family, network in networks.items():
            shown = ip("-n", node.netns, family, "route", "show", network)
            if shown.strip():
                metrics = locked if self._draw.random() < 0.7 else []
                ip("-n", node.netns, family, "route", "change", *_without_mtu(shown), *metrics)
        return f"{node.name} {' '.join(locked)}"

    def _flap(self) -> str:
        node, down_s = self._node(), self._draw.uniform(*OUTAGE_S)
        with link_down(self.bed, node):
            self._attend(down_s)
        return f"{node.port} down for {down_s:.1f} s"

    def _kill(self) -> str:
        both = self._draw.random() < 0.25
        nodes = list(self.bed.plan.nodes) if both else [self._node()]
        away_s = self._draw.choice((0.0, 0.0, self._draw.uniform(*OUTAGE_S)))
        for node in nodes:
            self._killed.update(_counters(node))
            kill_nic(self.bed, node)
        self._attend(away_s)
        for node in nodes:
            self.bed.restart_nic(node.index)  # with the flow table of the old one
        return f"{' and '.join(node.name for node in nodes)}, away for {away_s:.1f} s and a start"

    def _stop(self) -> str:
        node, stopped_s = self._node(), self._draw.uniform(*STOPPED_S)
        with nic_stopped(self.bed, node):
            self._attend(stopped_s)
        return f"{node.name} for {stopped_s:.1f} s"

    def _window_scaling(self) -> str:
        node, value = self._node(), self._draw.choice("01")
        set_window_scaling(node, value == "1")
        return f"{node.name} {value}"

    def _segmentation(self) -> str:
        node, word = self._node(), self._draw.choice(("on", "off"))
        set_segmentation(node, word == "on")
        return f"{node.name} {word}"


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise SystemRefusedError(f"ip {' '.join(words)}: {why}")
    return done.stdout


def add_ipv6(bed: Testbed) -> bool:
    """Give every node an IPv6 address; return False where this kernel has no IPv6."""
    for node in bed.plan.nodes:
        try:
            with Namespace.open(node.netns) as namespace:
                namespace.set_sysctl(f"net.ipv6.conf.{node.device}.disable_ipv6", "0")
            ip("-n", node.netns, "addr", "add", f"{ipv6_address(node.index)}/64", "dev", node.device, "nodad")
        except SystemRefusedError:
            return False
    return True


def ethtool_path() -> str | None:
    return shutil.which("ethtool") or shutil.which("ethtool", path=SBIN)


def set_window_scaling(node: NodePlan, on: bool) -> None:
    """Let a node's new connections offer window scaling (RFC 7323), or not."""
    with Namespace.open(node.netns) as namespace:
        namespace.set_sysctl("net.ipv4.tcp_window_scaling", str(int(on)))


def set_segmentation(node: NodePlan, on: bool) -> None:
    """Switch a wire's segmentation offload on or off: off, it takes only single frames."""
    program = ethtool_path()
    if program is None:
        raise SystemRefusedError("the program ethtool is missing: install the package ethtool")
    word = "on" if on else "off"
    features = [part for name in ("gso", "tso", "tx-udp-segmentation") for part in (name, word)]
    command = ["ip", "netns", "exec", node.wire_netns, program, "-K", node.wire_device, *features]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemRefusedError(f"ethtool refused: {done.stderr.strip()}")


@contextlib.contextmanager
def link_down(bed: Testbed, node: NodePlan) -> Iterator[None]:
    ip("-n", bed.plan.switch_netns, "link", "set", node.port, "down")
    try:
        yield
    finally:
        ip("-n", bed.plan.switch_netns, "link", "set", node.port, "up")


def nic_process(bed: Testbed, node: NodePlan) -> ProcessId:
    """Return the NIC process that the run's journal names last for a node."""
    record = read_run(bed.plan.state_dir)
    found = [process for name, process in record.processes if name == f"nic {node.name}"] if record else []
    if not found:
        raise SystemRefusedError(f"run {bed.plan.run_id} has no NIC on {node.name}")
    return found[-1]


def kill_nic(bed: Testbed, node: NodePlan) -> None:
    """End a node's NIC by SIGKILL and return when it is gone."""
    pidfd = os.pidfd_open(nic_process(bed, node).pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not select.select([pidfd], [], [], GONE_S)[0]:
            raise SystemRefusedError(f"the NIC of {node.name} is still there {GONE_S:g} s after SIGKILL")
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def nic_stopped(bed: Testbed, node: NodePlan) -> Iterator[None]:
    pidfd = os.pidfd_open(nic_process(bed, node).pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        try:
            yield
        finally:
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    finally:
        os.close(pidfd)


def _counters(node: NodePlan) -> dict[str, int]:
    assert node.control_path is not None
    try:
        counted: dict[str, int] = request(node.control_path, "counters")["counters"]
    except ControlError:
        return {}
    return counted


def _without_mtu(route: str) -> list[str]:
    """Return the words of a route as ip(8) shows it."""
    return re.sub(r"\bmtu (lock )?\d+", "", route).split()
