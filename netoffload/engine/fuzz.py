"""Random, damaged and good frames into both directions of the engine, in memory that ends where the contract says.

::

    frame        no page | ......... virtio-net header and frame | 64 octets of slack | no page
    wire, host   no page | ......... exactly the room that transmit or receive asks for | no page

A bundle has as many outcomes as blocks, and one more if the rest of it is dropped.

Every frame starts as one of :mod:`netoffload.engine.samples` and is damaged (:mod:`netoffload.engine.damage`). Whatever
comes of it, exactly one counter says so: a frame crosses, is compressed, is merged into a segment, or is dropped for a
reason. Blocks that transmit makes are given to receive, and must be taken.

Batches are numbered and their content depends on the seed and the number alone, so a failure can be seen again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec import CODECS
from netoffload.codec.bursts import DECODE_SLACK
from netoffload.compiled.arrays import Int64Array
from netoffload.compiled.guarded import guarded_octets
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import copy_octets
from netoffload.compiled.pool import in_order
from netoffload.config import BOUND_K_MAX, TOS_COMPRESS, TOS_MASK
from netoffload.engine import network
from netoffload.engine.authentication import Authenticator
from netoffload.engine.blocks import EngineSettings
from netoffload.engine.counters import Counter, make_counters
from netoffload.engine.damage import (
    FRAME,
    FRAME_ROOM,
    FRAME_SLACK,
    FRAMES_PER_CONNECTION,
    LENGTH,
    damage,
    make_recipes,
)
from netoffload.engine.encapsulation import (
    CURSOR_FIELDS,
    FRAME_AT,
    FRAME_LEN,
    HEADERS_LEN,
    is_bundle,
    unwrap,
)
from netoffload.engine.flows import FIELDS, JUDGED, KEY_ROW, ROWS, SLOTS
from netoffload.engine.judgement import FLOATS, JUDGED_VERDICT, NOT_FLOATS, UNDECIDED
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import MAX_WIRE_FRAMES
from netoffload.engine.receive import (
    CROSSES,
    DROPPED,
    FLUSH_FIRST,
    HOST_SEGMENT_LEN,
    MERGED_LAST,
    PENDING_FIELDS,
    finish,
    inspect,
    note,
    take,
)
from netoffload.engine.samples import FROM_PEER, HANDSHAKE_STEPS, Samples, make_handshakes, make_samples
from netoffload.engine.transmit import FORWARD, HOST_BUFFER_LEN, RANDOM_WORDS, WIRE_BUFFER_LEN, Room, transmit
from netoffload.errors import RunError, UsageError
from netoffload.wire import capability, tcp
from netoffload.wire.authentication import KEY_LEN

BATCH: Final = 4096
BATCHES_PER_TASK: Final = 32
_MTUS: Final = (68, 576, 1280, 1500, 1500, 9000)
_VERDICTS: Final = (UNDECIDED, NOT_FLOATS, *[FLOATS] * 14)
"""Of connections in turn."""
OUTCOMES: Final = (
    *(counter for counter in Counter if counter.name.startswith("BYPASS")),
    Counter.TX_OFFERS,
    Counter.TX_SEGMENTS,
    Counter.TX_HELD,
    Counter.RX_BYPASS,
    Counter.RX_BLOCKS,
    *(counter for counter in Counter if counter.name.startswith("DROP")),
)
OUTCOME: Final = np.array([counter in OUTCOMES for counter in Counter])
"""One of these grows by one for each frame, whatever it is."""


@dataclass(frozen=True)
class Tally:
    """What became of the frames: how often each outcome's counter grew, by its name."""

    frames: int
    outcomes: dict[str, int]


