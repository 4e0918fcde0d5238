"""A stage that damages frames on their way to the wire, for tests on kernels without netem.

::

    transmit ──► disturb: lose · double · fill in, cut ── flip ──► held frames ──► release: delay · overtake ──►
    sendmmsg

Faults apply to frames as they are on the wire. So the stage first cuts a GSO frame into its segments, and fills in
every checksum that was left to the interface: then the receiver's TCP notices a flipped bit. Order of the stages per
frame: loss, duplication, then for each copy truncation, flip, and the queue.

Bits are flipped, and ends cut off, only behind the Ethernet header of IP datagrams. Ethernet addresses and ARP have no
checksum but the frame check sequence, which neither a veth nor this stage has. A wrong hardware address from a damaged
ARP reply would stop traffic for seconds instead of losing one frame.

The queue is a ring of :data:`HELD_FRAMES` slots. Every frame is due ``delay`` after it came. A frame that is chosen for
reordering lets the next :data:`OVERTAKEN_BY` frames pass, or leaves :data:`OVERTAKE_WAIT_NS` later if none come. When
the ring has no room for another segment of 64 KiB, the loop stops reading the host, as for a busy wire.

Random numbers are xorwow (Marsaglia, Xorshift RNGs, J. Stat. Softw. 8(14), 2003, section 3.1), 32 bits each, in plain
integers. One seed gives one sequence of faults for one sequence of frames. A fault of probability 0 draws no number.
"""

from typing import Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Int64Array, Stretch, Uint8Array, Uint64Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.compiled.octets import be16, be32, copy_octets, load_u16, put_be16, put_be32, store_u16, u8
from netoffload.engine.counters import Counter, Counters
from netoffload.engine.network import IP_AT
from netoffload.engine.pack import MTU_MAX
from netoffload.engine.segment import get_tcp_len
from netoffload.engine.sums import folded, ones_sum
from netoffload.nic_options.faults import PROBABILITIES, FaultSettings
from netoffload.wire import ethernet, ipv4, ipv6, tcp, udp, vnet

HELD_FRAMES: Final = 4096
"""Slots of the queue: at 1 Gb/s and 1500 octets, 50 ms of delay."""

HELD_ROOM: Final = 512
"""The loop reads the host only with this many free slots: a 64 KiB segment at an MSS of 256, each frame doubled."""

OVERTAKEN_BY: Final = 3
"""Frames that overtake a reordered one: TCP takes three duplicate acknowledgements for a loss (RFC 5681)."""
OVERTAKE_WAIT_NS: Final = 1_000_000

_ONE: Final = 1 << 32
_MASK: Final = _ONE - 1

# Fields of one held frame.
_LENGTH: Final = 0
_DUE_NS: Final = 1
_LATE: Final = 2
"""How many frames may still overtake the frame."""
_HELD_FIELDS: Final = 3

# Fields of the queue; each counts frames since the start, and the slot of a frame is ``order[count % slots]``.
_FREED: Final = 0
_HEAD: Final = 1
"""The first frame that is not released; frames from ``_FREED`` up to here are on their way to the wire."""
_TAIL: Final = 2
_QUEUE_FIELDS: Final = 3


class FaultPlan(NamedTuple):
    """:class:`~netoffload.nic_options.faults.FaultSettings` for compiled code: a probability p is p * 2**32."""

    is_on: int
    loss: int
    dup: int
    reorder: int
    flip: int
    truncate: int
    delay_ns: int


class Held(NamedTuple):
    """The queue."""

    octets: Uint8Array  # uint8[slots, room], with their virtio-net headers
    frames: Int64Array  # int64[slots, 3]: length, due time, and how many frames may still overtake it
    order: Int64Array  # int64[slots], a permutation of the slots
    queue: Int64Array  # int64[3]
    random: Int64Array  # int64[6], the generator's state


