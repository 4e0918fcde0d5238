"""Tunnels of other programs that compress, to compare NICs with: OpenVPN, tinc and vtun, without encryption.

Each gives the two nodes an Ethernet interface of its own, carried in UDP over their data network, and compresses frame
by frame with a general compressor. All of them are set up for speed: no cipher, no digest, large socket buffers. The
settings follow their manuals (openvpn(8), tinc.conf(5), vtund.conf(5)):

- OpenVPN 2.6, lz4. Its tunnel's MTU of 48000 lets it take large frames from the host in one read and leaves it to IP to
  fragment the carrier packets: five times as fast here as its default of 1500, which can be chosen too. OpenVPN 2.7
  no longer compresses what it sends.
- tinc 1.0, LZO (level 10). Frames above the path MTU that it has found go over its TCP connection, uncompressed. So the
  tunnel's MTU is 1400, and a measurement waits until tinc has found the path MTU.
- vtun 3, LZO.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.errors import TestbedError

if TYPE_CHECKING:
    from netoffload.lab.testbed.build import Testbed

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders of daemons, which a user's PATH may lack."""

BUFFER_OCTETS: Final = 4 * 1024 * 1024
SMALL_MTU: Final = 1400
"""MTU of a tunnel: leaves room for the tunnel's headers in a carrier packet of 1500 octets."""
OPENVPN_LARGE_MTU: Final = 48_000
END_TIMEOUT_S: Final = 5.0
VERSION_TIMEOUT_S: Final = 10.0

_VTUN_ENTER: Final = 'mount -t tmpfs tmpfs /run && mkdir -p /run/lock/vtund && exec "$0" "$@"'
"""Mounts an empty /run for vtund, which keeps its pid and a file per session there, and ends without a message if it
cannot. A program on a node has its own mounts, so these files disappear with it."""

Argv = list[str]
Recipe = Callable[["Peer", "Testbed", Path], tuple[Argv, Argv]]
"""Makes the command lines of n0 and n1 from the peer, a testbed and an empty folder."""


