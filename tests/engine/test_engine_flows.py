"""The flow table: which flow gets a slot, which one is evicted, and that an outsider cannot predict a slot."""

import numpy as np
import pytest

from netoffload.compiled.arrays import Int64Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.engine import flows
from netoffload.engine.flows import CLOSED, OPEN, OPENING, SLOTS, FlowKey
from netoffload.wire.capability import emit_capability
from tests.engine.frames import make_segment
from tests.engine.nic_pair import ISN, Nic, connect

ZEROS = np.zeros(500, np.float32).tobytes()
FILL = 1 if JIT_DISABLED else 3


def seeded(seed: int = 1) -> Int64Array:
    """Return an empty table whose hash has always the same key: with some keys two windows are one."""
    table = flows.make_flows()
    table[flows.KEY_ROW] = np.random.default_rng(seed).integers(-(2**63), 2**63, flows.FIELDS)
    return table


def key(number: int, ip_version: int = 4) -> FlowKey:
    return FlowKey(ip_version, 0, 1, 0, 2, number)


def fill(table: Int64Array, state: int, count: int = FILL * SLOTS) -> None:
    """Make connections in this state; ``LAST_SEEN_NS`` of each is its number."""
    for number in range(count):
        slot = flows.make_slot(table, key(number), number)
        if slot != flows.NOT_FOUND:
            table[slot, flows.STATE] = state


def new_ones(table: Int64Array, now_ns: int, first: int = 1 << 20) -> list[int]:
    """Make 400 new connections; return the slots that they took."""
    slots = [int(flows.make_slot(table, key(first + number), now_ns)) for number in range(400)]
    return [slot for slot in slots if slot != flows.NOT_FOUND]


def test_a_connection_is_found_by_all_of_its_key() -> None:
    table = seeded()
    one = FlowKey(6, 1, 2, 3, 4, 5)
    slot = flows.make_slot(table, one, 0)
    assert flows.find(table, one) == slot
    assert flows.make_slot(table, one, 1) == slot
    for field in one._fields:
        assert flows.find(table, one._replace(**{field: 7})) == flows.NOT_FOUND
    flows.forget(table, one)
    assert flows.find(table, one) == flows.NOT_FOUND


def test_the_key_of_the_other_end_is_the_same_connection() -> None:
    one = FlowKey(6, 1, 2, 3, 4, 40_000 << 16 | 5001)
    assert flows.reversed_key(one) == FlowKey(6, 3, 4, 1, 2, 5001 << 16 | 40_000)
    assert flows.reversed_key(flows.reversed_key(one)) == one


def test_a_new_life_begins_with_an_empty_slot() -> None:
    table = seeded()
    slot = flows.make_slot(table, key(1), 5)
    table[slot, flows.KEY_FIELDS :] = 9
    assert flows.make_slot(table, key(1), 6) == slot
    assert table[slot, flows.LAST_SEEN_NS] == 6
    assert np.delete(table[slot], [*range(flows.KEY_FIELDS), flows.LAST_SEEN_NS]).sum() == 0


def test_a_connection_gives_way_to_nobody_before_it_was_silent_for_an_hour() -> None:
    table = seeded()
    fill(table, OPEN)
    taken = table[:SLOTS, flows.IP_VERSION] != 0
    assert taken.mean() > (0.5 if JIT_DISABLED else 0.95)
    before = table[:SLOTS][taken].copy()
    assert not taken[new_ones(table, flows.IDLE_NS)].any()
    assert np.array_equal(table[:SLOTS][taken], before)
    assert taken[new_ones(table, FILL * SLOTS + flows.IDLE_NS, 2 << 20)].any()


@pytest.mark.parametrize("state", [OPENING, CLOSED])
def test_those_that_are_not_open_give_way(state: int) -> None:
    table = seeded()
    fill(table, state, 3 * SLOTS)
    assert len(new_ones(table, 10**9)) == 400


def window_of(table: Int64Array, wanted: FlowKey) -> list[int]:
    """Return the slots where a connection may be, in the order in which they are looked at."""
    window = []
    while (slot := flows.make_slot(table, wanted, 0)) != flows.NOT_FOUND and slot not in window:
        window.append(slot)
        table[slot] = 0
        table[slot, flows.IP_VERSION], table[slot, flows.STATE] = 4, OPEN  # somebody else's
    return window


