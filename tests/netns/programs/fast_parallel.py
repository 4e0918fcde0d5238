"""Open many tagged connections at once and count those that cross raw: ``fast_parallel.py --count 2000``.

It prints a JSON line per round. A connection is raw if no value of its second half arrived as the codec makes it.
"""

import argparse
import contextlib
import errno
import json
import resource
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from netoffload.codec import get
from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, socket_on
from tests.netns.programs.foreign_streams import gradient
from tests.shared.beds import built, counters

PORT: Final = 7800
FLOATS: Final = 5000
LIMIT_S: Final = 60.0
DESCRIPTORS: Final = 16_384


@dataclass
class End:
    """One end of a connection: what it has still to write, or what it has read."""

    sock: socket.socket
    left: memoryview | None
    got: bytearray = field(default_factory=bytearray)


def run_round(bed: Testbed, count: int, in_progress: int, port: int, octets: bytes) -> list[bytes]:
    """Open connections, write the same octets into each, and return what each of them brought."""
    source, sink = bed.plan.nodes[:2]
    arrived: list[bytes] = []
    until_s = time.monotonic() + LIMIT_S
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        listening = stack.enter_context(socket_on(sink, TAGGED))
        listening.bind((sink.address, port))
        listening.listen(4096)
        listening.setblocking(False)
        selector.register(listening, selectors.EVENT_READ)
        begun = opening = 0
        while len(arrived) < count and time.monotonic() < until_s:
            while begun < count and opening < in_progress:
                near = stack.enter_context(socket_on(source, TAGGED))
                near.setblocking(False)
                if near.connect_ex((sink.address, port)) not in (0, errno.EINPROGRESS):
                    raise OSError("a connection cannot begin")
                selector.register(near, selectors.EVENT_WRITE, End(near, memoryview(octets)))
                begun, opening = begun + 1, opening + 1
            for key, _ in selector.select(0.1):
                if key.data is None:
                    accept_all(listening, selector, stack)
                elif key.data.left is not None:
                    opening -= len(key.data.left) == len(octets)
                    write(key.data, selector)
                elif read(key.data, selector):
                    arrived.append(bytes(key.data.got))
    return arrived


def accept_all(listening: socket.socket, selector: selectors.BaseSelector, stack: contextlib.ExitStack) -> None:
    """Accept what waits."""
    with contextlib.suppress(BlockingIOError):
        while True:
            far = stack.enter_context(listening.accept()[0])
            far.setblocking(False)
            selector.register(far, selectors.EVENT_READ, End(far, None))


def write(end: End, selector: selectors.BaseSelector) -> None:
    """Write what fits; behind the last octet, end the stream."""
    assert end.left is not None
    end.left = end.left[end.sock.send(end.left) :]
    if not end.left:
        selector.unregister(end.sock)
        end.sock.shutdown(socket.SHUT_WR)


def read(end: End, selector: selectors.BaseSelector) -> bool:
    """Read what is there; say whether the stream has ended."""
    octets = end.sock.recv(262_144)
    end.got += octets
    if not octets:
        selector.unregister(end.sock)
    return not octets


def main() -> int:
    """Run the command line; the exit code is 1 if a connection crossed raw, or did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--in-progress", type=int, default=0, help="handshakes at a time; 0: all at once")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    sent = gradient(FLOATS)
    wanted = get("inceptionn").round_trip(sent, 10).view(np.uint32)
    exact = sent.view(np.uint32)
    total = 0
    with built() as bed:
        for number in range(args.rounds):
            since_s = time.monotonic()
            arrived = run_round(bed, args.count, args.in_progress or args.count, PORT + number, sent.tobytes())
            words = [np.frombuffer(got, np.uint32) for got in arrived if len(got) == sent.nbytes]
            halves = [got[FLOATS // 2 :] for got in words]
            raw = sum(bool((half == exact[FLOATS // 2 :]).all()) for half in halves)
            torn = sum(bool(((got != exact) & (got != wanted)).any()) for got in words)
            missing = args.count - len(words)
            total += raw + torn + missing
            without_offer = [counters(bed, node)["bypass_syn"] for node in (0, 1)]
            row = {"count": args.count, "raw": raw, "torn": torn, "missing": missing, "bypass_syn": without_offer}
            print(json.dumps(row | {"elapsed_s": round(time.monotonic() - since_s, 2)}), flush=True)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
