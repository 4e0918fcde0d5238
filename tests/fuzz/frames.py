"""Random, damaged and good frames into both directions of the engine, in memory that ends where the contract says.

::

    frame        no page | ......... virtio-net header and frame | 64 octets of slack | no page
    wire, host   no page | ......... exactly the room that transmit or receive asks for | no page

Every frame starts as one of :mod:`tests.fuzz.samples`. A recipe, a row of numbers, damages it: it overwrites octets,
most of them in the headers, falsifies the length field, or moves the end of the frame. In most blocks the CRC is
corrected afterwards, so that the checks behind the CRC are reached too.

Exactly one counter must say what became of a frame: it crosses, is compressed, is merged into a segment, or is dropped
for a reason. A bundle has one outcome per block, and one more if its rest is dropped. Blocks that transmit makes are
given to receive, which must take them.
"""

from typing import Final, NamedTuple

import numpy as np

from netoffload.codec import CODECS
from netoffload.codec.bursts import DECODE_SLACK
from netoffload.codec.kernels import is_lossless
from netoffload.compiled.arrays import BoolArray, Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel, merged_kernel
from netoffload.compiled.octets import be16, copy_octets, put_be16, put_be32
from netoffload.config import BOUND_K_MAX, TOS_MASK
from netoffload.engine import network
from netoffload.engine import nic as engine
from netoffload.engine.authentication import make_mac_key
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.encapsulation import is_bundle
from netoffload.engine.flows import FIELDS, JUDGED, KEY_ROW, PROMISE, SLOTS
from netoffload.engine.judgement import FLOATS, JUDGED_VERDICT, NOT_FLOATS, UNDECIDED
from netoffload.engine.lent import LOOK_AT_NS, REST_WAIT_NS, WINDOW_WAIT_NS
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import MAX_WIRE_FRAMES
from netoffload.engine.promises import BY_SOCKET, NO_SOCKET, REFUSED, UNASKED
from netoffload.engine.receive import HOST_SEGMENT_LEN, PENDING_LEN
from netoffload.engine.state import NicState
from netoffload.engine.sums import crc32c
from netoffload.engine.transmit import FORWARD, HOST_BUFFER_LEN, WIRE_BUFFER_LEN
from netoffload.errors import RunError
from netoffload.wire import encapsulation, ipv4, ipv6, offload, tcp, udp
from netoffload.wire.authentication import KEY_LEN
from tests.fuzz.batches import BATCH, Tally
from tests.fuzz.samples import FROM_PEER, HANDSHAKE_STEPS, ISN, Samples, make_handshakes, make_samples
from tests.shared.guarded import guarded_octets

_MTUS: Final = (68, 576, 1280, 1500, 1500, 9000)
_VERDICTS: Final = (UNDECIDED, NOT_FLOATS, *[FLOATS] * 14)
"""The verdicts that connections get, in turn."""
_PROMISES: Final = (REFUSED, NO_SOCKET, *[BY_SOCKET] * 29, *[UNASKED] * 28)
"""Who promises floats on them, in turn."""
_CLOCK_EVERY: Final = 512
"""Frames between two checks of the segments that the NIC sends by itself; a check goes through the whole table."""
_OWN_FRAME_MAX: Final = IP_AT + 40 + 60 + 3
"""The longest frame that the NIC sends by itself: headers of IPv6 and TCP, and three octets of a float."""
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


FRAMES_PER_CONNECTION: Final = 64
"""Frames until all flows are forgotten and connected anew: damaged SYNs and retransmissions make flows raw."""

STEP: Final = 20_000
"""Octets from one segment of a connection to the next: as long as the longest sample, and whole floats."""

FRAME_SLACK: Final = 64
"""Octets behind a frame that transmit and receive may read (``DECODE_SLACK``)."""

FRAME_ROOM: Final = 1 << 15
WRITES: Final = 4

_BEFORE_TCP_MAX: Final = encapsulation.DATAGRAM_OVERHEAD + offload.OVERHEAD

# Columns of a recipe.
FRAME, LENGTH, _SEQ, _LIE, _MENDS, _AT = range(6)
_BY: Final = _AT + WRITES
_NOTHING: Final = -1


class Memory(NamedTuple):
    """All memory that the engine works on; each part ends where a page ends, so a read behind it crashes."""

    nic: NicState
    frame: Uint8Array
    wire: Uint8Array
    gathered: Uint8Array


