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
from netoffload.codec.guarded import guarded_octets
from netoffload.codec.jit import inline_kernel, kernel
from netoffload.codec.octets import copy_octets
from netoffload.codec.pool import in_order
from netoffload.config import BOUND_K_MAX
from netoffload.engine import network
from netoffload.engine.blocks import TransmitSettings
from netoffload.engine.counters import Counter, Int64Array, make_counters
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
from netoffload.engine.flows import make_flows
from netoffload.engine.network import IP_AT
from netoffload.engine.receive import (
    FLUSH_FIRST,
    FORWARD_SHORTER,
    HOST_SEGMENT_LEN,
    MERGED_LAST,
    PENDING_FIELDS,
    finish,
    receive,
)
from netoffload.engine.samples import Samples, make_handshakes, make_samples
from netoffload.engine.transmit import FORWARD, HOST_BUFFER_LEN, MAX_WIRE_FRAMES, WIRE_BUFFER_LEN, transmit
from netoffload.errors import RunError, UsageError
from netoffload.wire import tcp
from netoffload.wire.capability import OPTION_LEN

BATCH: Final = 4096
BATCHES_PER_TASK: Final = 32
_MTUS: Final = (68, 576, 1280, 1500, 1500, 9000)
OUTCOMES: Final = (
    *(counter for counter in Counter if counter.name.startswith("BYPASS")),
    Counter.TX_OFFERS,
    Counter.TX_SEGMENTS,
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
        tx_flows: transmit flow table.
        rx_flows: receive flow table.
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
    tx_flows: Any
    rx_flows: Any
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
        tx_flows=words(*make_flows().shape),
        rx_flows=words(*make_flows().shape),
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
    for number, start in enumerate(range(0, count, BATCH), first_batch):
        rng = np.random.default_rng((seed, number))
        codec_ids = [int(codec_id) for codec_id in CODECS]
        settings = TransmitSettings(
            codec_id=int(rng.choice(codec_ids)),
            bound_k=int(rng.integers(1, BOUND_K_MAX + 1)),
            mtu=int(rng.choice(_MTUS)),
            per_segment=number % 2,
            in_udp=number // 2 % 2,
            bundles=number // 4 % 2,
        )
        recipes = make_recipes(rng, samples, min(BATCH, count - start))
        memory.frame[:] = rng.integers(0, 256, FRAME_ROOM, np.uint8)
        wrong = _send_all(settings, recipes, samples, *handshakes, OUTCOME, memory)
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
    settings: TransmitSettings,
    recipes: Any,
    samples: Samples,
    syns: Any,
    answers: Any,
    outcome: Any,
    memory: Memory,
) -> int:
    """Make and send every frame, into both directions; return the first one that went wrong, or -1."""
    for index in range(recipes.shape[0]):
        if index % FRAMES_PER_CONNECTION == 0:
            _connect(settings, syns, answers, outcome, memory)
        recipe = recipes[index]
        length = recipe[LENGTH]
        frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
        copy_octets(samples.octets[recipe[FRAME]], 0, frame, 0, min(length, samples.lengths[recipe[FRAME]]))
        damage(recipe, frame, length)
        before = _accounted(memory.counters, outcome)
        status = transmit(settings, frame, length, index, memory.tx_flows, memory.counters, memory.wire, memory.spans)
        if _accounted(memory.counters, outcome) != before + 1 or not _come_back(status, outcome, memory):
            return index
        if not _receive(frame, length, outcome, memory):
            return index
    return -1


@inline_kernel
def _connect(settings: Any, syns: Any, answers: Any, outcome: Any, memory: Any) -> None:
    """Forget all flows and let the host connect, over both families, to a peer that decodes everything."""
    memory.tx_flows[:] = 0
    memory.rx_flows[:] = 0
    for index in range(syns.shape[0]):
        length = syns.shape[1]
        frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
        copy_octets(syns[index], 0, frame, 0, length)
        transmit(settings, frame, length, 0, memory.tx_flows, memory.counters, memory.wire, memory.spans)
        copy_octets(answers[index], 0, frame, 0, length)
        _receive(frame, length, outcome, memory)


@inline_kernel
def _accounted(counters: Any, outcome: Any) -> Any:
    total = 0
    for counter in range(counters.size):
        if outcome[counter]:
            total += counters[counter]
    return total


@inline_kernel
def _receive(frame: Any, length: Any, outcome: Any, memory: Any) -> Any:
    """Give a frame to receive as the loop does; return whether all that was in it is accounted for, once."""
    memory.cursor[:] = 0
    first = before = _accounted(memory.counters, outcome)
    while unwrap(frame, length, memory.cursor, memory.headers, memory.counters):
        at, part_len = memory.cursor[FRAME_AT], memory.cursor[FRAME_LEN]
        if at < 0 or at + part_len > length:
            return False
        status = _receive_part(frame[at:], part_len, memory)
        if _accounted(memory.counters, outcome) != before + 1 or not _is_possible(status, part_len, memory):
            return False
        before += 1
    after = _accounted(memory.counters, outcome)  # one more where the rest of a bundle was dropped
    return first < after <= before + 1


@inline_kernel
def _receive_part(frame: Any, length: Any, memory: Any) -> Any:
    """What is pending goes first where receive says so."""
    status = receive(frame, length, 0, memory.tx_flows, memory.rx_flows, memory.counters, memory.pending, memory.host)
    if status == FLUSH_FIRST:
        finish(memory.counters, memory.pending, memory.host)
        status = receive(
            frame, length, 0, memory.tx_flows, memory.rx_flows, memory.counters, memory.pending, memory.host
        )
    return status


@inline_kernel
def _is_possible(status: Any, length: Any, memory: Any) -> Any:
    """Whether receive may say this; a segment that is complete is taken out."""
    if status == FLUSH_FIRST or (status == FORWARD_SHORTER and length <= OPTION_LEN):
        return False
    if status == MERGED_LAST:
        return 0 < finish(memory.counters, memory.pending, memory.host) <= HOST_SEGMENT_LEN
    return True


@inline_kernel
def _come_back(frames: Any, outcome: Any, memory: Any) -> Any:
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
        return _takes_blocks(memory.gathered, _gather(frames, memory), frames, outcome, memory)
    for index in range(frames):
        start, length = memory.spans[index, 0], memory.spans[index, 1]
        wire = memory.wire[start:]
        if length < IP_AT:
            return False
        if network.get_protocol(wire, network.find_ip_len(wire, length)) == tcp.PROTO_TCP:
            continue  # a SYN with the word
        if not _takes_blocks(wire, length, 1, outcome, memory):
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
def _takes_blocks(frame: Any, length: Any, blocks: Any, outcome: Any, memory: Any) -> Any:
    """Whether receive takes all blocks of a frame that transmit has made."""
    before = memory.counters[Counter.RX_BLOCKS]
    return _receive(frame, length, outcome, memory) and memory.counters[Counter.RX_BLOCKS] == before + blocks
