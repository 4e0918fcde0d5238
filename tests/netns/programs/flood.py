"""Fill a NIC's flow table as an unprivileged user, then connect with a tag: ``flood.py --kinds reset ...``.

Kinds:

reset         the peer, with a NIC, resets each connection after the handshake
reset-no-nic  so does a host without a NIC
expire        the peer's frames are lost after the handshake, and each connection times out
expire-no-nic the same towards a host without a NIC
spray         connections to open and closed ports and to a silent host for --seconds, while a tagged stream flows

Behind each kind the program opens new tagged connections and says how much of their octets crossed the wire. It sends
only inside namespaces that it made, and prints a JSON line per kind.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, connected
from tests.netns.programs.foreign_streams import gradient
from tests.netns.programs.third_host import HOST_ADDRESS, SILENT_ADDRESS, third_host
from tests.shared.beds import built
from tests.soak import run_nft

WORKER = str(Path(__file__).with_name("flood_worker.py"))
KINDS = ("reset", "reset-no-nic", "expire", "expire-no-nic", "spray")
PORT = 7000
WAIT_S = 60.0
EXPIRE_BATCH = 2000
NEW_CONNECTIONS = 5
NEW_FLOATS = 200_000
LOOK_OCTETS = 200_000

DROP_FROM_PORT = """
add table bridge flood
add chain bridge flood f {{ type filter hook forward priority 0; }}
add rule bridge flood f ip protocol tcp tcp sport {port} counter drop
"""


class Flood:
    """A testbed of two nodes with NICs and a host without one."""

    def __init__(self, bed: Testbed, plain_netns: str) -> None:
        self.bed, self._plain_netns = bed, plain_netns
        self._ports = iter(range(PORT, 60_000))

    def resets(self, count: int, *, has_nic: bool) -> dict[str, object]:
        """Let a peer reset ``count`` connections of n0."""
        port = next(self._ports)
        with self._listener("listen", port, has_nic) as address:
            return self._connect("reset", address, port, count)

    def expiries(self, count: int, *, has_nic: bool) -> dict[str, object]:
        """Let ``count`` connections of n0 time out, some at a time."""
        outcomes: dict[str, int] = {}
        for first in range(0, count, EXPIRE_BATCH):
            port = next(self._ports)
            with self._listener("hold", port, has_nic) as address:
                found = self._connect("expire", address, port, min(EXPIRE_BATCH, count - first), silence=port)
            for name, number in found["outcomes"].items():
                outcomes[name] = outcomes.get(name, 0) + number
        return {"outcomes": outcomes}

    def spray(self, seconds: float, count: int) -> dict[str, object]:
        """Begin connections while a tagged stream flows; return the stream's shares on the wire.

        The flood lasts for at least ``seconds``, and until the stream was looked at more often than once a second.
        """
        port = next(self._ports)
        shares: list[float] = []
        with (
            self._listener("listen", port, has_nic=True) as address,
            self._worker(0, ["spray", address, str(port), str(count), "0", SILENT_ADDRESS]) as worker,
            StreamOnWire(self.bed, next(self._ports)) as stream,
        ):
            stream.send(100_000)  # the verdict lies behind
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s or len(shares) <= seconds:
                shares.append(stream.send(LOOK_OCTETS))
            assert worker.stdin is not None
            worker.stdin.close()
            found = read_answer(worker)
        return {**found, "share_on_wire_max": round(max(shares), 3), "looks": len(shares)}

    def new_connections(self) -> list[float]:
        """Return for some new tagged connections the share of their octets that crossed n0's wire."""
        shares = []
        for _ in range(NEW_CONNECTIONS):
            with StreamOnWire(self.bed, next(self._ports)) as stream:
                shares.append(round(stream.send(4 * NEW_FLOATS), 3))
        return shares

    def _connect(self, kind: str, address: str, port: int, count: int, silence: int = 0) -> dict[str, Any]:
        with self._worker(0, [kind, address, str(port), str(count), str(WAIT_S), "-"]) as worker:
            if silence:
                assert worker.stdout is not None
                assert worker.stdin is not None
                assert worker.stdout.readline() == "ready\n"
                with silent_port(self.bed.plan.switch_netns, silence):
                    worker.stdin.write("go\n")
                    worker.stdin.flush()
                    return read_answer(worker)
            return read_answer(worker)

    @contextlib.contextmanager
    def _listener(self, kind: str, port: int, has_nic: bool) -> Iterator[str]:
        address = self.bed.plan.nodes[1].address if has_nic else HOST_ADDRESS
        with self._worker(1 if has_nic else None, [kind, address, str(port), "0", "0", "-"]) as worker:
            assert worker.stdout is not None
            assert worker.stdin is not None
            assert worker.stdout.readline() == "ready\n"
            yield address
            worker.stdin.close()
            worker.wait(WAIT_S)

    @contextlib.contextmanager
    def _worker(self, node_index: int | None, words: list[str]) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, WORKER, *words]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        if node_index is None:
            process = subprocess.Popen(["ip", "netns", "exec", self._plain_netns, *command], **pipes)
        else:
            process = self.bed.popen(node_index, command, **pipes)
        with process:
            try:
                yield process
            finally:
                process.kill()