def make_plan(settings: FaultSettings) -> FaultPlan:
    """Return ``settings`` in the form that the compiled stage takes."""
    chances = {name: round(getattr(settings, name) * _ONE) for name in PROBABILITIES}
    return FaultPlan(is_on=int(settings.is_on), delay_ns=settings.delay_ns, **chances)


def make_held(settings: FaultSettings, mtu: int) -> Held:
    """Return an empty queue with room for any MTU that the wire may get later; one slot without faults."""
    slots = HELD_FRAMES if settings.is_on else 1
    mtu = max(mtu, MTU_MAX)  # unused pages take no memory
    return Held(
        octets=np.zeros((slots, vnet.VNET_LEN + ethernet.ETHERNET_LEN + mtu + 64), np.uint8),
        frames=np.zeros((slots, _HELD_FIELDS), np.int64),
        order=np.arange(slots, dtype=np.int64),
        queue=np.zeros(_QUEUE_FIELDS, np.int64),
        random=np.random.SeedSequence(settings.seed).generate_state(6, np.uint32).astype(np.int64),
    )


@inline_kernel
def has_room(held: Held) -> bool:
    """Whether another segment of 64 KiB fits, even if every frame is doubled."""
    return held.order.size - (held.queue[_TAIL] - held.queue[_FREED]) >= HELD_ROOM


@kernel
def disturb(
    plan: FaultPlan, frame: Uint8Array, at: int, length: int, now_ns: int, held: Held, counters: Counters
) -> None:
    """Take one frame on its way to the wire, and put the damaged frame or frames into the queue, which has room.

    The frame's virtio-net header is at ``at``; the frame stays unchanged.
    """
    gso_type = u8(frame, at + vnet.GSO_TYPE) & ~vnet.GSO_ECN
    l4_at = vnet.VNET_LEN + load_u16(frame, at + vnet.CSUM_START)
    size = load_u16(frame, at + vnet.VNET_GSO_SIZE)
    payload_at = l4_at + udp.UDP_LEN
    if gso_type != vnet.GSO_UDP_L4:
        payload_at = l4_at + get_tcp_len(frame, at + l4_at)
    known = gso_type == vnet.GSO_TCPV4 or gso_type == vnet.GSO_TCPV6 or gso_type == vnet.GSO_UDP_L4
    if gso_type == vnet.GSO_NONE:
        payload_at, size = length - 1, 0  # one round
    elif not known or not _is_ip(frame, at) or size == 0 or payload_at >= length or l4_at < IP_AT + ipv4.IPV4_MIN_LEN:
        counters[Counter.DROP_UNSPLIT] += 1
        return
    for first in range(payload_at, length, max(size, 1)):
        _disturb_one(plan, Stretch(frame, at, length), payload_at, first, size, now_ns, held, counters)


@kernel
def _disturb_one(
    plan: FaultPlan, whole: Stretch, payload_at: int, first: int, size: int, now_ns: int, held: Held, counters: Counters
) -> None:
    """Damage one wire frame: the whole one (``size`` 0), or a GSO frame's segment with payload from ``first``."""
    if _happens(plan.loss, held.random):
        counters[Counter.FAULT_LOST] += 1
        return
    copies = 1
    if _happens(plan.dup, held.random):
        counters[Counter.FAULT_DUPLICATED] += 1
        copies = 2
    for _ in range(copies):
        slot = held.order[held.queue[_TAIL] % held.order.size]
        octets = held.octets[slot]
        piece = whole.length if size == 0 else payload_at + min(size, whole.length - first)
        if held.queue[_TAIL] - held.queue[_FREED] >= held.order.size or piece > octets.size:
            counters[Counter.DROP_UNSPLIT] += 1
            return
        if size == 0:
            copy_octets(whole.octets, whole.at, octets, 0, whole.length)
        else:
            _split(whole, payload_at, first, size, octets)
        _fill_in_checksum(octets, piece)
        held.frames[slot, _LENGTH] = _damage(plan, octets, piece, held.random, counters)
        held.frames[slot, _DUE_NS] = now_ns + plan.delay_ns
        held.frames[slot, _LATE] = 0
        if plan.delay_ns:
            counters[Counter.FAULT_DELAYED] += 1
        if _happens(plan.reorder, held.random):
            counters[Counter.FAULT_REORDERED] += 1
            held.frames[slot, _LATE] = OVERTAKEN_BY
        held.queue[_TAIL] += 1


