"""Builds a testbed from its plan, and always takes it down again.

Order of building: journal, switch namespace with its bridge, then per node its namespace, the wire, the addresses, then
all NIC processes at once, then the rate is measured. :func:`down` reads the journal backwards. So the same code takes
down a run that ends well, one that failed half-way, and one whose owner was killed.

A wire may miss the rate that its shaping asks for: a busy machine serves the bucket's timer late, a slow one cannot
fill the link. So every shaped testbed is probed before it is used, by a short TCP stream from n0 to n1, then one back,
counted by the wires' qdiscs. If wires differ, each kind is probed, and as many streams as fill it go down a wire::

    octets ^                    ______
           |              _____/      window, after the burst is spent: octets / seconds is the rate
           |        _____/
           |   ____/   <- the bucket is full: these octets cross without waiting
           +---------------------------> time

One direction at a time: with streams both ways, each one's acknowledgements wait behind the other's data, and for
the first round trips one of them starves. That would measure TCP, not the wire.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from netoffload import netlink
from netoffload.config import ENV_ADDRESS, ENV_CONTROL, ENV_METER, TAP_QUEUE_FRAMES, format_rate
from netoffload.control import request, serve_control
from netoffload.errors import SystemRefusedError, TestbedError, UsageError
from netoffload.lab.testbed import nics
from netoffload.lab.testbed.journal import Journal, RunRecord, list_runs, plan_of_run, read_ready, read_run
from netoffload.lab.testbed.links import TestbedNamespace
from netoffload.lab.testbed.plan import (
    GSO_FRAME_OCTETS_MAX,
    HOST_DEVICE,
    NodePlan,
    Plan,
    Shape,
    TestbedSettings,
    check_run_id,
    state_root,
)
from netoffload.lab.testbed.processes import end, find_program, marked
from netoffload.lab.testbed.stream_end import End

CONGESTION_CONTROL: Final = "cubic"
"""Congestion control of all nodes: the host's default may be BBR, which a namespace cannot change."""

NODE_SYSCTLS: Final = {
    # A collective pauses between phases; without this its connections would restart slowly after each pause.
    "net.ipv4.tcp_slow_start_after_idle": "0",
    # Windows that cover a full queue at the far end (50 ms at 1 Gb/s) with room to spare.
    "net.ipv4.tcp_rmem": "4096 131072 16777216",
    "net.ipv4.tcp_wmem": "4096 131072 16777216",
}

ENTER_NODE: Final = (
    'hostname "$0" && mount -t tmpfs -o size=256m shm /dev/shm && mount --bind "$1" /etc/hosts && shift && exec "$@"'
)
"""Sets the node's host name, shared memory (so that MPI cannot bypass the wire) and hosts file; then runs the program
under the same pid. The mounts are private: `ip netns exec` gives its child its own mount namespace."""

TOLERANCE: Final = 0.05
ATTEMPTS: Final = 5
PAUSE_S: Final = 1.0
"""Pause before the second attempt. Each further attempt waits one pause more, so that other work may end."""
READINGS: Final = 3
PROBE_PORT: Final = 49_777
STARTUP_TIMEOUT_S: Final = 10.0
SETTLE_S_MIN: Final = 0.05
SETTLE_BITS_MIN: Final = 300_000
"""Time from the end of the burst to the window, in which slow start ends."""
WINDOW_S_MIN: Final = 0.3
WINDOW_GSO_FRAMES: Final = 40
"""Shortest window, in GSO frames of 64 KiB, which a NIC sends: one frame more or less must not make 5 %."""
BUFFER_S: Final = 0.02
"""The stream's send buffer holds this much of the link (twice: the kernel doubles it). More would wait longer than
TCP's shortest retransmission time-out, 200 ms, on a slow link, and would have to drain afterwards."""
BUFFER_OCTETS_MIN: Final = 8 * 1024
POLL_S: Final = 5e-3


@dataclass(frozen=True)
class WireCounters:
    """What crossed one node's wire: octets with every header of every segment, and frames, in each direction."""

    name: str
    tx_octets: int
    tx_frames: int
    rx_octets: int
    rx_frames: int


