"""The flow table: which connections are known, and everything that a NIC remembers of each.

A slot is one TCP connection, seen from the host: what it sends (fields of the transmit side) and what it receives
(``RX_...``). Only a SYN or SYN/ACK of the host makes a slot, so no other machine can fill the table.

::

    int64[ROWS, FIELDS]    SLOTS slots          hash of the key, then two windows of WINDOW slots
                           SLOTS rows           SYNs from the wire that the host has not answered yet, likewise
                           1 row                the words that key the hash, drawn anew at every start

A connection is in one of two windows. A new one goes into the emptier window, so a window hardly ever fills up before
the table does (Mitzenmacher, *The Power of Two Choices*, 2001).

**Who gives way.** A new connection takes the first of these in its windows: a free slot, the oldest connection that is
over, the oldest whose handshake is not complete, the oldest that its host gave up, the oldest that was silent for
:data:`IDLE_NS`. Each of them has nothing left to send, so no float is sent again in another form. A connection in use
keeps its slot. A new connection that finds no slot stays raw, and is counted.

A connection is over if it has a FIN or an RST and the peer has everything. An RST of the peer counts if its sequence
number is the one that the host waits for; the host's TCP takes no other (RFC 5961, 3.2). A host that gives up a silent
peer sends nothing: see :func:`_has_given_up`.

**SYNs from the wire** are kept in the candidates' rows. A SYN changes no slot before the host answers it. A SYN/ACK
of the host that acknowledges the SYN turns the candidate into a slot, or starts the connection's slot anew.
"""

import secrets
from typing import Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel
from netoffload.compiled.octets import be32, be64
from netoffload.engine.judgement import JUDGE_FIELDS, JUDGED_SEQ
from netoffload.engine.network import IP_AT
from netoffload.wire import ipv4, ipv6

SLOTS: Final = 4096
"""A power of two. A node of a training run has a few connections per peer; a busy host has some thousands."""
CANDIDATES_AT: Final = SLOTS
"""As many rows: a host answers a SYN within microseconds, but thousands of connections may begin at once."""
WINDOW: Final = 8
"""A power of two."""
KEY_ROW: Final = 2 * SLOTS
ROWS: Final = KEY_ROW + 1
IDLE_NS: Final = 3600 * 1_000_000_000
"""An hour without a segment of the host. TCP's keepalive, where it is on, waits two hours (RFC 9293, 3.8.4)."""
GIVEN_UP_NS: Final = 10 * 1_000_000_000
GIVEN_UP_NS_MAX: Final = 300 * 1_000_000_000
"""TCP repeats a segment after two minutes at the latest (RFC 6298, 2.4 and 5.7), within this time in any case."""

# The key: which connection holds the slot. The source is the host, the destination its peer.
IP_VERSION: Final = 0
"""4 or 6; 0: the slot is free."""
SRC_HIGH, SRC_LOW, DST_HIGH, DST_LOW, PORTS, STATE = range(1, 7)
OPENING: Final = 0
"""The handshake is not complete."""
OPEN: Final = 1
CLOSED: Final = 2
"""The host sent FIN or RST, or the peer a valid RST. Reports show the connection until another one takes its slot."""
ORPHAN: Final = 3
"""The NIC did not see the connection's handshake; see ``orphans``."""
LAST_SEEN_NS: Final = 7

# The handshake.
ISN, PEER_ISN = 8, 9
PEER_CODECS: Final = 10
"""Bitmap of the codecs that the peer's NIC decodes, from its word; 0: no NIC, or a NIC of another version or key."""
PEER_WAYS: Final = 11
PEER_NONCE: Final = 12
"""Combined with the CRC of every block to the peer."""
OWN_NONCE: Final = 13
"""Expected in the CRC of every block from the peer."""
SYNS_SENT: Final = 14
"""How often the host sent its SYN or SYN/ACK."""
OWN_MSS: Final = 15
WINDOW_SHIFT: Final = 16
"""Window scale that the host offers, -1 without the option; after the handshake the scale that holds, 0..14."""

# How far the host's stream has come.
NEXT_SEQ: Final = 17
"""The sequence number behind its newest octet; octets below this number were sent before."""
UNA: Final = 18
"""The oldest octet that the peer has not acknowledged, rounded down to whole floats where floats are rounded."""

# Which floats are rounded: see ``forms``.
FORM, ROUNDED_FROM, EXACT_FROM = range(19, 22)

# Whether a lossless codec makes the stream shorter: see ``gain``.
LOOK_SEQ, LOOK_STEP, PAYS, PHASE = *range(22, 25), 57