@inline_kernel
def _is_ip(frame: Uint8Array, at: int) -> bool:
    ethertype = be16(frame, at + vnet.VNET_LEN + ethernet.ETHERTYPE)
    return ethertype == ethernet.ETHERTYPE_IPV4 or ethertype == ethernet.ETHERTYPE_IPV6


@inline_kernel
def _happens(chance: int, random: Int64Array) -> bool:
    return chance > 0 and draw(random) < chance


@kernel
def draw(random: Int64Array) -> int:
    """Return 32 random bits."""
    mixed = int(random[0]) ^ int(random[0]) >> 2
    for index in range(4):
        random[index] = random[index + 1]
    last = int(random[4])
    last = (last ^ last << 4) ^ (mixed ^ mixed << 1)
    random[4] = last & _MASK
    random[5] = (int(random[5]) + 362437) & _MASK
    return (int(random[4]) + int(random[5])) & _MASK


@inline_kernel
def _split(whole: Stretch, payload_at: int, first: int, size: int, octets: Uint8Array) -> None:
    """Write the wire frame with the payload from ``first`` of a GSO frame, as the kernel's segmentation would."""
    payload_len = min(size, whole.length - first)
    copy_octets(whole.octets, whole.at, octets, 0, payload_at)
    copy_octets(whole.octets, whole.at + first, octets, payload_at, payload_len)
    l4_at = vnet.VNET_LEN + load_u16(octets, vnet.CSUM_START)
    l4_len = payload_at - l4_at + payload_len
    is_udp = u8(octets, vnet.GSO_TYPE) == vnet.GSO_UDP_L4
    index = (first - payload_at) // size
    if be16(octets, vnet.VNET_LEN + ethernet.ETHERTYPE) == ethernet.ETHERTYPE_IPV4:
        ip_len = l4_at - IP_AT
        put_be16(octets, IP_AT + ipv4.TOTAL_LEN, ip_len + l4_len)
        put_be16(octets, IP_AT + ipv4.IDENT, be16(octets, IP_AT + ipv4.IDENT) + index)
        store_u16(octets, IP_AT + ipv4.CHECKSUM, 0)
        store_u16(octets, IP_AT + ipv4.CHECKSUM, ones_sum(octets, IP_AT, ip_len) ^ 0xFFFF)
    else:
        put_be16(octets, IP_AT + ipv6.PAYLOAD_LEN, l4_at - IP_AT - ipv6.IPV6_LEN + l4_len)
    if is_udp:
        put_be16(octets, l4_at + udp.DATAGRAM_LEN, l4_len)
    else:
        put_be32(octets, l4_at + tcp.SEQ, be32(octets, l4_at + tcp.SEQ) + first - payload_at)
        flags = u8(octets, l4_at + tcp.FLAGS)
        if index > 0:
            flags &= ~tcp.CWR
        if first + payload_len < whole.length:
            flags &= ~(tcp.FIN | tcp.PSH)
        octets[l4_at + tcp.FLAGS] = flags
    # The field has the pseudo-header's sum with the length of the GSO frame: put this frame's sum in its place.
    sum_at = l4_at + load_u16(octets, vnet.CSUM_OFFSET)
    total = be16(octets, sum_at) + ((whole.length - l4_at) ^ 0xFFFF) + l4_len
    put_be16(octets, sum_at, folded(total))
    octets[vnet.GSO_TYPE] = vnet.GSO_NONE
    store_u16(octets, vnet.VNET_GSO_SIZE, 0)


