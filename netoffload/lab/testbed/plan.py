"""A testbed as data: every name, address, path and number, before anything is made in the kernel.

Nothing here does I/O. The same settings and run id give the same plan, so the journal needs only these two to name
everything that was made. The picture is in the package's docstring.
"""

import os
import re
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from netoffload.config import format_rate
from netoffload.errors import UsageError
from netoffload.lab.testbed.links import TBF_RATE_BPS_MAX
from netoffload.lab.units import parse_rate_bps
from netoffload.netlink import netns_path
from netoffload.nic_options import NicProcess, NicSettings

STATE_DIR_DEFAULT: Final = Path("/run/netoffload")
ENV_STATE_DIR: Final = "NETOFFLOAD_STATE_DIR"

NODES_MAX: Final = 65
"""64 workers and a server."""
MTU_MIN: Final = 576
"""Smallest MTU: every IPv4 host takes datagrams of this length (RFC 791)."""
MTU_MAX: Final = 9000
RATE_BPS_MIN: Final = 1_000_000

NETWORK: Final = "10.98.1.0/24"
"""The data network. Runs do not see each other, so all of them use the same one."""

NODE_DEVICE: Final = "inc0"
WIRE_DEVICE: Final = "wire0"
HOST_DEVICE: Final = "host0"
"""The NIC's end of a veth pair whose other end is the node's device."""
BRIDGE: Final = "br0"

GSO_FRAME_OCTETS_MAX: Final = 64 * 1024
BURST_OCTETS_MIN: Final = 2 * GSO_FRAME_OCTETS_MAX
"""tbf cuts a GSO frame larger than its burst into segments in software, which costs most of a core at 1 Gb/s; such a
frame is up to 64 KiB and must not drain the bucket by itself. Larger is worse: an idle link passes it all at once."""
BURST_S: Final = 1e-3
"""Time by which a timer tick may be late on a busy machine; the bucket must not overflow meanwhile."""
QUEUE_S: Final = 50e-3
"""Depth of a queue at the link's rate; 5 to 400 ms gave the same throughput, below 2 ms cubic lost some."""
NODE_LIMIT_OCTETS_MIN: Final = 4 * 1024 * 1024
"""A node's own queue must not drop what the NIC hands it: the NIC's packet socket (a few MiB of send buffer) fills
first and holds the NIC back."""
PORT_LIMIT_OCTETS_MIN: Final = 1024 * 1024
"""A switch port queues what several nodes send at once (incast): at least sixteen GSO frames."""

METER_SOCKET_LONGEST: Final = "meter-00000000.sock"
SOCKET_PATH_OCTETS_MAX: Final = 107
"""sun_path holds 108 octets, the last is zero (unix(7))."""

RUN_ID: Final = re.compile(r"[a-z0-9]{1,16}")
"""Names that a run may have."""


@dataclass(frozen=True)
class LinkRate:
    """The rates of one node's wire: down to the node, and up from it."""

    down_bps: int
    up_bps: int

    def __str__(self) -> str:
        """Write both directions for people, or the rate that they share."""
        down, up = format_rate(self.down_bps), format_rate(self.up_bps)
        return up if down == up else f"{down} down and {up} up"


def parse_links(text: str) -> tuple[LinkRate, ...]:
    """Return the wires of n0, n1, ... from ``1gbit,500mbit/110mbit``: a rate each way, or down/up."""
    links = []
    for word in text.split(","):
        down, slash, up = word.partition("/")
        links.append(LinkRate(parse_rate_bps(down), parse_rate_bps(up if slash else down)))
    return tuple(links)