def fuzz(
    count: int, seed: int = 1, *, jobs: int | None = None, on_progress: Callable[[int], None] = lambda _done: None
) -> Tally:
    """Send ``count`` frames through the engine, over several processes.

    Raises:
        UsageError: nothing to do, or a negative seed.
        RunError: a frame was not accounted for, a result is impossible, or a process crashed.
    """
    if count < 1 or seed < 0:
        raise UsageError(f"{count} frames from seed {seed}: use at least 1, and a seed from 0 on")
    step = BATCH * BATCHES_PER_TASK
    tasks = [(seed, start // BATCH, min(step, count - start)) for start in range(0, count, step)]
    total = make_counters()
    done = 0
    for frames, counters in in_order(fuzz_batches, tasks, jobs):
        done += frames
        total += counters
        on_progress(done)
    return Tally(done, {counter.name.lower(): int(total[counter]) for counter in OUTCOMES if total[counter]})


class Memory(NamedTuple):
    """Everything the engine works on, each part with its end where a page ends.

    Attributes:
        frame: the frame of the moment, at its end.
        wire: what transmit writes.
        spans: where its frames are.
        host: what receive writes.
        pending: the segment being rebuilt.
        flows: flow table.
        random: words for handshakes.
        counters: indexed by ``Counter``.
        gathered: a bundle in one piece.
        cursor: of ``unwrap``.
        headers: of ``unwrap``.
    """

    frame: Any
    wire: Any
    spans: Any
    host: Any
    pending: Any
    flows: Any
    random: Any
    counters: Any
    gathered: Any
    cursor: Any
    headers: Any


def make_memory() -> Memory:
    """Return guarded memory.

    Raises:
        SystemRefusedError: the kernel does not protect the pages.
    """

    def octets(length: int) -> Any:
        return guarded_octets(length)[-length:]

    def words(*shape: int) -> Any:
        return octets(8 * int(np.prod(shape))).view(np.int64).reshape(shape)

    return Memory(
        frame=octets(FRAME_ROOM),
        wire=octets(WIRE_BUFFER_LEN),
        spans=words(MAX_WIRE_FRAMES, 2),
        host=octets(HOST_SEGMENT_LEN),
        pending=words(PENDING_FIELDS),
        flows=words(ROWS, FIELDS),
        random=words(1 + RANDOM_WORDS),
        counters=words(len(Counter)),
        gathered=octets(HOST_BUFFER_LEN),
        cursor=words(CURSOR_FIELDS),
        headers=octets(HEADERS_LEN),
    )


def fuzz_batches(seed: int, first_batch: int, count: int) -> tuple[int, Int64Array]:
    """Send ``count`` frames through the engine in this process; return how many, and the counters.

    Raises:
        RunError: a frame was not accounted for, or a result is impossible.
    """
    memory, samples, handshakes = make_memory(), make_samples(), make_handshakes()
    authenticators = [Authenticator(key) for key in (None, None, None, bytes(KEY_LEN))]
    for number, start in enumerate(range(0, count, BATCH), first_batch):
        rng = np.random.default_rng((seed, number))
        mac = authenticators[number // 8 % 4].words  # behind every combination of what comes below
        codec_ids = [int(codec_id) for codec_id in CODECS]
        settings = EngineSettings(
            codec_id=int(rng.choice(codec_ids)),
            bound_k=int(rng.integers(1, BOUND_K_MAX + 1)),
            mtu=np.array([rng.choice(_MTUS)], np.int64),
            per_segment=number % 2,
            in_udp=number // 2 % 2,
            bundles=number // 4 % 2,
            tag=TOS_COMPRESS,
            tag_mask=TOS_MASK,
            ports=np.zeros((0, 2), np.int64),
            ways=capability.TAKES_UDP,
            tx_mac=mac,
            rx_mac=mac,
        )
        memory.flows[KEY_ROW] = rng.integers(0, 2**62, FIELDS)
        recipes = make_recipes(rng, samples, min(BATCH, count - start))
        memory.frame[:] = rng.integers(0, 256, FRAME_ROOM, np.uint8)
        wrong = _send_all(settings, recipes, samples, handshakes, OUTCOME, memory)
        if wrong >= 0:
            length = int(recipes[wrong, LENGTH])
            frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length : FRAME_ROOM - FRAME_SLACK]
            raise RunError(
                f"seed {seed}, batch {number}, frame {wrong}: not accounted for, or an impossible result; "
                f"{settings}, now {frame.tobytes().hex()}"
            )
    return count, np.array(memory.counters)


@kernel
def _send_all(
    settings: EngineSettings,
    recipes: Any,
    samples: Samples,
    handshakes: Any,
    outcome: Any,
    memory: Memory,
) -> int:
    """Make and send every frame, into both directions; return the first one that went wrong, or -1."""
    for index in range(recipes.shape[0]):
        if index % FRAMES_PER_CONNECTION == 0:
            _connect(settings, handshakes, _VERDICTS[index // FRAMES_PER_CONNECTION % 16], outcome, memory)
        recipe = recipes[index]
        length = recipe[LENGTH]
        frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
        copy_octets(samples.octets[recipe[FRAME]], 0, frame, 0, min(length, samples.lengths[recipe[FRAME]]))
        damage(recipe, frame, length)
        before = _accounted(memory.counters, outcome)
        status = _transmit(settings, frame, length, index, memory)
        if _accounted(memory.counters, outcome) != before + 1 or not _come_back(settings, status, outcome, memory):
            return index
        if not _receive(settings, frame, length, outcome, memory):
            return index
    return -1


@inline_kernel
def _connect(settings: Any, handshakes: Any, verdict: Any, outcome: Any, memory: Any) -> None:
    """Forget all flows and let the host connect, over both families, to a peer that decodes everything.

    The blocks of the samples have no nonce, and so has what the host sends to itself. The stream has its ``verdict``
    already. A SYN of the peer makes the table its own as well, so that blocks may come back.
    """
    memory.flows[:KEY_ROW] = 0
    memory.random[:] = 0
    length = handshakes.shape[2]
    frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
    for index in range(handshakes.shape[1]):
        for step in range(HANDSHAKE_STEPS):
            copy_octets(handshakes[step, index], 0, frame, 0, length)
            if step == FROM_PEER:
                _receive(settings, frame, length, outcome, memory)
            else:
                _transmit(settings, frame, length, 0, memory)
    memory.flows[:SLOTS, JUDGED + JUDGED_VERDICT] = verdict


@inline_kernel
def _accounted(counters: Any, outcome: Any) -> Any:
    total = 0
    for counter in range(counters.size):
        if outcome[counter]:
            total += counters[counter]
    return total


@inline_kernel
def _receive(settings: Any, frame: Any, length: Any, outcome: Any, memory: Any) -> Any:
    """Give a frame to receive as the loop does; return whether all that was in it is accounted for, once."""
    memory.cursor[:] = 0
    first = before = _accounted(memory.counters, outcome)
    while unwrap(frame, length, memory.cursor, memory.headers, memory.counters):
        at, part_len = memory.cursor[FRAME_AT], memory.cursor[FRAME_LEN]
        if at < 0 or at + part_len > length:
            return False
        is_possible = _receive_part(settings, frame[at:], part_len, memory)
        if _accounted(memory.counters, outcome) != before + 1 or not is_possible:
            return False
        before += 1
    after = _accounted(memory.counters, outcome)  # one more where the rest of a bundle was dropped
    return first < after <= before + 1


@inline_kernel
def _transmit(settings: Any, frame: Any, length: Any, now_ns: Any, memory: Any) -> Any:
    room = Room(memory.wire, memory.spans, memory.random)
    return transmit(settings, frame, length, now_ns, memory.flows, memory.counters, room)


@inline_kernel
def _receive_part(settings: Any, frame: Any, length: Any, memory: Any) -> Any:
    """Take one frame or block as the loop does; return whether what became of it is possible."""
    kind = inspect(settings, frame, length, memory.flows, memory.counters, memory.pending)
    if kind == DROPPED:
        return True
    noted = note(settings, frame, length, 0, memory.flows, memory.counters, memory.pending)
    if kind == CROSSES:
        return -1 <= noted <= length
    status = take(frame, length, memory.flows, memory.counters, memory.pending, memory.host)
    if status == FLUSH_FIRST:
        finish(memory.counters, memory.pending, memory.host)
        status = take(frame, length, memory.flows, memory.counters, memory.pending, memory.host)
    if status == MERGED_LAST:
        return 0 < finish(memory.counters, memory.pending, memory.host) <= HOST_SEGMENT_LEN
    return status != FLUSH_FIRST


@inline_kernel
def _come_back(settings: Any, frames: Any, outcome: Any, memory: Any) -> Any:
    """Whether the wire frames of one transmit lie in their buffer, and receive takes every block."""
    if frames == FORWARD or frames == 0:
        return True
    if not 0 < frames <= MAX_WIRE_FRAMES:
        return False
    for index in range(frames):
        start, length = memory.spans[index, 0], memory.spans[index, 1]
        if start < 0 or length < 0 or start + length > WIRE_BUFFER_LEN - DECODE_SLACK:
            return False
    if is_bundle(memory.wire, memory.spans, frames):
        return _takes_blocks(settings, memory.gathered, _gather(frames, memory), frames, outcome, memory)
    for index in range(frames):
        start, length = memory.spans[index, 0], memory.spans[index, 1]
        wire = memory.wire[start:]
        if length < IP_AT:
            return False
        if network.get_protocol(wire, network.find_ip_len(wire, length)) == tcp.PROTO_TCP:
            continue  # a SYN with the word
        if not _takes_blocks(settings, wire, length, 1, outcome, memory):
            return False
    return True


@inline_kernel
def _gather(pieces: Any, memory: Any) -> Any:
    """Put a bundle together, as the kernel does; return its length."""
    length = 0
    for index in range(pieces):
        copy_octets(memory.wire, memory.spans[index, 0], memory.gathered, length, memory.spans[index, 1])
        length += memory.spans[index, 1]
    return length


@inline_kernel
def _takes_blocks(settings: Any, frame: Any, length: Any, blocks: Any, outcome: Any, memory: Any) -> Any:
    """Whether receive takes all blocks of a frame that transmit has made, unless a SYN ended the way back."""
    before = memory.counters[Counter.RX_BLOCKS] + memory.counters[Counter.DROP_UNKNOWN_FLOW]
    is_accounted = _receive(settings, frame, length, outcome, memory)
    after = memory.counters[Counter.RX_BLOCKS] + memory.counters[Counter.DROP_UNKNOWN_FLOW]
    return is_accounted and after == before + blocks