@inline_kernel
def _fill_in_checksum(octets: Uint8Array, length: int) -> None:
    """Fill in the checksum, which ``NEEDS_CSUM`` leaves to the interface, and clear the virtio-net header."""
    start = vnet.VNET_LEN + load_u16(octets, vnet.CSUM_START)
    at = start + load_u16(octets, vnet.CSUM_OFFSET)
    if u8(octets, vnet.VNET_FLAGS) & vnet.NEEDS_CSUM and start < length and at + 2 <= length:
        total = ones_sum(octets, start, length - start)
        # 0 means "no checksum" in UDP (RFC 768); 0xFFFF is the same number in ones' complement.
        store_u16(octets, at, total ^ 0xFFFF if total != 0xFFFF else 0xFFFF)
    for field in range(vnet.VNET_LEN):
        octets[field] = 0


@inline_kernel
def _damage(plan: FaultPlan, octets: Uint8Array, length: int, random: Int64Array, counters: Counters) -> int:
    """Perhaps cut the frame short, and perhaps flip one of its bits; return its length."""
    if not _is_ip(octets, 0) or length <= IP_AT:
        return length
    if _happens(plan.truncate, random):
        counters[Counter.FAULT_TRUNCATED] += 1
        length = IP_AT + draw(random) % (length - IP_AT)
    if length > IP_AT and _happens(plan.flip, random):
        counters[Counter.FAULT_FLIPPED] += 1
        bit = draw(random) % (8 * (length - IP_AT))
        octets[IP_AT + bit // 8] = u8(octets, IP_AT + bit // 8) ^ 1 << bit % 8
    return length


@inline_kernel
def count_held(held: Held) -> int:
    """Return how many frames wait for their release."""
    return held.queue[_TAIL] - held.queue[_HEAD]


@kernel
def release(held: Held, now_ns: int, vectors: Uint64Array) -> int:
    """Return how many frames are due, and put their addresses and lengths into ``vectors``, uint64[n, 2].

    Call it only when all frames released before are on the wire, because it frees their slots.
    """
    queue, slots = held.queue, held.order.size
    queue[_FREED] = queue[_HEAD]
    count = 0
    while count < len(vectors) and queue[_HEAD] < queue[_TAIL]:
        here, there = queue[_HEAD] % slots, (queue[_HEAD] + 1) % slots
        slot = held.order[here]
        if held.frames[slot, _DUE_NS] > now_ns:
            break
        if held.frames[slot, _LATE] > 0:
            following = held.order[there]
            if queue[_HEAD] + 1 < queue[_TAIL] and held.frames[following, _DUE_NS] <= now_ns:
                held.order[here], held.order[there] = following, slot
                held.frames[slot, _LATE] -= 1
                slot = following
            elif now_ns < held.frames[slot, _DUE_NS] + OVERTAKE_WAIT_NS:
                break
        vectors[count, 0] = held.octets[slot].ctypes.data
        vectors[count, 1] = held.frames[slot, _LENGTH]
        queue[_HEAD] += 1
        count += 1
    return count


@kernel
def wait_ns(held: Held, now_ns: int) -> int:
    """Return how long the next frame still has to wait; -1 if no frame is held."""
    queue, slots = held.queue, held.order.size
    if queue[_HEAD] == queue[_TAIL]:
        return -1
    slot = held.order[queue[_HEAD] % slots]
    due_ns = held.frames[slot, _DUE_NS]
    if held.frames[slot, _LATE] > 0:
        due_ns += OVERTAKE_WAIT_NS
        if queue[_HEAD] + 1 < queue[_TAIL]:
            due_ns = min(due_ns, held.frames[held.order[(queue[_HEAD] + 1) % slots], _DUE_NS])
    return max(int(due_ns) - now_ns, 0)