@dataclass(frozen=True)
class TestbedSettings:
    """The settings of a testbed.

    Args:
        rate_bps: rate of every wire in each direction; None leaves the wires unshaped, or to ``links``.
        links: rates of the wires of n0, n1, ..., where not all are equal; the last one holds for all further nodes.
        nic: settings of the NICs; None builds plain nodes, whose ``inc0`` is the wire itself.
    """

    __test__ = False  # the name starts with "Test", but this is no test class

    nodes: int
    rate_bps: int | None = None
    mtu: int = 1500
    nic: NicSettings | None = field(default_factory=NicSettings)
    links: tuple[LinkRate, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if not 1 <= self.nodes <= NODES_MAX:
            raise UsageError(f"{self.nodes} nodes cannot be built: choose 1..{NODES_MAX}")
        if len(self.links) > self.nodes or (self.links and self.rate_bps is not None):
            raise UsageError(f"{len(self.links)} rates for {self.nodes} nodes: give one for all, or at most one a node")
        rates_bps = [self.rate_bps] if self.rate_bps is not None else []
        for rate_bps in (*rates_bps, *(rate for link in self.links for rate in (link.down_bps, link.up_bps))):
            if not RATE_BPS_MIN <= rate_bps <= TBF_RATE_BPS_MAX:
                top = format_rate(TBF_RATE_BPS_MAX)
                raise UsageError(f"rate {format_rate(rate_bps)} cannot be shaped: choose 1mbit..{top}, or leave it out")
        if not MTU_MIN <= self.mtu <= MTU_MAX:
            raise UsageError(f"mtu {self.mtu} is outside {MTU_MIN}..{MTU_MAX}")

    def link(self, index: int) -> LinkRate | None:
        """Return the rates of a node's wire; None: unshaped."""
        if self.links:
            return self.links[min(index, len(self.links) - 1)]
        return None if self.rate_bps is None else LinkRate(self.rate_bps, self.rate_bps)


@dataclass(frozen=True)
class Shape:
    """The token bucket of one end of a wire (tc-tbf(8))."""

    rate_bps: int
    burst_octets: int
    limit_octets: int


@dataclass(frozen=True)
class NodePlan:
    """One node: its namespaces, devices and paths. ``control_path`` and ``log_path`` are None without a NIC.

    ``node_shape`` is of what it sends, ``port_shape`` of what the switch sends to it; None when its wire is unshaped.
    """

    index: int
    name: str
    netns: str
    address: str
    device: str
    wire_netns: str
    wire_device: str
    port: str
    control_path: Path | None
    log_path: Path | None
    node_shape: Shape | None
    port_shape: Shape | None


@dataclass(frozen=True)
class Plan:
    """A whole testbed."""

    settings: TestbedSettings
    run_id: str
    state_dir: Path
    switch_netns: str
    bridge: str
    network: str
    nodes: tuple[NodePlan, ...]

    @property
    def mark(self) -> str:
        """The environment entry that marks every process started in this testbed."""
        return f"NETOFFLOAD_RUN={self.run_id}"

    @property
    def key_path(self) -> Path:
        """Path of the key of the NICs' MAC, if they have one."""
        return self.state_dir / "key"

    @property
    def hosts_path(self) -> Path:
        """The hosts file that processes on a node see as ``/etc/hosts``."""
        return self.state_dir / "hosts"

    @property
    def netns_names(self) -> tuple[str, ...]:
        """Every namespace, in the order in which they are made."""
        names = [self.switch_netns]
        for node in self.nodes:
            names += [node.netns] if node.wire_netns == node.netns else [node.netns, node.wire_netns]
        return tuple(names)

    def node(self, name: str) -> NodePlan:
        """Return the node called ``name``."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise UsageError(f"run {self.run_id} has no node {name!r}: it has n0..n{len(self.nodes) - 1}")


def new_run_id() -> str:
    """Return a random run id: six hexadecimal digits."""
    return secrets.token_hex(3)


def state_root() -> Path:
    """Return the directory of all runs: ``$NETOFFLOAD_STATE_DIR``, or ``/run/netoffload``."""
    return Path(os.environ.get(ENV_STATE_DIR) or STATE_DIR_DEFAULT)


def check_run_id(run_id: str) -> str:
    """Return ``run_id`` if it may be part of names and paths."""
    if RUN_ID.fullmatch(run_id) is None:
        raise UsageError(f"run id {run_id!r} is not 1 to 16 lower-case letters and digits")
    return run_id


def make_plan(settings: TestbedSettings, run_id: str, root: Path | None = None) -> Plan:
    """Name everything that a testbed with these settings consists of; ``run_id`` is part of every visible name."""
    check_run_id(run_id)
    state_dir = (root or state_root()) / run_id
    if len(str(state_dir / METER_SOCKET_LONGEST)) > SOCKET_PATH_OCTETS_MAX:
        raise UsageError(f"state directory {state_dir} is too long a path for a socket: set NETOFFLOAD_STATE_DIR")
    return Plan(
        settings=settings,
        run_id=run_id,
        state_dir=state_dir,
        switch_netns=f"no-{run_id}-sw",
        bridge=BRIDGE,
        network=NETWORK,
        nodes=tuple(_plan_node(index, run_id, state_dir, settings) for index in range(settings.nodes)),
    )


def nic_argv(plan: Plan, node: NodePlan, ready_fd: int | None = None) -> list[str]:
    """Return the arguments of the NIC process of a node (after ``python -m netoffload_daemon``)."""
    nic = plan.settings.nic
    if nic is None or node.control_path is None:
        raise UsageError(f"run {plan.run_id} was planned without NICs")
    is_veth = nic.host == "veth"
    faults = nic.fault_settings
    process = NicProcess(
        **nic.shared() | {"faults": replace(faults, seed=faults.seed + node.index).text()},
        host=f"{nic.host}:{HOST_DEVICE if is_veth else node.device}",
        host_netns=str(netns_path(node.wire_netns if is_veth else node.netns)),
        socket_netns=str(netns_path(node.netns)) if is_veth else None,
        wire=node.wire_device,
        wire_netns=str(netns_path(node.wire_netns)),
        control=node.control_path,
        ready_fd=ready_fd,
        flow_table=plan.state_dir / f"flows-{node.name}.bin",
        key=plan.key_path if nic.keyed else None,
    )
    return process.argv()


def settings_from_json(values: dict[str, Any]) -> TestbedSettings:
    """Return the settings of which these are the ``asdict``."""
    nic = values["nic"]
    links = tuple(LinkRate(**link) for link in values.get("links", ()))
    return TestbedSettings(**{**values, "nic": None if nic is None else NicSettings(**nic), "links": links})


def _shape(rate_bps: int, limit_octets_min: int) -> Shape:
    burst_octets = max(BURST_OCTETS_MIN, round(rate_bps * BURST_S / 8))
    limit_octets = max(limit_octets_min, burst_octets + round(rate_bps * QUEUE_S / 8))
    return Shape(rate_bps, burst_octets, limit_octets)


def _plan_node(index: int, run_id: str, state_dir: Path, settings: TestbedSettings) -> NodePlan:
    name = f"n{index}"
    netns = f"no-{run_id}-{name}"
    nic, link = settings.nic, settings.link(index)
    return NodePlan(
        index=index,
        name=name,
        netns=netns,
        address=f"{NETWORK.rpartition('.')[0]}.{index + 1}",
        device=NODE_DEVICE,
        # The wire's end gets its own namespace. Beside the TAP, the node's kernel would answer ARP for the TAP's
        # address on the wire too, and frames would reach the node around its NIC.
        wire_netns=netns if nic is None else f"{netns}w",
        wire_device=NODE_DEVICE if nic is None else WIRE_DEVICE,
        port=f"p{index}",
        control_path=None if nic is None else state_dir / f"{name}.sock",
        log_path=None if nic is None else state_dir / f"{name}.log",
        node_shape=None if link is None else _shape(link.up_bps, NODE_LIMIT_OCTETS_MIN),
        port_shape=None if link is None else _shape(link.down_bps, PORT_LIMIT_OCTETS_MIN),
    )
