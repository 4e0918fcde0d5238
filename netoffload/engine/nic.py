"""One NIC: all that the engine remembers, and the four calls that move frames through it.

::

    from_host   a frame of the host    -> frames in the room for the wire, or the frame itself
    from_wire   a frame of the wire    -> segments that are rebuilt for the host, or the frame itself
    flush       the wire is empty      -> completes the segment that is being rebuilt
    from_clock  after wait_ns          -> a segment that the NIC makes itself, in the room for the wire
    answer      count_questions > 0    -> the ToS of a connection's socket, which the caller asks the kernel (promises)

The daemon's loop, the fuzzers and :mod:`netoffload.engine.pair` call these and nothing below them. Each rebuilt segment
takes the next row of ``NicState.rebuilt``. The caller hands complete rows to the host (:func:`count_rebuilt`,
:func:`row_of`, :func:`forget_rebuilt`), at the latest when :data:`REBUILT_BATCH` of them are complete.

Both directions write the flow table: a SYN from the wire says what its sender decodes. A mutex guards the table.
``from_host`` holds the mutex throughout; ``from_wire`` holds it for a short time, while it notes a frame.
"""

import secrets
from typing import Final

import numpy as np

from netoffload.codec_specs import CodecId
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel, merged_kernel
from netoffload.compiled.syscalls import MUTEX_WORDS, mutex_lock, mutex_unlock
from netoffload.config import BOUND_K_DEFAULT, TOS_COMPRESS, TOS_MASK
from netoffload.engine import lent, network, promises, receive
from netoffload.engine.authentication import make_mac_key
from netoffload.engine.counters import Counter, make_counters
from netoffload.engine.encapsulation import CURSOR_FIELDS, HEADERS_LEN, PART_AT, unwrap
from netoffload.engine.flows import NOT_FOUND, find, key_of, make_flows, reversed_key
from netoffload.engine.pack import MAX_WIRE_FRAMES
from netoffload.engine.state import EngineSettings, NicState
from netoffload.engine.transmit import RANDOM_WORDS, transmit
from netoffload.wire import capability

REBUILT_BATCH: Final = 4
"""How many segments are rebuilt before they are written to the host; this few stay in the processor's cache."""

REBUILT_ROWS: Final = REBUILT_BATCH + 2
"""One frame may complete two segments and begin a third one."""

# Results of from_wire; any other result is the length of a frame that crosses.
TAKEN: Final = -1
"""The frame is part of a segment for the host, or ends here."""
REFUSED: Final = -2
"""The frame is dropped and counted."""

_FIRST: Final = 0
_COUNT: Final = 1


def make_settings(
    codec_id: int = CodecId.INCEPTIONN, bound_k: int = BOUND_K_DEFAULT, mtu: int = 1500, key: bytes | None = None
) -> EngineSettings:
    """Return settings: coalesced blocks in IPComp for segments of ToS 0x28, whatever their ports and sockets.

    ``_replace`` changes the rest. Blocks are signed and checked with ``key``, 32 octets; None: no MAC.
    """
    return EngineSettings(
        codec_id=int(codec_id),
        bound_k=bound_k,
        mtu=np.array([mtu], np.int64),
        per_segment=0,
        in_udp=0,
        bundles=0,
        tag=TOS_COMPRESS,
        tag_mask=TOS_MASK,
        ports=np.zeros((0, 2), np.int64),
        trust=1,
        ways=capability.TAKES_UDP | (capability.WANTS_MAC if key else 0),
        mac_key=make_mac_key(key),
    )


def make_state(
    settings: EngineSettings,
    flows: Int64Array | None = None,
    rebuilt: Uint8Array | None = None,
    random: Int64Array | None = None,
) -> NicState:
    """Return the state of a NIC that has seen nothing.

    Args:
        rebuilt: room for rebuilt segments; default: an array without any alignment.
        random: int64[1 + RANDOM_WORDS], 0 and words of 32 bits; default: drawn from the system.
    """
    return NicState(
        settings=settings,
        flows=make_flows() if flows is None else flows,
        counters=make_counters(),
        lock=np.zeros(MUTEX_WORDS, np.uint64),
        random=_draw_random() if random is None else random,
        agenda=lent.make_agenda(),
        questions=np.zeros(promises.QUESTIONS_LEN, np.int64),
        spans=np.zeros((MAX_WIRE_FRAMES, 2), np.int64),
        classes=np.zeros(4, np.int64),
        cursor=np.zeros(CURSOR_FIELDS, np.int64),
        headers=np.zeros(HEADERS_LEN, np.uint8),
        pending=np.zeros(receive.PENDING_FIELDS, np.int64),
        rebuilt=np.zeros((REBUILT_ROWS, receive.HOST_SEGMENT_LEN), np.uint8) if rebuilt is None else rebuilt,
        rebuilt_lens=np.zeros(REBUILT_ROWS, np.int64),
        rebuilt_rows=np.zeros(2, np.int64),
    )


def _draw_random() -> Int64Array:
    words = np.frombuffer(secrets.token_bytes(8 * (1 + RANDOM_WORDS)), np.int64) & 0xFFFFFFFF
    words[0] = 0
    return words