class Testbed:
    """A running testbed: a context manager that builds ``plan`` and takes it down.

    ``rate_bps_measured`` is the achieved rate of a wire; None before the testbed is up, with one node, or unprobed.
    """

    __test__ = False  # the name starts with "Test", but this is no test class

    def __init__(self, plan: Plan, *, check_rate: bool = True, progress: Callable[[str], None] | None = None) -> None:
        """Prepare to build ``plan``; nothing is made before the context is entered.

        With ``check_rate`` the achieved rate is probed (under a second), and refused if it is off by more than 5 %.
        ``progress`` is called with a phrase whenever something that takes time begins.
        """
        self.plan = plan
        self.rate_bps_measured: float | None = None
        self._check_rate = check_rate
        self._progress: Callable[[str], None] = progress or (lambda _phrase: None)
        self._undone_on_exit = True
        self._built = False
        self._namespaces: dict[str, TestbedNamespace] = {}
        self._lock = threading.Lock()

    @classmethod
    def attach(cls, run_id: str, progress: Callable[[str], None] | None = None) -> Testbed:
        """Return the testbed of a run that is up; leaving its context leaves it up."""
        record = read_ready(state_root() / run_id)
        bed = cls(plan_of_run(record), progress=progress)
        bed.rate_bps_measured = record.rate_bps_measured
        bed._built = True
        bed._undone_on_exit = False
        return bed

    def __enter__(self) -> Testbed:
        """Build the testbed, after taking down runs whose owners died; an error leaves nothing behind."""
        if self._built:
            return self
        check_root()
        if self.plan.settings.nic is not None:
            check_tun()
        reap_stale()
        if read_run(self.plan.state_dir) is not None:
            raise TestbedError(
                f"run {self.plan.run_id} exists already: choose another run id, or take it down with "
                f"`netoffload down {self.plan.run_id}`"
            )
        for name in self.plan.netns_names:
            if netlink.netns_exists(name):
                raise TestbedError(f"network namespace {name} exists already: choose another run id")
        journal = Journal.create(self.plan)
        try:
            self._build(journal)
        except BaseException:
            self._undo()
            raise
        self._built = True
        return self

    def __exit__(self, *_: object) -> None:
        """Take the testbed down, unless it is detached or comes from :meth:`attach`."""
        if self._undone_on_exit:
            self._undo()
        else:
            self._close()

    def detach(self) -> None:
        """Let the run outlive this process: it stays up until :func:`down`."""
        Journal(self.plan.state_dir).append("detached")
        self._undone_on_exit = False

    def replace_ended_nics(self) -> None:
        """Start another NIC in the place of each one that has ended."""
        for node in nics.without_nic(self.plan):
            nics.restart(self.plan, node, self._progress)

    def restart_nic(self, node_index: int, *, kill: bool = False) -> nics.Restart:
        """End the NIC of a node, and start another one in its place: see :func:`nics.restart`."""
        return nics.restart(self.plan, self.plan.nodes[node_index], self._progress, kill=kill)

    def popen(
        self, node_index: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **popen_args: Any
    ) -> subprocess.Popen[Any]:
        """Start a program on a node, with the environment of :meth:`node_env` and ``env``."""
        node = self.plan.nodes[node_index]
        try:
            return subprocess.Popen(
                self.entry_argv(node, argv), env={**self.node_env(node), **(env or {})}, **popen_args
            )
        except OSError as error:
            raise TestbedError(f"cannot start a program on node {node.name}: {error}") from error

    def end(self, node_index: int, options: dict[str, Any]) -> End:
        """Start one end of a stream on a node: see :mod:`netoffload.lab.testbed.stream_end`."""
        return End(lambda argv, **how: self.popen(node_index, argv, **how), options)

    def make_scratch(self) -> Path:
        """Return a new folder for files of programs on the testbed; taking the testbed down removes it."""
        path = Path(tempfile.gettempdir(), f"netoffload-{self.plan.run_id}-{secrets.token_hex(4)}")
        Journal(self.plan.state_dir).append("folder", path=str(path))
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise TestbedError(f"cannot make the folder {path}: {error.strerror}") from error
        return path

    def entry_argv(self, node: NodePlan, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` on a node; every step is an exec, so the pid stays the same."""
        if (ip := find_program("ip")) is None:
            raise SystemRefusedError("the program ip is missing: install the package iproute2")
        enter = ["netns", "exec", node.netns, "unshare", "--uts", "--ipc", "/bin/sh", "-c", ENTER_NODE]
        return [ip, *enter, node.name, str(self.plan.hosts_path), *argv]

    def node_env(self, node: NodePlan) -> dict[str, str]:
        """Return the environment of a program on a node: this process's, with the node's address, NIC and run mark."""
        env = {name: value for name, value in os.environ.items() if name not in (ENV_CONTROL, ENV_METER)}
        mark_name, _, mark_value = self.plan.mark.partition("=")
        env |= {ENV_ADDRESS: node.address, mark_name: mark_value}
        return env if node.control_path is None else {**env, ENV_CONTROL: str(node.control_path)}

    def wire_counters(self) -> list[WireCounters]:
        """Return what has crossed every node's wire, counted by the qdiscs at both ends of the wire."""
        switch = self._namespace(self.plan.switch_netns)
        ports, arrivals = switch.qdisc_counters(), switch.qdisc_counters(("ingress",))
        found = []
        for node in self.plan.nodes:
            wires = self._namespace(node.wire_netns).qdisc_counters()
            if node.wire_device not in wires or node.port not in ports:
                raise TestbedError(f"the wire of node {node.name} in run {self.plan.run_id} is gone")
            tx, rx = wires[node.wire_device], ports[node.port]
            tx_frames = arrivals[node.port].frames if node.port in arrivals else tx.frames
            found.append(WireCounters(node.name, tx.octets, tx_frames, rx.octets, rx.frames))
        return found

    def _build(self, journal: Journal) -> None:
        self._progress(f"building {len(self.plan.nodes)} nodes")
        if self.plan.settings.nic is None:
            self._build_network(journal)
        else:
            with nics.loading() as server:
                self._build_network(journal)
                self._progress(f"starting {len(self.plan.nodes)} NICs")
                nics.start(server, self.plan, journal)
        if self._check_rate and len(self.plan.nodes) > 1:
            self._progress("measuring the rate")
            self.rate_bps_measured = check_rate(self, self._progress)
        journal.append("ready", rate_bps_measured=self.rate_bps_measured)

    def _build_network(self, journal: Journal) -> None:
        for name in self.plan.netns_names:
            journal.append("netns", name=name)
            self._namespaces[name] = TestbedNamespace.create(name)
        switch = self._namespaces[self.plan.switch_netns]
        switch.add_bridge(self.plan.bridge, self.plan.settings.mtu)
        switch.set_up(self.plan.bridge)
        for node in self.plan.nodes:
            self._build_node(switch, node)
        self._write_hosts()

    def _build_node(self, switch: TestbedNamespace, node: NodePlan) -> None:
        mtu, nic = self.plan.settings.mtu, self.plan.settings.nic
        host, wire = self._namespaces[node.netns], self._namespaces[node.wire_netns]
        for key, value in NODE_SYSCTLS.items():
            host.set_sysctl(key, value)
        switch.add_veth(node.port, node.wire_device, node.wire_netns, mtu)
        _shape(wire, node.wire_device, node.node_shape)
        _shape(switch, node.port, node.port_shape)
        wire.set_up(node.wire_device)
        switch.set_up(node.port, self.plan.bridge)
        if wire is not host:
            # wire0's qdisc counts a GSO frame from a packet socket as one segment (gso_segs is 0 there).
            switch.add_ingress_counter(node.port)
            if nic is not None and nic.host == "veth":
                host.add_veth(node.device, HOST_DEVICE, node.wire_netns, mtu)
                wire.set_up(HOST_DEVICE)
            else:
                host.add_tap(node.device, mtu, TAP_QUEUE_FRAMES)
            host.set_up(node.device)
        host.add_address(node.device, node.address, self.plan.network, CONGESTION_CONTROL)

    def _write_hosts(self) -> None:
        lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in self.plan.nodes)]
        try:
            self.plan.hosts_path.write_text("\n".join(lines) + "\n")
        except OSError as error:
            raise TestbedError(f"cannot write {self.plan.hosts_path}: {error.strerror}") from error

    def _namespace(self, name: str) -> TestbedNamespace:
        with self._lock:
            if name not in self._namespaces:
                self._namespaces[name] = TestbedNamespace.open(name)
            return self._namespaces[name]

    def _close(self) -> None:
        with self._lock:
            while self._namespaces:
                self._namespaces.popitem()[1].close()

    def _undo(self) -> None:
        self._close()  # a thread inside a namespace would keep it alive
        down(self.plan.run_id)


def check_root() -> None:
    """Refuse at once to build without root, instead of failing half-way."""
    if os.geteuid() != 0:
        raise SystemRefusedError("a testbed needs root (it is made of network namespaces): run this with sudo")


def check_tun() -> None:
    """Refuse at once to build without TAP devices, instead of failing half-way."""
    if not Path("/dev/net/tun").exists():
        raise SystemRefusedError("/dev/net/tun is missing: load the tun module, or give this container the device")


def down(run_id: str) -> bool:
    """Take a run down from its journal alone: its processes, then its namespaces, then its folders.

    It may be called twice, by any process, and whether or not the builder lives. Returns False if there is no such
    run. If the kernel refuses, the journal stays for another try.
    """
    record = read_run(state_root() / check_run_id(run_id))
    if record is None:
        return False
    # Twice: a process that was being started when its owner died carries the mark only from its exec on.
    for _ in range(2):
        end({process for _, process in record.processes} | set(marked(record.mark)))
    for name in reversed(record.netns):
        netlink.remove_netns(name)
    for folder in (*record.folders, record.state_dir):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass  # never made, or another process took it down at the same time
        except OSError as error:
            raise TestbedError(f"cannot remove {folder}: {error.strerror}") from error
    return True


def reap_stale() -> list[str]:
    """Take down every run whose owner is gone and that was not detached; returns their run ids."""
    return [record.run_id for record in list_runs() if record.is_stale and down(record.run_id)]


def find_run(run_id: str | None) -> RunRecord:
    """Return the run with this id, or the only one that is up."""
    runs = [record for record in list_runs() if run_id in (None, record.run_id)]
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise UsageError("no testbed is up: `netoffload up -n 2` builds one" if run_id is None else f"no run {run_id}")
    raise UsageError(f"{len(runs)} runs are up, say which: {', '.join(record.run_id for record in runs)}")


def check_rate(bed: Testbed, progress: Callable[[str], None]) -> float:
    """Measure the rates of wires and compare them with the planned ones; if one is off, measure again a few times.

    Returns the rate in bits per second of the direction that is farthest off.
    """
    if bed.plan.settings.link(0) is None:
        return min(_measure_rate(bed, _Probe((sender,), 1 - sender)) for sender in (0, 1))
    probes = _probes(bed.plan.settings)
    for attempt in range(1, ATTEMPTS + 1):
        found = [(probe.asked_bps, _measure_rate(bed, probe, attempt)) for probe in probes]
        asked_bps, worst_bps = max(found, key=lambda pair: abs(pair[1] / pair[0] - 1))
        if abs(worst_bps - asked_bps) <= TOLERANCE * asked_bps:
            return worst_bps
        if attempt < ATTEMPTS:
            progress(
                f"measured {format_rate(worst_bps)} instead of {format_rate(asked_bps)}, "
                f"measuring again ({attempt + 1} of {ATTEMPTS})"
            )
            time.sleep(attempt * PAUSE_S)
    nic = bed.plan.settings.nic
    raise TestbedError(
        f"asked for {format_rate(asked_bps)}, measured {format_rate(worst_bps)} ({ATTEMPTS} times off by more "
        f"than {TOLERANCE:.0%}): "
        + (
            "the faults that NICs make on purpose hold the stream up; leave out --rate or --fault"
            if nic is not None and nic.faults
            else "this machine is too slow or too busy; end other work or choose a lower rate"
        )
    )


@dataclass(frozen=True)
class _Probe:
    """Streams to one node at the same time, and the rate that they should have together.

    They are counted where they are limited: at the port to the receiver, or at the senders' wires.
    """

    senders: tuple[int, ...]
    receiver: int
    asked_bps: float = math.inf
    is_counted_at_port: bool = False


def _probes(settings: TestbedSettings) -> list[_Probe]:
    """Return a probe up and one down for the first wire of each kind, as far as the other wires can fill it."""
    nodes = range(settings.nodes)
    links = [link for node in nodes if (link := settings.link(node))]

    def probe(senders: Sequence[int], receiver: int) -> _Probe:
        up_bps, down_bps = sum(links[sender].up_bps for sender in senders), links[receiver].down_bps
        return _Probe(tuple(senders), receiver, min(up_bps, down_bps), down_bps < up_bps)

    probes = []
    for node in (links.index(link) for link in dict.fromkeys(links)):
        others = sorted((other for other in nodes if other != node), key=lambda other: -links[other].up_bps)
        counts = range(1, len(others))
        filling = next((n for n in counts if probe(others[:n], node).asked_bps == links[node].down_bps), len(others))
        probes.append(probe([node], max(others, key=lambda other: links[other].down_bps)))
        probes.append(probe(others[:filling], node))
    return list(dict.fromkeys(probes))


def _measure_rate(bed: Testbed, probe: _Probe, windows: int = 1) -> float:
    """Return the rate of the probe's octets, in bits per second, under a TCP stream from each sender.

    ``windows`` is how many times as long as necessary it measures.
    """
    rate_bps, nodes = probe.asked_bps, bed.plan.nodes
    one_bps = rate_bps / len(probe.senders)
    buffer_octets = 0 if math.isinf(rate_bps) else max(BUFFER_OCTETS_MIN, round(one_bps * BUFFER_S / 8))
    settle_s = max(SETTLE_S_MIN, SETTLE_BITS_MIN / rate_bps)
    frame_octets = min(GSO_FRAME_OCTETS_MAX, 2 * buffer_octets)
    window_s = windows * max(WINDOW_S_MIN, WINDOW_GSO_FRAMES * frame_octets * 8 / rate_bps)
    shapes = (nodes[probe.receiver].port_shape, *(nodes[sender].node_shape for sender in probe.senders))
    burst_octets = max(shape.burst_octets if shape else 0 for shape in shapes)
    common = {"address": nodes[probe.receiver].address, "tos": 0}
    common |= {"sndbuf_octets": buffer_octets, "drops_unsent": True}
    with contextlib.ExitStack() as stack:
        ends: list[End] = []
        for port, sender in enumerate(probe.senders, PROBE_PORT):
            listens = {**common, "port": port, "role": "listen", "receive": {}}
            connects = {**common, "port": port, "role": "connect", "send": {}}
            ends.append(stack.enter_context(bed.end(probe.receiver, listens)))
            ends.append(stack.enter_context(bed.end(sender, connects)))
        start, deadline = bed.wire_counters(), time.monotonic() + STARTUP_TIMEOUT_S
        while _least_sent_octets(bed, probe, start) <= burst_octets + frame_octets:
            why = next((why for end in ends if (why := end.failure())), None)
            if gone := nics.without_nic(bed.plan):
                why = f"the NIC of {gone[0].name} has ended{nics.tail(gone[0])}"
            if why or time.monotonic() > deadline:
                names = f"{' and '.join(f'n{sender}' for sender in probe.senders)} to n{probe.receiver}"
                raise TestbedError(
                    f"no traffic passes from {names} of run {bed.plan.run_id}: {why or 'it is too slow'}"
                )
            time.sleep(POLL_S)
        time.sleep(settle_s)
        first_octets, first_s = _probed(bed, probe)
        time.sleep(window_s)
        last_octets, last_s = _probed(bed, probe)
    return 8 * (last_octets - first_octets) / (last_s - first_s)


def _least_sent_octets(bed: Testbed, probe: _Probe, start: Sequence[WireCounters]) -> int:
    now = bed.wire_counters()
    return min(now[sender].tx_octets - start[sender].tx_octets for sender in probe.senders)


def _probed(bed: Testbed, probe: _Probe) -> tuple[int, float]:
    """Return the probe's octets and the time at which they were read, of the fastest of some readings.

    In a slow one another process had the core, before or after the counter was read.
    """
    readings = []
    for _ in range(READINGS):
        begun_s, octets = time.monotonic(), _probed_octets(bed, probe)
        took_s = time.monotonic() - begun_s
        readings.append((took_s, octets, begun_s + took_s / 2))
    return min(readings)[1:]


def _probed_octets(bed: Testbed, probe: _Probe) -> int:
    counters = bed.wire_counters()
    if probe.is_counted_at_port:
        return counters[probe.receiver].rx_octets
    return sum(counters[sender].tx_octets for sender in probe.senders)


def read_wires(record: RunRecord) -> dict[str, dict[str, int]]:
    """Return the counters of every node's wire, by node name; empty if the run is not up."""
    if not record.ready:
        return {}
    try:
        with Testbed.attach(record.run_id) as bed:
            counters = bed.wire_counters()
    except SystemRefusedError:
        return {}
    rows = map(asdict, counters)
    return {row.pop("name"): row for row in rows}


def octets_on_wires(path: str) -> int:
    """Return what all nodes have sent on their wires, by the meter at this socket."""
    return sum(int(node["tx_octets"]) for node in request(path, "wires")["nodes"])


@contextlib.contextmanager
def metered(bed: Testbed) -> Iterator[Path]:
    """Serve the wires' counters of a running testbed to programs on its nodes, which find it in ``$NETOFFLOAD_METER``.

    Yields the path of the socket, in the run's state directory. It has one command::

        {"command": "wires"}
        {"ok": true, "nodes": [{"name": "n0", "address": "10.98.1.1", "tx_octets": ..., "tx_frames": ...,
                                "rx_octets": ..., "rx_frames": ..., "nic_control": PATH or null}, ...]}
    """

    def wires(_asked: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    **asdict(counted),
                    "address": node.address,
                    "nic_control": None if node.control_path is None else str(node.control_path),
                }
                for node, counted in zip(bed.plan.nodes, bed.wire_counters(), strict=True)
            ]
        }

    path = bed.plan.state_dir / f"meter-{secrets.token_hex(4)}.sock"
    with serve_control(path, {"wires": wires}):
        yield path


def _shape(namespace: TestbedNamespace, device: str, shape: Shape | None) -> None:
    if shape is None:
        namespace.add_pfifo(device)
    else:
        namespace.add_tbf(device, shape.rate_bps, shape.burst_octets, shape.limit_octets)