PEER_SHIFT: Final = 60
"""Window scale of the peer, once the handshake is complete."""
WINDOW_EDGE: Final = 61
"""The end of the peer's window, as the host knows it; ``NO_EDGE`` before the first acknowledgement."""
NO_EDGE: Final = -1
LENT_SEQ, LENT_WORD, LENT_LEN = range(26, 29)
DUE_NS: Final = 25
"""When the NIC sends lent octets by itself, or one of the constants of ``forms`` that say why it waits."""

# Whether blocks arrive: see ``probation``.
RETRIES, RETRY_UNA, PLAIN_UNTIL_NS, BACK_OFF_NS, PLAIN_UNA, PROBE_SEQ, PROBE_END, IS_PROBING = range(29, 37)
RETRY_NS: Final = 56

# How large blocks may be: see ``path``.
DATAGRAM_MAX, DATAGRAM_MAX_UNTIL_NS = 37, 38
LARGE_SEQ, LARGE_END, LARGE_LEN, LARGE_FAILS, LARGE_UNA, FAILED_LEN = range(39, 45)

# Counts for reports.
SEGMENTS, RAW_OCTETS, PAYLOAD_OCTETS, BLOCKS, BYPASSED, WIRE_OCTETS = range(45, 51)
"""The last one: octets of the frames that carried the blocks."""
RX_SEGMENTS, RX_RAW_OCTETS, RX_PAYLOAD_OCTETS, RX_BLOCKS, RX_IS_CLOSED = range(51, 56)

# State for sending lent octets: see ``lent``.
WAIT_NS: Final = 62
"""Pause between two transmissions of lent octets; 0: the NIC has not sent them yet."""
HEADERS: Final = 63
HEADER_WORDS: Final = 20
"""Words of six octets: the headers of Ethernet, IPv6 and TCP with all options have 114 octets."""

# What the stream looks like: see ``judgement``.
JUDGED: Final = HEADERS + HEADER_WORDS

# Who promises that the host sends float32: see ``promises``.
PROMISE: Final = JUDGED + JUDGE_FIELDS

# When the connection is over.
HOST_ACK: Final = PROMISE + 1
"""The host's latest acknowledgement number."""
RX_NEXT_SEQ: Final = PROMISE + 2
"""The sequence number behind the newest octet from the peer."""
UNA_SINCE_NS: Final = PROMISE + 3
"""When the octet ``UNA`` became the oldest one that the peer lacks."""
REPEATED_END: Final = PROMISE + 4
"""How far the stream had come when the host last sent octets again."""
HOST_TSVAL: Final = PROMISE + 5
"""The timestamp in the host's latest segment; 0 without timestamps."""

UNSEEN_FROM, UNSEEN_END = PROMISE + 6, PROMISE + 7
"""Octets of the stream that were lost on the way to this NIC while floats were rounded, from the first to the last."""

# Floats that segments cut: see ``forms``.
HELD: Final = PROMISE + 8
"""Octets of a float: its sequence number, the octets as a word, a mask of known ones, and where the segment cut it."""
HELD_FIELDS: Final = 4
HELD_FLOATS: Final = 8
"""Floats of which octets are held: about as many as the segments that are in flight where losses are frequent."""
FIELDS: Final = HELD + HELD_FLOATS * HELD_FIELDS

FlowTable = Int64Array
"""int64[ROWS, FIELDS]: a row per connection."""
Flow = Int64Array
"""int64[FIELDS]: one of its rows."""

KEY_FIELDS: Final = 6
_KEY_MASK: Final = (1 << 40) - 1
_MIXED_MASK: Final = (1 << 30) - 1
"""30 bits: the product with another number of 30 bits stays below 2**63."""
_HALF_BITS: Final = 12
"""Bits of a hash that choose the first window; the rest choose the second one."""
_KEYS_TRIED: Final = 4
_FREE: Final = 5
"""The rank of a slot that no connection has."""
NOT_FOUND: Final = -1


class FlowKey(NamedTuple):
    """What identifies a connection: the first fields of its slot. An IPv4 address is the low half of a 128-bit one."""

    ip_version: int
    src_high: int
    src_low: int
    dst_high: int
    dst_low: int
    ports: int


def make_flows() -> Int64Array:
    """Return an empty table with a new key for its hash, int64[ROWS, FIELDS]."""
    flows = np.zeros((ROWS, FIELDS), np.int64)
    draw_key(flows)
    return flows


def draw_key(flows: Int64Array) -> None:
    """Key the hash anew; the table must be empty."""
    flows[KEY_ROW] = np.frombuffer(secrets.token_bytes(8 * FIELDS), np.int64)


