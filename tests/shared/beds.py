"""Testbeds of tests, what their NICs count, and NICs that a test starts itself."""

import contextlib
import os
import secrets
import select
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from netoffload.control import request
from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan, nics, run_ranks
from netoffload.lab.testbed.forks import python_argv
from netoffload.lab.testbed.journal import read_run
from netoffload.lab.testbed.nics import NIC_IMPORTS
from netoffload.lab.testbed.plan import NodePlan
from netoffload.netlink import Namespace, netns_path
from tests.shared.commands import CLI, forget_tables, running_nic

END_S = 10


@contextlib.contextmanager
def built(nodes: int = 2, run_id: str | None = None, **settings: Any) -> Iterator[Testbed]:
    """A testbed, with NICs unless ``nic`` says otherwise, whose links' rate is not measured."""
    plan = make_plan(TestbedSettings(nodes, **settings), run_id or f"t{secrets.token_hex(3)}")
    with Testbed(plan, check_rate=False) as bed:
        try:
            yield bed
        finally:
            forget_tables(*(name for node in plan.nodes for name in {node.netns, node.wire_netns}))


def output_of(bed: Testbed, node_indices: Sequence[int], argv: Sequence[str], **how: Any) -> str:
    """Run ranks (see ``launch.run_ranks``) and return what they wrote to standard output."""
    captured: list[bytes] = []
    run_ranks(bed, node_indices, argv, on_stdout=lambda _rank, lines: captured.append(lines), **how)
    return b"".join(captured).decode(errors="replace")


def link_names(namespace: Namespace) -> list[str]:
    """Return the names of all links of a namespace."""
    links = namespace.request("list its links", lambda links: list(links.get_links()))
    return [str(link.get_attr("IFLA_IFNAME")) for link in links]


def asked(bed: Testbed, node_index: int, command: str) -> dict[str, Any]:
    """Return the answer of a node's NIC."""
    return request(str(bed.plan.nodes[node_index].control_path), command)


def counters(bed: Testbed, node_index: int = 0) -> dict[str, int]:
    counted: dict[str, int] = asked(bed, node_index, "counters")["counters"]
    return counted


def grown(bed: Testbed, node_index: int, before: dict[str, int]) -> dict[str, int]:
    """Return the counters that have grown since, and by how much."""
    now = counters(bed, node_index)
    return {name: count - before[name] for name, count in now.items() if count != before[name]}


def drops(counted: dict[str, int]) -> dict[str, int]:
    """Return the reasons for which frames were dropped, with their numbers."""
    return {name: count for name, count in counted.items() if name.startswith("drop") and count}


def flows(bed: Testbed, node_index: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = asked(bed, node_index, "flows")["flows"]
    return rows


def nic_pids(bed: Testbed) -> list[int]:
    """Return the pid of every node's NIC."""
    record = read_run(bed.plan.state_dir)
    assert record is not None
    return [state["pid"] for state in nics.states(record).values()]


def wait_for_end_of_nic(bed: Testbed, node_index: int) -> None:
    """Return when a node's NIC, which is nobody's child, has ended."""
    try:
        pidfd = os.pidfd_open(nic_pids(bed)[node_index])
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], END_S)[0], "the NIC goes on"
    finally:
        os.close(pidfd)


def nic_command() -> list[str]:
    """Return the command that starts a NIC, as a fork with loaded kernels."""
    return [*python_argv([CLI, *NIC_IMPORTS]), "-m", "netoffload", "nic"]


class NicByHand:
    """A NIC process of a node as a user starts it: with its devices, and a log."""

    def __init__(self, node: NodePlan, log: Path) -> None:
        self._log = log
        self._words = ["--host", f"tap:{node.device}", "--host-netns", str(netns_path(node.netns))]
        self._words += ["--wire", node.wire_device, "--wire-netns", str(netns_path(node.wire_netns))]
        self.start()

    def start(self) -> None:
        """Start a process, and return when it forwards."""
        with self._log.open("ab") as log:
            self._running = running_nic(self._words, command=nic_command(), stdout=log, stderr=log)
            self._process = self._running.__enter__()

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(END_S)
        self._running.__exit__(None, None, None)


@contextlib.contextmanager
def nics_by_hand(bed: Testbed, folder: Path) -> Iterator[list[NicByHand]]:
    """End the testbed's own NICs, and start others in their place."""
    made: list[NicByHand] = []
    try:
        for index, node in enumerate(bed.plan.nodes):
            os.kill(nic_pids(bed)[index], signal.SIGKILL)
            wait_for_end_of_nic(bed, index)
            made.append(NicByHand(node, folder / f"{node.name}.log"))
        yield made
    finally:
        for nic in made:
            nic.end(signal.SIGKILL)