def make_memory() -> Memory:
    """Return guarded memory, zeros."""

    def octets(length: int) -> Uint8Array:
        return guarded_octets(length)[-length:]

    plain = engine.make_state(engine.make_settings())
    guarded = (octets(one.nbytes).view(one.dtype).reshape(one.shape) for one in plain[1:])
    return Memory(
        NicState(plain.settings, *guarded), octets(FRAME_ROOM), octets(WIRE_BUFFER_LEN), octets(HOST_BUFFER_LEN)
    )


def fuzz_batches(seed: int, first_batch: int, count: int) -> Tally:
    """Send ``count`` frames through the engine in this process; return by how much each outcome's counter grew."""
    memory, samples, handshakes = make_memory(), make_samples(), make_handshakes()
    mac_keys = [make_mac_key(key) for key in (None, None, None, bytes(KEY_LEN))]
    for number, start in enumerate(range(0, count, BATCH), first_batch):
        rng = np.random.default_rng((seed, number))
        mac_key = mac_keys[number // 8 % 4]  # a new one after all combinations of the options below
        codec_ids = [int(codec_id) for codec_id in CODECS]
        settings = engine.make_settings(
            int(rng.choice(codec_ids)), int(rng.integers(1, BOUND_K_MAX + 1)), int(rng.choice(_MTUS))
        )._replace(per_segment=number % 2, in_udp=number // 2 % 2, bundles=number // 4 % 2, mac_key=mac_key)
        if is_lossless(settings.codec_id):  # then the tag may be any
            settings = settings._replace(tag_mask=0 if number % 3 else TOS_MASK)
        memory = memory._replace(nic=memory.nic._replace(settings=settings))
        memory.nic.flows[KEY_ROW] = rng.integers(0, 2**62, FIELDS)
        recipes = make_recipes(rng, samples, min(BATCH, count - start))
        memory.frame[:] = rng.integers(0, 256, FRAME_ROOM, np.uint8)
        wrong = _send_all(recipes, samples, handshakes, OUTCOME, memory)
        if wrong >= 0:
            length = int(recipes[wrong, LENGTH])
            frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length : FRAME_ROOM - FRAME_SLACK]
            raise RunError(
                f"seed {seed}, batch {number}, frame {wrong}: not accounted for, or an impossible result; "
                f"report this with {settings}, frame {frame.tobytes().hex()}"
            )
    grown = memory.nic.counters
    return Tally({one.name.lower(): int(grown[one]) for one in OUTCOMES if grown[one]})


def make_recipes(rng: np.random.Generator, samples: Samples, count: int) -> Int64Array:
    """Return int64[count, columns], a recipe for each frame."""
    recipes = np.empty((count, _BY + WRITES), np.int64)
    recipes[:, FRAME] = rng.choice(len(samples.lengths), count, p=samples.shares)
    lengths = samples.lengths[recipes[:, FRAME]]
    moved = rng.choice(4, count, p=(0.7, 0.1, 0.1, 0.1))
    ends = (lengths, lengths - rng.integers(0, 8, count), lengths + rng.integers(0, 64, count))
    recipes[:, LENGTH] = np.choose(moved, (*ends, (lengths * rng.random(count)).astype(np.int64)))
    recipes[:, LENGTH] = recipes[:, LENGTH].clip(0, FRAME_ROOM - FRAME_SLACK)
    back = rng.integers(0, 30_000, count) * rng.choice(4, count, p=(0.7, 0.1, 0.1, 0.1))
    recipes[:, _SEQ] = ISN + 1 + np.maximum(np.arange(count) % FRAMES_PER_CONNECTION * STEP - back, 0)
    recipes[rng.random(count) < 0.2, _SEQ] = _NOTHING
    recipes[:, _LIE] = rng.integers(-40, 41, count) * (rng.random(count) < 0.15)
    recipes[:, _MENDS] = rng.random(count) < 0.8
    in_headers = rng.integers(0, 140, (count, WRITES))
    anywhere = rng.integers(0, np.maximum(lengths, 1)[:, None], (count, WRITES))
    at = np.where(rng.random((count, WRITES)) < 0.8, in_headers, anywhere)
    recipes[:, _AT:_BY] = np.where(rng.random((count, WRITES)) < 0.1, at, _NOTHING)
    by = rng.integers(0, 256, (count, WRITES))
    recipes[:, _BY:] = np.where(
        rng.random((count, WRITES)) < 0.3, rng.choice([0, 1, 4, 6, 17, 0x28, 108, 255], by.shape), by
    )
    return recipes


@inline_kernel
def damage(recipe: Int64Array, frame: Uint8Array, length: int) -> None:
    """Damage a good frame as the recipe says."""
    ip_len = network.find_ip_len(frame, length)
    comp_at = _find_block(frame, length, ip_len)
    if recipe[_SEQ] != _NOTHING and ip_len and length >= IP_AT + ip_len + _BEFORE_TCP_MAX + tcp.TCP_MIN_LEN:
        tcp_at = comp_at + offload.TCP_HEADER if comp_at else IP_AT + ip_len
        put_be32(frame, tcp_at + tcp.SEQ, recipe[_SEQ])
    if recipe[_LIE] and ip_len:
        at = IP_AT + (ipv4.TOTAL_LEN if ip_len == ipv4.IPV4_MIN_LEN else ipv6.PAYLOAD_LEN)
        put_be16(frame, at, be16(frame, at) + recipe[_LIE])
    for write in range(WRITES):
        at = recipe[_AT + write]
        if 0 <= at < length:
            frame[at] = recipe[_BY + write]
    ip_len = network.find_ip_len(frame, length)
    comp_at = _find_block(frame, length, ip_len)
    if recipe[_MENDS] and comp_at:
        block_len = network.get_datagram_len(frame, ip_len) - ip_len
        if comp_at != IP_AT + ip_len:
            block_len = be16(frame, comp_at - encapsulation.ENTRY_LEN + encapsulation.BLOCK_LEN_AT)
        if offload.OVERHEAD <= block_len <= length - comp_at:
            put_be32(frame, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
            addresses_len = network.addresses_len(ip_len)
            crc = crc32c(frame, IP_AT + ip_len - addresses_len, addresses_len, 0)
            put_be32(frame, comp_at + offload.CRC, crc32c(frame, comp_at, block_len, crc))


@inline_kernel
def _find_block(frame: Uint8Array, length: int, ip_len: int) -> int:
    """Return where the first block of a frame starts, in IPComp or in UDP; 0 where there is none."""
    if ip_len == 0 or length < IP_AT + ip_len + _BEFORE_TCP_MAX:
        return 0
    protocol = network.get_protocol(frame, ip_len)
    if protocol == offload.PROTO_IPCOMP:
        return IP_AT + ip_len
    return IP_AT + ip_len + encapsulation.DATAGRAM_OVERHEAD if protocol == udp.PROTO_UDP else 0


@kernel
def _send_all(recipes: Int64Array, samples: Samples, handshakes: Uint8Array, outcome: BoolArray, memory: Memory) -> int:
    """Make and send every frame, into both directions; return the number of the first failure, or -1."""
    for index in range(recipes.shape[0]):
        if index % FRAMES_PER_CONNECTION == 0:
            number = index // FRAMES_PER_CONNECTION
            _connect(handshakes, _VERDICTS[number % 16], _PROMISES[number % 59], outcome, memory)
        recipe = recipes[index]
        length = recipe[LENGTH]
        frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
        copy_octets(samples.octets[recipe[FRAME]], 0, frame, 0, min(length, samples.lengths[recipe[FRAME]]))
        damage(recipe, frame, length)
        before = _accounted(memory.nic.counters, outcome)
        status = engine.from_host(memory.nic, frame, length, index, memory.wire)
        if _accounted(memory.nic.counters, outcome) != before + 1 or not _come_back(status, outcome, memory):
            return index
        if not _receive(frame, length, outcome, memory):
            return index
        if index % _CLOCK_EVERY == _CLOCK_EVERY - 1 and not _sends_possible_segments(memory):
            return index
    return -1


@inline_kernel
def _sends_possible_segments(memory: Memory) -> bool:
    """Whether all frames that the NIC sends by itself are TCP segments of a few octets."""
    for now_ns in (REST_WAIT_NS, WINDOW_WAIT_NS, 2 * WINDOW_WAIT_NS):
        memory.nic.agenda[:] = 0
        memory.nic.agenda[LOOK_AT_NS] = 1
        while engine.from_clock(memory.nic, now_ns, memory.wire):
            start, length = memory.nic.spans[0, 0], memory.nic.spans[0, 1]
            if start != 0 or not IP_AT < length <= _OWN_FRAME_MAX:
                return False
            if not network.is_tcp(memory.wire, length, network.find_ip_len(memory.wire, length)):
                return False
    return True


@merged_kernel
def _connect(handshakes: Uint8Array, verdict: int, promise: int, outcome: BoolArray, memory: Memory) -> None:
    """Forget all flows and let the host connect, over both families, to a peer that decodes every codec.

    All nonces are 0, in the samples' blocks and in those that come back. The stream has its ``verdict`` already, and
    its ``promise``. A SYN
    of the peer makes the connection known in the other direction too, so that the NIC accepts its own blocks.
    """
    memory.nic.flows[:KEY_ROW] = 0
    memory.nic.random[:] = 0
    length = handshakes.shape[2]
    frame = memory.frame[FRAME_ROOM - FRAME_SLACK - length :]
    for index in range(handshakes.shape[1]):
        for step in range(HANDSHAKE_STEPS):
            copy_octets(handshakes[step, index], 0, frame, 0, length)
            if step == FROM_PEER:
                _receive(frame, length, outcome, memory)
            else:
                engine.from_host(memory.nic, frame, length, 0, memory.wire)
    memory.nic.flows[:SLOTS, JUDGED + JUDGED_VERDICT] = verdict
    memory.nic.flows[:SLOTS, PROMISE] = promise


@inline_kernel
def _accounted(counters: Counters, outcome: BoolArray) -> int:
    total = 0
    for counter in range(counters.size):
        if outcome[counter]:
            total += counters[counter]
    return total


@kernel
def _receive(frame: Uint8Array, length: int, outcome: BoolArray, memory: Memory) -> bool:
    """Give a frame to receive as the loop does; return whether each of its parts is counted exactly once."""
    nic = memory.nic
    first = before = _accounted(nic.counters, outcome)
    own_len = engine.next_part(nic, frame, length)
    while own_len >= 0:
        at = engine.part_at(nic)
        if at < 0 or at + own_len > length:
            return False
        crossing = engine.from_wire(nic, frame[at:], own_len, 0)
        if _accounted(nic.counters, outcome) != before + 1 or crossing > own_len or not _has_possible_segments(nic):
            return False
        before += 1
        own_len = engine.next_part(nic, frame, length)
    after = _accounted(nic.counters, outcome)  # one more where the rest of a bundle was dropped
    return first < after <= before + 1


@inline_kernel
def _has_possible_segments(nic: NicState) -> bool:
    """Whether the complete segments fit their rows; then forget them, as if the host had received them.

    The next segment is rebuilt in the last row, which ends where the memory ends.
    """
    for index in range(engine.count_rebuilt(nic)):
        if not 0 < nic.rebuilt_lens[engine.row_of(nic, index)] <= HOST_SEGMENT_LEN:
            return False
    engine.forget_rebuilt(nic)
    if nic.pending[PENDING_LEN] == 0:
        nic.rebuilt_rows[0] = engine.REBUILT_ROWS - 1
    return True


@merged_kernel
def _come_back(frames: int, outcome: BoolArray, memory: Memory) -> bool:
    """Whether the wire frames of one transmit lie in their buffer, and receive takes every block."""
    if frames == FORWARD or frames == 0:
        return True
    if not 0 < frames <= MAX_WIRE_FRAMES:
        return False
    for index in range(frames):
        start, length = memory.nic.spans[index, 0], memory.nic.spans[index, 1]
        if start < 0 or length < 0 or start + length > WIRE_BUFFER_LEN - DECODE_SLACK:
            return False
    if is_bundle(memory.wire, memory.nic.spans, frames):
        return _takes_blocks(memory.gathered, _gather(frames, memory), frames, outcome, memory)
    for index in range(frames):
        start, length = memory.nic.spans[index, 0], memory.nic.spans[index, 1]
        wire = memory.wire[start:]
        if length < IP_AT:
            return False
        if network.get_protocol(wire, network.find_ip_len(wire, length)) == tcp.PROTO_TCP:
            continue  # a SYN with a capability word
        if not _takes_blocks(wire, length, 1, outcome, memory):
            return False
    return True


@inline_kernel
def _gather(pieces: int, memory: Memory) -> int:
    """Put a bundle together, as the kernel does; return its length."""
    length = 0
    for index in range(pieces):
        copy_octets(memory.wire, memory.nic.spans[index, 0], memory.gathered, length, memory.nic.spans[index, 1])
        length += memory.nic.spans[index, 1]
    return length


@merged_kernel
def _takes_blocks(frame: Uint8Array, length: int, blocks: int, outcome: BoolArray, memory: Memory) -> bool:
    """Whether receive takes all blocks of a frame that transmit has made, or a damaged SYN has removed their flow."""
    before = memory.nic.counters[Counter.RX_BLOCKS] + memory.nic.counters[Counter.DROP_UNKNOWN_FLOW]
    is_accounted = _receive(frame, length, outcome, memory)
    after = memory.nic.counters[Counter.RX_BLOCKS] + memory.nic.counters[Counter.DROP_UNKNOWN_FLOW]
    return is_accounted and after == before + blocks