def read_answer(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a worker says at its end."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"the worker ended with exit code {worker.wait(WAIT_S)}")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.contextmanager
def silent_port(switch_netns: str, port: int) -> Iterator[None]:
    """Lose every TCP segment from a port in the switch."""
    run_nft(switch_netns, DROP_FROM_PORT.format(port=port))
    try:
        yield
    finally:
        run_nft(switch_netns, "delete table bridge flood\n")


class StreamOnWire:
    """A tagged connection from n0 to n1, and what of it crosses the switch: plain segments of its ports, and blocks."""

    def __init__(self, bed: Testbed, port: int) -> None:
        self._bed, self._port = bed, port
        self._stack = contextlib.ExitStack()
        self._values = gradient(250_000).tobytes()

    def __enter__(self) -> Self:
        """Connect and count."""
        self._near, self._far = self._stack.enter_context(connected(self._bed, self._port, (TAGGED, TAGGED)))
        rules = "add table bridge stream\nadd chain bridge stream f { type filter hook forward priority 10; }\n"
        for match in (f"tcp dport {self._port}", "udp dport 61736", "ip protocol 108"):
            rules += f"add rule bridge stream f ip saddr {self._bed.plan.nodes[0].address} {match} counter\n"
        run_nft(self._bed.plan.switch_netns, rules)
        self._wire_octets = self._on_wire()
        self._stack.callback(run_nft, self._bed.plan.switch_netns, "delete table bridge stream\n")
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection and the counters."""
        self._stack.close()

    def send(self, octets: int) -> float:
        """Send octets, wait until all have arrived, and return octets on the wire per octet sent."""
        sending = threading.Thread(target=self._send, args=(octets,))
        sending.start()
        left = octets
        while left:
            part = self._far.recv(min(left, 262_144))
            if not part:
                raise RuntimeError("the stream ended")
            left -= len(part)
        sending.join()
        before_octets, self._wire_octets = self._wire_octets, self._on_wire()
        return (self._wire_octets - before_octets) / octets

    def _send(self, octets: int) -> None:
        view = memoryview(self._values)
        while octets:
            part = view[: min(octets, len(view))]
            self._near.sendall(part)
            octets -= len(part)

    def _on_wire(self) -> int:
        command = ["ip", "netns", "exec", self._bed.plan.switch_netns, "nft", "-j", "list", "table", "bridge", "stream"]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        rules = [entry["rule"]["expr"] for entry in answer["nftables"] if "rule" in entry]
        return sum(part["counter"]["bytes"] for rule in rules for part in rule if "counter" in part)


def measure(flood: Flood, kind: str, args: argparse.Namespace) -> dict[str, object]:
    """Return what one kind of flood did, and what new connections get behind it."""
    since_s = time.monotonic()
    if kind == "spray":
        found = flood.spray(args.seconds, args.open)
    elif kind.startswith("reset"):
        found = flood.resets(args.count, has_nic=kind == "reset")
    else:
        found = flood.expiries(args.count, has_nic=kind == "expire")
    elapsed_s = time.monotonic() - since_s
    time.sleep(args.settle_s)
    shares = flood.new_connections()
    return {"flood": kind, "count": args.count, **found, "elapsed_s": round(elapsed_s, 1), "new_shares_on_wire": shares}


def main() -> int:
    """Run the command line; the exit code is 1 if a tagged connection crosses raw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--count", type=int, default=20_000, help="connections of each kind but spray")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of spray")
    parser.add_argument("--open", type=int, default=5000, help="sockets that spray keeps open")
    parser.add_argument("--settle-s", type=float, default=0.0, help="between a flood and the new connections")
    parser.add_argument("--share-max", type=float, default=0.5, help="of a compressed connection's octets on the wire")
    parser.add_argument("--separate", action="store_true", help="a new testbed for each kind")
    args = parser.parse_args()
    failed = False
    for kinds in [[kind] for kind in args.kinds] if args.separate else [args.kinds]:
        with built() as bed, third_host(bed) as netns:
            flood = Flood(bed, netns)
            for kind in kinds:
                found = measure(flood, kind, args)
                print(json.dumps(found), flush=True)
                shares = [*found["new_shares_on_wire"], found.get("share_on_wire_max", 0.0)]  # type: ignore[misc]
                failed |= max(shares) > args.share_max
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