@merged_kernel
def from_host(nic: NicState, frame: Uint8Array, length: int, now_ns: int, wire: Uint8Array) -> int:
    """Take one frame of the host; return how many wire frames it became (0: it is dropped), or ``transmit.FORWARD``.

    Args:
        frame: uint8, virtio-net header and frame; it may be changed. ``FORWARD``: it crosses, as it lies here.
        wire: uint8[WIRE_BUFFER_LEN], room for the wire frames; ``nic.spans`` says where they are.
    """
    mutex_lock(nic.lock.ctypes.data)
    frames = transmit(nic, frame, length, now_ns, wire)
    mutex_unlock(nic.lock.ctypes.data)
    return frames


@inline_kernel
def wait_ns(nic: NicState, now_ns: int) -> int:
    """Return for how long nothing becomes due, at least 0; -1: nothing becomes due until the host sends a frame."""
    return max(nic.agenda[lent.LOOK_AT_NS] - now_ns, 0) if nic.agenda[lent.LOOK_AT_NS] else -1


@kernel
def from_clock(nic: NicState, now_ns: int, wire: Uint8Array) -> int:
    """Make the next frame that the NIC must send by itself (``lent``); return 1, or 0 where no frame is due.

    ``nic.spans`` says where in ``wire`` the frame is.
    """
    if wait_ns(nic, now_ns) != 0:
        return 0
    mutex_lock(nic.lock.ctypes.data)
    slot = lent.find_due(nic.agenda, nic.flows, now_ns)
    if slot != NOT_FOUND:
        nic.spans[0, 0] = 0
        nic.spans[0, 1] = lent.send(nic.flows[slot], now_ns, nic.counters, wire)
    mutex_unlock(nic.lock.ctypes.data)
    return int(slot != NOT_FOUND)


@inline_kernel
def release_lent(nic: NicState) -> None:
    """Let :func:`from_clock` send all lent octets now: no other NIC will know them."""
    mutex_lock(nic.lock.ctypes.data)
    lent.release(nic.agenda, nic.flows)
    mutex_unlock(nic.lock.ctypes.data)


@inline_kernel
def next_part(nic: NicState, frame: Uint8Array, length: int) -> int:
    """Find the next part of a frame of the wire; return its length, negative behind the last one.

    A part is the frame itself, or one block of a bundle. :func:`from_wire` takes ``frame[part_at(nic):]``.
    """
    return unwrap(frame, length, nic.cursor, nic.headers, nic.counters)


@inline_kernel
def part_at(nic: NicState) -> int:
    """Return where the part starts."""
    return nic.cursor[PART_AT]


@merged_kernel
def from_wire(nic: NicState, frame: Uint8Array, length: int, now_ns: int) -> int:
    """Take one part of a frame of the wire; return the length of a frame that crosses, ``TAKEN`` or ``REFUSED``.

    The caller hands over all complete segments before a frame that crosses.

    Args:
        frame: uint8 with DECODE_SLACK octets of room behind it; a frame that crosses is left here, perhaps changed.
    """
    ip_len = network.find_ip_len(frame, length)
    if not receive.is_ours(frame, length, ip_len):
        slot = NOT_FOUND
        if network.is_tcp(frame, length, ip_len):
            slot = find(nic.flows, reversed_key(key_of(frame, ip_len, network.IP_AT + ip_len)))
        mutex_lock(nic.lock.ctypes.data)
        left = receive.note_frame(nic, frame, length, ip_len, slot, now_ns)
        mutex_unlock(nic.lock.ctypes.data)
        if left < 0:
            return TAKEN
        flush(nic)
        return left
    if receive.is_runt(frame, length, ip_len):
        nic.counters[Counter.DROP_RUNT] += 1
        return REFUSED
    block = receive.find_block(frame, ip_len)
    slot = receive.sender_of(nic, frame, block)
    if slot == NOT_FOUND:
        return REFUSED
    flow = nic.flows[slot]
    mutex_lock(nic.lock.ctypes.data)
    receive.note_block(nic, frame, block, flow, now_ns)
    mutex_unlock(nic.lock.ctypes.data)
    if not receive.continues(frame, block, nic.pending, nic.rebuilt[row_of(nic, count_rebuilt(nic))]):
        flush(nic)
    host = nic.rebuilt[row_of(nic, count_rebuilt(nic))]
    if receive.take(nic, frame, block, flow, host):
        flush(nic)
    return TAKEN


@inline_kernel
def flush(nic: NicState) -> None:
    """Complete the segment that is being rebuilt, if there is one."""
    row = row_of(nic, nic.rebuilt_rows[_COUNT])
    length = receive.finish(nic.counters, nic.pending, nic.rebuilt[row])
    nic.rebuilt_lens[row] = length
    nic.rebuilt_rows[_COUNT] += int(length > 0)


@inline_kernel
def count_rebuilt(nic: NicState) -> int:
    """Return how many segments are complete."""
    return nic.rebuilt_rows[_COUNT]


@inline_kernel
def row_of(nic: NicState, index: int) -> int:
    """Return the row of complete segment ``index``; the segment that is being rebuilt has the index behind the last."""
    return (nic.rebuilt_rows[_FIRST] + index) % REBUILT_ROWS


@inline_kernel
def forget_rebuilt(nic: NicState) -> None:
    """Note that the host has received all complete segments."""
    nic.rebuilt_rows[_FIRST] = row_of(nic, nic.rebuilt_rows[_COUNT])
    nic.rebuilt_rows[_COUNT] = 0
