"""NICs of a testbed that are started as a user starts them, with no more options than their devices."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from netoffload.lab.testbed import NodePlan, Testbed
from netoffload.netlink import netns_path
from tests.soak import kill_nic

START_S: Final = 60.0
END_S: Final = 15.0


class NicByHand:
    """A NIC process of a node, and its log; a context manager that ends the process."""

    def __init__(self, bed: Testbed, node: NodePlan, log: Path, options: Sequence[str] = ()) -> None:
        self._bed, self._node, self._options = bed, node, list(options)
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, and return when it forwards."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end(signal.SIGKILL)

    def start(self) -> None:
        """Start a process, and return when it forwards."""
        node = self._node
        ready, writes = os.pipe()
        devices = ["--host", f"tap:{node.device}", "--host-netns", str(netns_path(node.netns))]
        devices += ["--wire", node.wire_device, "--wire-netns", str(netns_path(node.wire_netns))]
        command = [sys.executable, "-m", "netoffload", "nic", *devices, "--ready-fd", str(writes), *self._options]
        name, _, value = self._bed.plan.mark.partition("=")
        try:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    command, env={**os.environ, name: value}, pass_fds=[writes], stdout=log, stderr=log
                )
        finally:
            os.close(writes)
        try:
            said = os.read(ready, 16) if select.select([ready], [], [], START_S)[0] else b""
        finally:
            os.close(ready)
        if said != b"ready\n":
            raise RuntimeError(f"the NIC of {node.name} did not start: {self.log.read_text()[-2000:]}")

    def end(self, number: signal.Signals) -> None:
        """End the process with a signal; it may be gone already."""
        if self.process is not None:
            self.process.send_signal(number)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextlib.contextmanager
def nics_by_hand(bed: Testbed, folder: Path, options: Sequence[Sequence[str]] = ((), ())) -> Iterator[list[NicByHand]]:
    """End the testbed's own NICs, and start others in their place, each with its further options."""
    with contextlib.ExitStack() as stack:
        made = []
        for node, words in zip(bed.plan.nodes, options, strict=True):
            kill_nic(bed, node)
            made.append(stack.enter_context(NicByHand(bed, node, folder / f"{node.name}.log", words)))
        yield made