def test_the_order_in_which_they_give_way() -> None:
    table = seeded()
    wanted = key(7)
    window = window_of(table, wanted)
    assert len(window) == 2 * flows.WINDOW
    now_ns = 10**9 + flows.IDLE_NS
    table[window, flows.LAST_SEEN_NS] = now_ns
    order = {
        window[3]: (4, OPEN, 5),
        window[2]: (4, OPEN, 4),
        window[9]: (4, OPENING, now_ns),
        window[1]: (4, OPENING, now_ns - 1),
        window[0]: (4, CLOSED, now_ns),
        window[8]: (4, CLOSED, now_ns - 1),
        window[5]: (0, OPEN, now_ns),
    }
    for slot, (version, state, seen_ns) in order.items():
        table[slot, flows.IP_VERSION], table[slot, flows.STATE], table[slot, flows.LAST_SEEN_NS] = (
            version,
            state,
            seen_ns,
        )
    for slot in reversed(order):
        assert flows.make_slot(table, wanted, now_ns) == slot
        table[slot, flows.PORTS], table[slot, flows.STATE] = 8, OPEN
    assert flows.make_slot(table, wanted, now_ns) == flows.NOT_FOUND


def test_a_connection_that_is_over_keeps_its_slot_while_octets_are_in_flight() -> None:
    table = seeded()
    fill(table, CLOSED)
    taken = table[:SLOTS, flows.IP_VERSION] != 0
    table[:SLOTS][taken, flows.NEXT_SEQ] += 1
    seen_ns = table[:SLOTS, flows.LAST_SEEN_NS].max()
    table[:SLOTS, flows.LAST_SEEN_NS] = seen_ns
    assert not taken[new_ones(table, int(seen_ns) + flows.GIVEN_UP_NS)].any()
    assert taken[new_ones(table, int(seen_ns) + 2 * flows.GIVEN_UP_NS + FILL * SLOTS, 2 << 20)].any()


@pytest.mark.parametrize(
    ("tried_s", "silent_s", "gave_up"),
    [(0, 9, False), (0, 11, True), (60, 120, False), (60, 131, True), (10**6, 299, False), (10**6, 301, True)],
)
def test_a_host_has_given_up_that_is_silent_for_longer_than_it_tried(
    tried_s: int, silent_s: int, gave_up: bool
) -> None:
    table = seeded()
    slot = flows.make_slot(table, key(1), 0)
    flows.begin(table[slot], 7)
    table[slot, flows.STATE] = OPEN
    table[slot, flows.NEXT_SEQ] += 100
    table[slot, flows.LAST_SEEN_NS] = seen_ns = (5 + tried_s) * 10**9
    table[slot, flows.UNA_SINCE_NS] = 5 * 10**9
    assert (flows._rank(table[slot], seen_ns + silent_s * 10**9) == 2) == gave_up


def test_a_table_is_nearly_full_before_a_connection_finds_no_slot() -> None:
    table = seeded()
    count = 0
    while (slot := flows.make_slot(table, key(count), count)) != flows.NOT_FOUND:
        table[slot, flows.STATE] = OPEN
        count += 1
    assert count > 0.7 * SLOTS


