"""OpenVPN as the tunnel to compare NICs with: it compresses frame by frame with lz4, without encryption.

It gives the two nodes an Ethernet interface of its own, carried in UDP over their data network. It is set up for speed,
by its manual (openvpn(8)): no cipher, no digest, large socket buffers. An MTU of 48000 lets OpenVPN 2.6 take large
frames from the host in one read and leaves it to IP to fragment the carrier packets: five times as fast here as its
default of 1500, which can be chosen too. OpenVPN 2.7 no longer compresses what it sends.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from netoffload.lab.testbed.processes import end, find_program, identify

if TYPE_CHECKING:
    from netoffload.lab.testbed.build import Testbed

PACKAGE: Final = "openvpn (2.6; 2.7 does not compress)"
BUFFER_OCTETS: Final = 4 * 1024 * 1024
LARGE_MTU: Final = 48_000
VERSION_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Peer:
    """A tunnel, in whose ``network`` the nodes are .1 and .2."""

    network: str
    port: int
    mtu_words: tuple[str, ...] = ()
    program: str = "openvpn"

    @property
    def device(self) -> str:
        """The tunnel's interface on either node."""
        return f"tunnel{self.network.rpartition('.')[2]}"

    def address(self, node_index: int) -> str:
        """Return a node's address in the tunnel."""
        return f"{self.network}.{node_index + 1}"

    def version(self) -> str:
        """Return the version that the program says it has, or ``unknown``."""
        try:
            words, quiet = [find_program(self.program) or self.program, "--version"], subprocess.DEVNULL
            asked = subprocess.run(words, capture_output=True, stdin=quiet, timeout=VERSION_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        found = re.search(r"\d+\.[\dX]+(?:\.\d+)?", (asked.stdout + asked.stderr).decode(errors="replace"))
        return "unknown" if found is None else found[0]

    def argv(self, bed: Testbed, own: int) -> list[str]:
        """Return the command line of one end."""
        path = find_program(self.program)
        assert path is not None
        local, remote = bed.plan.nodes[own].address, bed.plan.nodes[1 - own].address
        return [
            *(path, "--dev", self.device, "--dev-type", "tap", "--proto", "udp4"),
            *("--local", local, "--remote", remote, "--port", str(self.port)),
            *("--ifconfig", self.address(own), "255.255.255.0"),
            *("--cipher", "none", "--auth", "none", "--disable-dco"),
            *("--sndbuf", str(BUFFER_OCTETS), "--rcvbuf", str(BUFFER_OCTETS)),
            *("--compress", "lz4-v2", "--allow-compression", "yes", *self.mtu_words),
        ]


PEERS: Final = {
    "openvpn-lz4": Peer("10.97.1", 1194, ("--tun-mtu", str(LARGE_MTU), "--mssfix", "0")),
    "openvpn-lz4-mtu1500": Peer("10.97.2", 1195),
}
"""Every peer by its name in ``--peers``."""


def missing(peer: Peer) -> str | None:
    """Return what to install for this peer, or None if it is installed."""
    if find_program(peer.program) is not None:
        return None
    return f"{peer.program} is not installed: install the package {PACKAGE}"


@dataclass(frozen=True)
class Tunnel:
    """A running tunnel: its ends by node, and the folder of their logs."""

    peer: Peer
    folder: Path
    ends: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def pids(self) -> list[int]:
        """The pids of both ends."""
        return [process.pid for process in self.ends.values()]

    def log(self, own: int) -> Path:
        """Return the log of a node's end."""
        return self.folder / f"log{own}"

    def state(self) -> str:
        """Say whether both ends run and what they said last."""
        said = []
        for own, process in sorted(self.ends.items()):
            runs = "runs" if process.poll() is None else f"ended with {process.returncode}"
            lines = self.log(own).read_text(errors="replace").strip().splitlines()
            said.append(f"n{own} {runs}" + (f", {lines[-1].strip()!r}" if lines else ""))
        return "; ".join(said)


@contextlib.contextmanager
def tunnel(bed: Testbed, peer: Peer) -> Iterator[Tunnel]:
    """Run a tunnel between n0 and n1; its processes are gone afterwards.

    The caller finds out whether the tunnel comes up: ends that cannot reach each other go on trying.
    """
    made = Tunnel(peer, bed.make_scratch())
    try:
        for own in (1, 0):
            with made.log(own).open("wb") as log:
                how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                made.ends[own] = bed.popen(own, peer.argv(bed, own), **how, start_new_session=True)
        yield made
    finally:
        end(identity for pid in made.pids if (identity := identify(pid)) is not None)
        for process in made.ends.values():
            process.wait()
