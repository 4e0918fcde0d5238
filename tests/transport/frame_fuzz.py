"""Fuzzed control frames for a watch: what a peer may send after a right hello. Shared by quick and long tests."""

import random
import socket
import struct
from collections.abc import Callable
from contextlib import closing

from netoffload.errors import CollectiveError
from netoffload.transport.messages.frames import Frame, Kind
from netoffload.transport.messages.links import Links, Peer
from netoffload.transport.messages.watch import FIRST_CONTEXT, Watch
from netoffload.transport.rendezvous.agreement import Offer
from netoffload.transport.wiring.lanes import Lane, Listeners

HEADER = struct.Struct("!4sBBHiIQ")
"""As in ``frames``, written anew."""

EXTREMES = (0, 1, 2, 3, 99, 255, 1000, 1001, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**64 - 1)
FRAMES_PER_WATCH = 2000
SENDER = 0


def a_frame(rng: random.Random) -> bytes:
    """A right frame, one with extreme fields, or one with damaged octets."""
    kind = rng.choice(list(Kind))
    tag, context, count = rng.choice((0, 1, 2, 3, 99)), rng.choice((0, 1, 1, 1, 2, 70)), rng.choice((0, 0, 5, 2**30))
    text = "reason" * rng.choice((0, 1, 100)) if kind in (Kind.LOST, Kind.ERROR, Kind.MESSAGE) else ""
    octets = bytearray(Frame(kind, text, tag, count, context).to_octets())
    style = rng.random()
    if style < 0.3:
        fields = list(HEADER.unpack_from(octets))
        at = rng.randrange(1, 7)
        limit = (8, 8, 16, 31, 32, 64)[at - 1]
        fields[at] = rng.choice(EXTREMES) % 2**limit
        octets[: HEADER.size] = HEADER.pack(*fields)
    elif style < 0.6:
        for _ in range(rng.randrange(1, 4)):
            octets[rng.randrange(len(octets))] = rng.randrange(256)
    elif style < 0.65:
        del octets[rng.randrange(len(octets)) :]
    return bytes(octets)


def fuzz(frames: int, seed: int, heard: Callable[[CollectiveError], object]) -> None:
    """Let a watch read fuzzed frames; ``heard`` gets each error. Any other exception is the caller's."""
    rng, done = random.Random(seed), 0
    with closing(Listeners(1, "127.0.0.1")) as listeners, socket.create_server(("127.0.0.1", 0)) as lower:
        ports = dict.fromkeys((False, True), lower.getsockname()[1])
        while done < frames:
            offers = [Offer(address="127.0.0.1", ports=ports) for _ in range(3)]
            links = Links(1, offers, listeners)
            watch = Watch(links, 10.0)
            watch.attach(FIRST_CONTEXT)
            here, there = socket.socketpair()
            here.setblocking(False)
            links.peers[SENDER] = Peer(control=here, wanted={(Lane.CONTROL, 0)})
            with here, there:
                done += _fuzz_one(watch, there, rng, heard)
            watch.release()


def _fuzz_one(
    watch: Watch, there: socket.socket, rng: random.Random, heard: Callable[[CollectiveError], object]
) -> int:
    """Send frames to one watch, which hears all of them although a real one ends at its first error."""
    peer = watch.links.peers[SENDER]
    for _ in range(FRAMES_PER_WATCH):
        there.send(a_frame(rng))
        with watch.changed:
            try:
                watch._read_control(SENDER, peer)
            except CollectiveError as error:
                heard(error)
                peer.incoming.clear()
            peer.has_left = False
            peer.left.clear()
            assert len(peer.incoming) < 2000
            assert len(watch._contexts) < 100
    return FRAMES_PER_WATCH