@pytest.mark.parametrize("word", [1 << 12, (1 << 27) + 5, (1 << 28) // 3, 1 << 39])
def test_ports_that_follow_each_other_find_a_slot_under_a_key_that_keeps_them_together(word: int) -> None:
    table = seeded()
    table[flows.KEY_ROW] = word
    for number in range(300):
        slot = flows.make_slot(table, key(number), number)
        assert slot != flows.NOT_FOUND
        table[slot, flows.STATE] = OPEN


def test_rekeying_keeps_every_connection_and_moves_it() -> None:
    table = seeded()
    for number in range(300):
        slot = flows.make_slot(table, key(number, 6 if number % 2 else 4), number)
        table[slot, flows.KEY_FIELDS :] = number
    flows.make_slot(table, key(9), 0, flows.CANDIDATES_AT)
    before = {number: flows.find(table, key(number, 6 if number % 2 else 4)) for number in range(300)}
    words = table[flows.KEY_ROW].copy()
    flows.rekey(table)
    assert not np.array_equal(table[flows.KEY_ROW], words)
    moved = 0
    for number, slot_before in before.items():
        slot = flows.find(table, key(number, 6 if number % 2 else 4))
        assert (table[slot, flows.KEY_FIELDS :] == number).all()
        moved += slot != slot_before
    assert moved > 250
    assert flows.find(table, key(9), flows.CANDIDATES_AT) == flows.NOT_FOUND
    assert (table[:SLOTS, flows.IP_VERSION] != 0).sum() == 300


def test_rekeying_keeps_three_thousand_open_connections() -> None:
    table = seeded()
    for number in range(3000):
        slot = flows.make_slot(table, key(number), number)
        assert slot != flows.NOT_FOUND
        table[slot, flows.STATE] = OPEN
    assert [flows.rekey(table) for _ in range(3)] == [0, 0, 0]
    assert (table[:SLOTS, flows.STATE] == OPEN).sum() == 3000


def test_rekeying_a_full_table_keeps_the_open_ones_first() -> None:
    table = seeded()
    fill(table, CLOSED, 3 * SLOTS)
    used = np.flatnonzero(table[:SLOTS, flows.IP_VERSION])
    table[used[::8], flows.STATE] = OPEN
    flows.rekey(table)
    assert (table[:SLOTS, flows.STATE] == OPEN).sum() == len(used[::8])


def _first_slot(table: Int64Array, one: FlowKey) -> int:
    slot = int(flows.make_slot(table, one, 0))
    flows.forget(table, one)
    return slot


@pytest.mark.parametrize("ip_version", [4, 6])
def test_every_field_of_the_key_moves_the_slot_and_so_do_the_words(ip_version: int) -> None:
    assert not np.array_equal(flows.make_flows(), flows.make_flows())
    table, other = seeded(0), seeded(1)
    used = (
        ("src_low", "dst_low", "ports") if ip_version == 4 else ("src_high", "src_low", "dst_high", "dst_low", "ports")
    )
    one = FlowKey(ip_version, 0, 1, 0, 2, 3)
    for field in used:
        for shift in (0, 15, 31) if ip_version == 4 else (0, 31, 47, 62):
            if field == "ports" and shift > 31:
                continue
            slots = {_first_slot(table, one._replace(**{field: number << shift})) for number in (0, 1)}
            assert len(slots) == 2, (field, shift)
    keys = [key(number) for number in range(200)]
    assert sum(_first_slot(table, one) == _first_slot(other, one) for one in keys) < 20
    assert len({_first_slot(table, one) for one in keys}) > 150


def test_whoever_fakes_handshakes_cannot_keep_slots() -> None:
    """Only an acknowledgement of the host's own number opens a connection, so nobody blind fills the table."""
    server = Nic()
    word: list[tuple[str | int, object]] = [(253, emit_capability()[2:])]
    for sport in range(40):
        server.from_wire([make_segment(flags="S", seq=ISN, sport=40_000 + sport, options=word)])
        server.from_host(make_segment(flags="SA", seq=5, ack=ISN + 1, sport=40_000 + sport, to_client=True))
        for ack in (5, 7, 500_000, 2**31, 2**32 - 1):
            for flags in ("A", "PA", "FA"):
                server.from_wire([make_segment(flags=flags, seq=ISN + 1, ack=ack, sport=40_000 + sport)])
    used = server.table[:SLOTS][server.table[:SLOTS, flows.IP_VERSION] != 0]
    assert (used[:, flows.STATE] == OPENING).sum() == 40
    server.from_wire([make_segment(seq=ISN + 1, ack=6, sport=40_000)])
    assert (server.table[:SLOTS, flows.STATE] == OPEN).sum() == 1


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_full_table_leaves_new_connections_raw_and_the_others_alone(ipv6: bool) -> None:
    nic, peer = Nic(), Nic()
    connect(nic, peer, ipv6=ipv6)
    data = make_segment(ZEROS, seq=ISN + 1, ipv6=ipv6)
    free = nic.table[:SLOTS, flows.IP_VERSION] == 0
    nic.table[:SLOTS][free, flows.IP_VERSION] = 4
    nic.table[:SLOTS][free, flows.STATE] = OPEN
    syn = make_segment(flags="S", seq=9, sport=40_001, ipv6=ipv6)
    assert nic.from_host(syn) == [syn]
    late = make_segment(ZEROS, seq=10, sport=40_001, ipv6=ipv6)
    assert nic.from_host(late) == [late]
    assert nic.counts()["bypass_unknown_flow"] == 1
    assert nic.from_host(data) != [data]


def test_two_thousand_handshakes_may_begin_at_once() -> None:
    table = seeded()
    for number in range(2000):
        flows.make_slot(table, key(number), number, flows.CANDIDATES_AT)
    found = [flows.find(table, key(number), flows.CANDIDATES_AT) for number in range(2000)]
    assert flows.NOT_FOUND not in found
    assert all(flows.SLOTS <= row < flows.KEY_ROW for row in found if row != flows.NOT_FOUND)


def test_a_handshake_displaces_the_oldest_one_and_before_it_one_that_is_answered() -> None:
    table = seeded()
    table[flows.KEY_ROW] = 0  # all keys have one hash, and both windows are the same
    for number in range(flows.WINDOW):
        flows.make_slot(table, key(number), 100 - number, flows.CANDIDATES_AT)
    table[flows.find(table, key(2), flows.CANDIDATES_AT), flows.LAST_SEEN_NS] = (
        0  # as for a SYN that the host has answered
    )
    for new, lost in ((90, 2), (91, flows.WINDOW - 1), (92, flows.WINDOW - 2)):
        assert flows.find(table, key(lost), flows.CANDIDATES_AT) != flows.NOT_FOUND
        flows.make_slot(table, key(new), 200, flows.CANDIDATES_AT)
        assert flows.find(table, key(lost), flows.CANDIDATES_AT) == flows.NOT_FOUND