def rekey(flows: Int64Array) -> int:
    """Draw a new key for the hash of a table, and move its connections to their new slots.

    Open connections are moved first, those that were seen last before others. If one of them finds no slot, another
    key is drawn. Return how many open ones are lost all the same.
    """
    known = flows[:SLOTS][flows[:SLOTS, IP_VERSION] != 0]
    known = known[np.lexsort((-known[:, LAST_SEEN_NS], known[:, STATE] != OPEN))]
    for _ in range(_KEYS_TRIED):
        flows[:] = 0
        draw_key(flows)
        is_lost = [not _move(flows, row) and row[STATE] == OPEN for row in known]
        if not any(is_lost):
            break
    return sum(is_lost)


def _move(flows: FlowTable, row: Flow) -> bool:
    """Put a connection into the emptier of its windows; return whether there was room."""
    hashed = _hash(flows, FlowKey(*(int(word) for word in row[:KEY_FIELDS])))
    slots = [[int(_slot_of(hashed, first + probe)) for probe in range(WINDOW)] for first in (0, WINDOW)]
    free = max(([slot for slot in window if flows[slot, IP_VERSION] == 0] for window in slots), key=len)
    if free:
        flows[free[0]] = row
    return bool(free)


@inline_kernel
def key_of(frame: Uint8Array, ip_len: int, tcp_at: int) -> FlowKey:
    """Return the key of a frame with virtio-net header whose TCP header is at ``tcp_at``."""
    ports = be32(frame, tcp_at)
    if ip_len == ipv4.IPV4_MIN_LEN:
        return FlowKey(4, 0, be32(frame, IP_AT + ipv4.SRC), 0, be32(frame, IP_AT + ipv4.DST), ports)
    src_at, dst_at = IP_AT + ipv6.SRC, IP_AT + ipv6.DST
    return FlowKey(6, be64(frame, src_at), be64(frame, src_at + 8), be64(frame, dst_at), be64(frame, dst_at + 8), ports)


@inline_kernel
def reversed_key(key: FlowKey) -> FlowKey:
    """Return the key of the same connection seen from the other end."""
    ports = (key.ports & 0xFFFF) << 16 | key.ports >> 16
    return FlowKey(key.ip_version, key.dst_high, key.dst_low, key.src_high, key.src_low, ports)


@inline_kernel
def _mixed(word: int, keys: Int64Array, first: int) -> int:
    """Return the sum of four products, each of 16 bits of ``word`` and 40 bits of a key; the sum is below 2**58."""
    total = (word & 0xFFFF) * (keys[first] & _KEY_MASK) + (word >> 16 & 0xFFFF) * (keys[first + 1] & _KEY_MASK)
    total += (word >> 32 & 0xFFFF) * (keys[first + 2] & _KEY_MASK)
    return total + (word >> 48 & 0xFFFF) * (keys[first + 3] & _KEY_MASK)


@inline_kernel
def _hash(flows: FlowTable, key: FlowKey) -> int:
    """Return 24 bits of a multilinear hash (Carter and Wegman, 1979).

    The words in the last row are secret, so an attacker cannot choose keys that collide. Consecutive ports have sums in
    equal steps, which might all fall into one window of slots; :func:`_scattered` spreads them.
    """
    keys = flows[KEY_ROW]
    total = _mixed(key.ports, keys, 0) + _mixed(key.src_low, keys, 4) + _mixed(key.dst_low, keys, 8)
    if key.ip_version == 6:
        total += _mixed(key.src_high, keys, 12) + _mixed(key.dst_high, keys, 16)
    return _scattered(total)


@inline_kernel
def _scattered(total: int) -> int:
    """Return 24 bits that depend on all 58 bits of a sum; sums in equal steps spread over the table."""
    mixed = ((total ^ total >> 29) & _MIXED_MASK) * 0x2C1B3C6D
    mixed = ((mixed ^ mixed >> 27) & _MIXED_MASK) * 0x297A2D39
    return mixed >> 17 & 0xFFFFFF


@inline_kernel
def _holds(flow: Flow, key: FlowKey) -> bool:
    return (
        flow[PORTS] == key.ports
        and flow[SRC_LOW] == key.src_low
        and flow[DST_LOW] == key.dst_low
        and flow[IP_VERSION] == key.ip_version
        and flow[SRC_HIGH] == key.src_high
        and flow[DST_HIGH] == key.dst_high
    )


@inline_kernel
def _slot_of(hashed: int, probe: int) -> int:
    """Return a slot of the two windows of a hash, ``probe`` from 0 to 2 * WINDOW - 1; the windows may be the same."""
    base = hashed if probe < WINDOW else hashed >> _HALF_BITS
    return (base & (SLOTS - WINDOW)) | (probe & (WINDOW - 1))