@dataclass(frozen=True)
class Peer:
    """A tunnel.

    Attributes:
        program: name of the executable.
        package: name of the package to install.
        version_argv: arguments that make the program print its version.
        recipe: makes the tunnel's files and returns its two command lines.
        network: network of the tunnel, in which the nodes are .1 and .2.
        port: UDP port that carries the tunnel.
        settle_s: time from both ends being up until the tunnel carries at full speed.
    """

    program: str
    package: str
    version_argv: tuple[str, ...]
    recipe: Recipe
    network: str
    port: int
    settle_s: float = 0.0

    @property
    def device(self) -> str:
        """The tunnel's interface on either node."""
        return f"tunnel{self.network.rpartition('.')[2]}"

    def address(self, node_index: int) -> str:
        """Return a node's address in the tunnel."""
        return f"{self.network}.{node_index + 1}"

    def path(self) -> str | None:
        """Return the executable's path, or None where it is not installed."""
        return _which(self.program)

    def version(self) -> str:
        """Return the version that the program says it has, or ``unknown``."""
        path = self.path()
        if path is None:
            return "missing"
        try:
            asked = subprocess.run(
                [path, *self.version_argv], capture_output=True, stdin=subprocess.DEVNULL, timeout=VERSION_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return "unknown"
        found = re.search(r"\d+\.[\dX]+(?:\.\d+)?", (asked.stdout + asked.stderr).decode(errors="replace"))
        return "unknown" if found is None else found[0]


def _openvpn(mtu_words: Sequence[str]) -> Recipe:
    def recipe(peer: Peer, bed: Testbed, _folder: Path) -> tuple[Argv, Argv]:
        argvs = []
        for own, other in ((0, 1), (1, 0)):
            local, remote = bed.plan.nodes[own].address, bed.plan.nodes[other].address
            argvs.append(
                [
                    *(_need("openvpn"), "--dev", peer.device, "--dev-type", "tap", "--proto", "udp4"),
                    *("--local", local, "--remote", remote, "--port", str(peer.port)),
                    *("--ifconfig", peer.address(own), "255.255.255.0"),
                    *("--cipher", "none", "--auth", "none", "--disable-dco"),
                    *("--sndbuf", str(BUFFER_OCTETS), "--rcvbuf", str(BUFFER_OCTETS)),
                    *("--compress", "lz4-v2", "--allow-compression", "yes", *mtu_words),
                ]
            )
        return argvs[0], argvs[1]

    return recipe


def _tinc(peer: Peer, bed: Testbed, folder: Path) -> tuple[Argv, Argv]:
    names = ("node0", "node1")
    hosts, argvs = [], []
    for own, name in enumerate(names):
        home = folder / name
        (home / "hosts").mkdir(parents=True)
        address = bed.plan.nodes[own].address
        lines = [
            *(
                f"Name = {name}",
                "Mode = switch",
                "DeviceType = tap",
                f"Interface = {peer.device}",
                "AddressFamily = ipv4",
            ),
            *(f"BindToAddress = {address}", f"UDPRcvBuf = {BUFFER_OCTETS}", f"UDPSndBuf = {BUFFER_OCTETS}"),
            *(("ConnectTo = node1",) if own == 0 else ()),
        ]
        (home / "tinc.conf").write_text("\n".join(lines) + "\n")
        host = home / "hosts" / name
        host.write_text(
            f"Address = {address}\nPort = {peer.port}\nCipher = none\nDigest = none\nMACLength = 0\nCompression = 10\n"
        )
        _run([_need("tincd"), "-c", str(home), "-K", "2048"])  # adds the public key to the host file
        script = home / "tinc-up"
        script.write_text(f"#!/bin/sh\n{_ip_lines(own, peer, '$INTERFACE', _need('ip'))}\n")
        script.chmod(0o700)
        hosts.append(host)
        argvs.append([_need("tincd"), "-c", str(home), f"--pidfile={home / 'pid'}", "-D"])
    for own, host in enumerate(hosts):
        shutil.copy(host, folder / names[1 - own] / "hosts")
    return argvs[0], argvs[1]


def _vtun(peer: Peer, bed: Testbed, folder: Path) -> tuple[Argv, Argv]:
    paths = []
    for own in (0, 1):
        # One statement per line, or vtund's parser fails.
        up = "\n".join(f'    ip "{line}";' for line in _ip_lines(own, peer, "%%", "").splitlines())
        path = folder / f"vtund{own}.conf"
        path.write_text(
            f"options {{\n  port {peer.port};\n  ip {_need('ip')};\n  timeout 60;\n}}\n"
            "default {\n  type ether;\n  proto udp;\n  compress lzo:1;\n  encrypt no;\n  keepalive yes;\n"
            "  speed 0;\n}\n"
            f"t1 {{\n  passwd x;\n  device {peer.device};\n  up {{\n{up}\n  }};\n}}\n"
        )
        paths.append(str(path))
    program = ["/bin/sh", "-c", _VTUN_ENTER, _need("vtund"), "-n", "-P", str(peer.port)]
    # -p: try again, if the server does not listen yet.
    return [*program, "-p", "-f", paths[0], "t1", bed.plan.nodes[1].address], [*program, "-s", "-f", paths[1]]


_OPENVPN: Final = ("openvpn", "openvpn (2.6; 2.7 does not compress)", ("--version",))

PEERS: Final = {
    "openvpn-lz4": Peer(*_OPENVPN, _openvpn(("--tun-mtu", str(OPENVPN_LARGE_MTU), "--mssfix", "0")), "10.97.1", 1194),
    "openvpn-lz4-mtu1500": Peer(*_OPENVPN, _openvpn(()), "10.97.2", 1195),
    "tinc-lzo": Peer("tincd", "tinc", ("--version",), _tinc, "10.97.3", 655, settle_s=10.0),
    "vtun-lzo": Peer("vtund", "vtun", ("-h",), _vtun, "10.97.4", 5000),
}
"""Every peer by its name in ``--peers``."""


def missing(peer: Peer) -> str | None:
    """Return what to install for this peer, or None if it is installed."""
    return None if peer.path() is not None else f"{peer.program} is not installed: install the package {peer.package}"


class Tunnel:
    """A running tunnel.

    Attributes:
        address: address of n1 in the tunnel.
        pids: pids of both ends.
    """

    def __init__(self, peer: Peer, folder: Path, ends: dict[int, subprocess.Popen[bytes]]) -> None:
        """Describe the processes ``ends``, by node; ``folder`` holds their logs."""
        self.address = peer.address(1)
        self.pids = [process.pid for process in ends.values()]
        self._folder = folder
        self._ends = ends

    def state(self) -> str:
        """Say whether both ends run and what they said last."""
        said = []
        for own, process in sorted(self._ends.items()):
            runs = "runs" if process.poll() is None else f"ended with {process.returncode}"
            lines = _log_path(self._folder, own).read_text(errors="replace").strip().splitlines()
            said.append(f"n{own} {runs}" + (f", {lines[-1].strip()!r}" if lines else ""))
        return "; ".join(said)


@contextlib.contextmanager
def tunnel(bed: Testbed, peer: Peer) -> Iterator[Tunnel]:
    """Run a tunnel between n0 and n1; its processes are gone afterwards.

    The caller finds out whether the tunnel comes up: ends that cannot reach each other go on trying.

    Args:
        bed: a running testbed of plain nodes.
        peer: one of :data:`PEERS`.

    Raises:
        TestbedError: the peer is not installed, or its files cannot be made.
    """
    folder = bed.make_scratch()
    argvs = peer.recipe(peer, bed, folder)
    with contextlib.ExitStack() as stack:
        ends: dict[int, subprocess.Popen[bytes]] = {}
        for own in (1, 0):  # first the end that waits for the other one
            log = stack.enter_context(_log_path(folder, own).open("wb"))
            ends[own] = bed.popen(
                own, argvs[own], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(_end, ends[own])
        time.sleep(peer.settle_s)
        yield Tunnel(peer, folder, ends)


def _log_path(folder: Path, own: int) -> Path:
    return folder / f"log{own}"


def _ip_lines(own: int, peer: Peer, device: str, program: str) -> str:
    return "\n".join(
        f"{program} {words}".strip()
        for words in (f"link set {device} up mtu {SMALL_MTU}", f"addr add {peer.address(own)}/24 dev {device}")
    )


def _which(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=SYSTEM_PATH)


def _need(program: str) -> str:
    path = _which(program)
    if path is None:
        raise TestbedError(f"the program {program} is missing")
    return path


def _run(argv: Argv) -> None:
    done = subprocess.run(argv, input=b"\n\n\n\n", capture_output=True)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise TestbedError(f"{Path(argv[0]).name} ended with {done.returncode}{': ' + words[-1] if words else ''}")


def _end(process: subprocess.Popen[bytes]) -> None:
    # Its group: vtund's server has a child per session.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