@inline_kernel
def find(flows: FlowTable, key: FlowKey, first_row: int = 0) -> int:
    """Return the slot of a connection, or ``NOT_FOUND``; from :data:`CANDIDATES_AT` on that of a SYN from the wire."""
    hashed = _hash(flows, key)
    for probe in range(2 * WINDOW):
        row = first_row + _slot_of(hashed, probe)
        if _holds(flows[row], key):
            return row
    return NOT_FOUND


@inline_kernel
def _rank(flow: Flow, now_ns: int) -> int:
    """Return how ready a row is to be taken over; 0: not at all. A candidate counts as ``OPENING``."""
    if flow[IP_VERSION] == 0:
        return _FREE
    silent_ns = now_ns - flow[LAST_SEEN_NS]
    has_everything = flow[UNA] == flow[NEXT_SEQ]
    if flow[STATE] == CLOSED and has_everything:
        return 4
    if flow[STATE] == OPENING or flow[STATE] == ORPHAN:
        return 3
    if has_everything:
        return 1 if silent_ns > IDLE_NS else 0
    return 2 if _has_given_up(silent_ns, flow[LAST_SEEN_NS] - flow[UNA_SINCE_NS]) else 0


@inline_kernel
def _has_given_up(silent_ns: int, tried_ns: int) -> bool:
    """Whether a host that has octets in flight would have repeated them by now.

    TCP doubles its pauses. A host that tried for a time repeats within as long again, if it has not given up. It tried
    from the moment when the oldest octet became due until its last segment.
    """
    return silent_ns > min(2 * tried_ns + GIVEN_UP_NS, GIVEN_UP_NS_MAX)


@inline_kernel
def make_slot(flows: FlowTable, key: FlowKey, now_ns: int, first_row: int = 0) -> int:
    """Return a slot, empty but for the key, for a connection that is about to begin; ``NOT_FOUND`` if all are taken.

    An earlier connection with the same addresses and ports may have a slot; then that slot is emptied and returned.
    With :data:`CANDIDATES_AT` it is the row of a SYN from the wire, to which the oldest other SYN may give way.
    """
    row = find(flows, key, first_row)
    if row == NOT_FOUND:
        hashed = _hash(flows, key)
        best = 0
        is_second_emptier = _count_free(flows, first_row, hashed, WINDOW) > _count_free(flows, first_row, hashed, 0)
        for step in range(2 * WINDOW):
            other = first_row + _slot_of(hashed, step ^ WINDOW if is_second_emptier else step)
            rank = _rank(flows[other], now_ns)
            is_older = 0 < rank < _FREE and rank == best
            if rank > best or (is_older and flows[other, LAST_SEEN_NS] < flows[row, LAST_SEEN_NS]):
                row, best = other, rank
        if best == 0:
            return NOT_FOUND
    flows[row, KEY_FIELDS:] = 0
    flows[row, IP_VERSION], flows[row, PORTS] = key.ip_version, key.ports
    flows[row, SRC_HIGH], flows[row, SRC_LOW] = key.src_high, key.src_low
    flows[row, DST_HIGH], flows[row, DST_LOW] = key.dst_high, key.dst_low
    flows[row, LAST_SEEN_NS] = now_ns
    return row


@inline_kernel
def _count_free(flows: FlowTable, first_row: int, hashed: int, first: int) -> int:
    """Return how many rows of a window are free; ``first`` is its first probe."""
    free = 0
    for probe in range(first, first + WINDOW):
        free += flows[first_row + _slot_of(hashed, probe), IP_VERSION] == 0
    return free


@inline_kernel
def forget(flows: FlowTable, key: FlowKey) -> None:
    """Free the slot of a connection, if it has one."""
    slot = find(flows, key)
    if slot != NOT_FOUND:
        flows[slot, IP_VERSION] = 0


@inline_kernel
def close(flow: Flow) -> None:
    """Note an RST of either end, after which neither sends anything again."""
    flow[STATE] = CLOSED
    flow[UNA] = flow[NEXT_SEQ]


@inline_kernel
def begin(flow: Flow, isn: int) -> None:
    """Note the host's initial sequence number."""
    first = (isn + 1) & 0xFFFFFFFF
    flow[ISN] = isn
    flow[NEXT_SEQ] = flow[UNA] = flow[REPEATED_END] = flow[JUDGED + JUDGED_SEQ] = first
    flow[UNSEEN_FROM] = flow[UNSEEN_END] = first
    flow[WINDOW_EDGE] = NO_EDGE
