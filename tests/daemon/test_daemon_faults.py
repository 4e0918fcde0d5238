"""The fault stage on invented frames: its rates, its seed, and the frames behind it."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw

from netoffload.engine.counters import Counter, make_counters
from netoffload.errors import UsageError
from netoffload.nic_options.faults import FaultSettings, parse_faults
from netoffload.wire import vnet
from netoffload.wire.checksum import internet_checksum, ones_sum
from netoffload_daemon import faults
from tests.shared.formats import Vnet, emit_vnet

FRAMES = 2000
PAYLOAD = bytes(range(256)) * 4
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")  # without addresses scapy asks the network for them


@cache
def plain_frame(number: int = 0) -> bytes:
    packet = ETHER / IP(src="10.0.0.1", dst="10.0.0.2", id=number) / UDP(sport=1, dport=2) / Raw(PAYLOAD[:100])
    return bytes(emit_vnet(Vnet(), bytes(packet)))


class Stage:
    """The stage with a clock that stands still until it is told otherwise."""

    def __init__(self, mtu: int = 1500, **settings: Any) -> None:
        self.settings = FaultSettings(**settings)
        self.plan = faults.make_plan(self.settings)
        self.held = faults.make_held(self.settings, mtu)
        self.counters = make_counters()
        self.vectors = np.zeros((8, 2), np.uint64)

    def give(self, frame: bytes, now_ns: int = 0) -> None:
        octets = np.frombuffer(frame + bytes(64), np.uint8).copy()
        faults.disturb(self.plan, octets, 0, len(frame), now_ns, self.held, self.counters)

    def take(self, now_ns: int = 0) -> Iterator[bytes]:
        """Every frame that is due, without its virtio-net header."""
        while count := faults.release(self.held, now_ns, self.vectors):
            for index in range(count):
                address, length = (int(word) for word in self.vectors[index])
                at = address - self.held.octets.ctypes.data
                yield bytes(self.held.octets.reshape(-1)[at : at + length])[vnet.VNET_LEN :]

    def pass_through(self, count: int = FRAMES) -> list[bytes]:
        out: list[bytes] = []
        for number in range(count):
            self.give(plain_frame(number))
            out += self.take()
        return [*out, *self.take(faults.OVERTAKE_WAIT_NS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("loss", Counter.FAULT_LOST),
        ("dup", Counter.FAULT_DUPLICATED),
        ("reorder", Counter.FAULT_REORDERED),
        ("flip", Counter.FAULT_FLIPPED),
        ("truncate", Counter.FAULT_TRUNCATED),
    ],
)
def test_each_fault_is_as_frequent_as_asked_and_changes_what_it_says(name: str, counter: Counter) -> None:
    settings: dict[str, Any] = {name: 0.1, "seed": 5}
    stage = Stage(**settings)
    out = stage.pass_through()
    hits = int(stage.counters[counter])
    assert abs(hits - 0.1 * FRAMES) < 5 * (FRAMES * 0.1 * 0.9) ** 0.5
    assert stage.counters.sum() == hits
    sent = {plain_frame(number)[vnet.VNET_LEN :] for number in range(FRAMES)}
    changed = [frame for frame in out if frame not in sent]
    wanted = {"loss": FRAMES - hits, "dup": FRAMES + hits}.get(name, FRAMES)
    assert len(out) == wanted
    assert len(changed) == (hits if name in ("flip", "truncate") else 0)
    assert (out == sorted(out, key=lambda frame: frame[18:20])) is (name not in ("reorder", "flip", "truncate"))


def test_a_flip_is_one_bit_behind_the_ethernet_header() -> None:
    for number, got in enumerate(Stage(flip=1.0).pass_through(200)):
        sent = plain_frame(number)[vnet.VNET_LEN :]
        difference = np.frombuffer(got, np.uint8) ^ np.frombuffer(sent, np.uint8)
        assert sum(int(octet).bit_count() for octet in difference) == 1
        assert not difference[:14].any()


def test_a_reordered_frame_is_overtaken_by_three_or_waits_a_millisecond() -> None:
    stage = Stage(reorder=1.0)
    stage.give(plain_frame(0))
    assert list(stage.take()) == []
    assert faults.wait_ns(stage.held, 0) == faults.OVERTAKE_WAIT_NS
    stage.plan = stage.plan._replace(reorder=0)
    for number in range(1, 6):
        stage.give(plain_frame(number))
    assert [frame[19] for frame in stage.take()] == [1, 2, 3, 0, 4, 5]
    late = Stage(reorder=1.0)
    late.give(plain_frame(9))
    assert len(list(late.take(faults.OVERTAKE_WAIT_NS))) == 1


def test_a_delay_holds_every_frame_for_that_long() -> None:
    stage = Stage(delay_ns=5_000_000)
    stage.give(plain_frame(0), 1000)
    stage.give(plain_frame(1), 2_000_000)
    assert faults.wait_ns(stage.held, 1000) == 5_000_000
    assert list(stage.take(5_000_999)) == []
    assert [frame[19] for frame in stage.take(5_001_000)] == [0]
    assert [frame[19] for frame in stage.take(7_000_000)] == [1]
    assert faults.wait_ns(stage.held, 8_000_000) == -1


def test_one_seed_is_one_sequence_and_another_is_another() -> None:
    chances: dict[str, Any] = {"loss": 0.1, "dup": 0.1, "reorder": 0.1, "flip": 0.1, "truncate": 0.1}
    first = Stage(**chances, seed=7).pass_through(300)
    assert first == Stage(**chances, seed=7).pass_through(300)
    assert first != Stage(**chances, seed=8).pass_through(300)


def super_segment(base: Packet, gso_type: int, size: int, payload: bytes) -> bytes:
    """A GSO frame as the kernel hands it over: the checksum field holds the pseudo-header's sum."""
    frame = bytearray(bytes(base / Raw(payload)))
    l4_at = len(frame) - len(payload) - len(bytes(base.lastlayer()))
    offset = 16 if TCP in base else 6
    addresses = frame[26:34] if IP in base else frame[22:54]
    protocol, l4_len = (6 if TCP in base else 17), len(frame) - l4_at
    frame[l4_at + offset : l4_at + offset + 2] = ones_sum(bytes(addresses), protocol + l4_len).to_bytes(2, "big")
    return bytes(emit_vnet(Vnet(vnet.NEEDS_CSUM, gso_type, 0, size, l4_at, offset), bytes(frame)))


@pytest.mark.slow
@pytest.mark.parametrize("network", [IP(src="10.0.0.1", dst="10.0.0.2", id=7), IPv6(src="fd00::1", dst="fd00::2")])
@pytest.mark.parametrize("transport", [TCP(sport=1, dport=2, seq=2**32 - 700, flags="PAFC"), UDP(sport=1, dport=2)])
@pytest.mark.parametrize("length", [1, 1000, 1001, 2999])
def test_a_super_segment_becomes_the_frames_the_kernel_would_make(
    network: Packet, transport: Packet, length: int
) -> None:
    kinds = {(True, True): vnet.GSO_TCPV4, (True, False): vnet.GSO_TCPV6}
    base, payload = ETHER / network / transport, (PAYLOAD * 3)[:length]
    stage = Stage(delay_ns=1)
    stage.give(super_segment(base, kinds.get((TCP in base, IP in base), 5), 1000, payload))
    got = [Ether(frame) for frame in stage.take(1)]
    assert len(got) == (length + 999) // 1000
    for index, packet in enumerate(got):
        last = index == len(got) - 1
        wanted = base.copy() / Raw(payload[1000 * index : 1000 * index + 1000])
        if TCP in base:
            wanted[TCP].seq = (2**32 - 700 + 1000 * index) % 2**32
            wanted[TCP].flags = ("PF" if last else "") + "A" + ("C" if index == 0 else "")
        if IP in base:
            wanted[IP].id = 7 + index
        assert bytes(packet) == bytes(wanted)  # scapy fills in every length and checksum by itself
    assert stage.counters[Counter.FAULT_DELAYED] == len(got)


def test_a_checksum_left_to_the_interface_is_filled_in_before_a_bit_is_turned() -> None:
    base = ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1, dport=2, flags="A")
    for length in (7, 8):
        stage = Stage(flip=1.0)
        stage.give(super_segment(base, vnet.GSO_NONE, 0, PAYLOAD[:length]))
        (got,) = stage.take()
        header_right = internet_checksum(got[14:34]) == 0
        pseudo = ones_sum(got[26:34], 6 + len(got) - 34)
        assert header_right is not (internet_checksum(got[34:], pseudo) == 0)


def test_a_sum_of_zero_does_not_say_that_there_is_none() -> None:
    base = ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2)
    without = Ether(bytes(base / Raw(bytes(2))))[UDP].chksum
    payload = without.to_bytes(2, "big")  # makes the sum 0xFFFF, whose complement is 0
    stage = Stage(delay_ns=1)
    stage.give(super_segment(base, vnet.GSO_NONE, 0, payload))
    (got,) = stage.take(1)
    assert Ether(got)[UDP].chksum == 0xFFFF
    assert got == bytes(base / Raw(payload))


def test_frames_that_are_no_ip_are_never_damaged() -> None:
    stage = Stage(flip=1.0, truncate=1.0)
    frame = bytes(emit_vnet(Vnet(), bytes(ETHER / ARP())))
    stage.give(frame)
    assert list(stage.take()) == [frame[vnet.VNET_LEN :]]


@pytest.mark.parametrize("frame", ["unknown kind", "too long", "no payload"])
def test_what_cannot_be_split_or_held_is_dropped_and_counted(frame: str) -> None:
    base = ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1, dport=2)
    made = {
        "unknown kind": super_segment(base, 3, 1000, PAYLOAD),
        "too long": super_segment(base, vnet.GSO_NONE, 0, PAYLOAD * 9),
        "no payload": super_segment(base, vnet.GSO_TCPV4, 1000, b""),
    }
    stage = Stage(loss=1e-9)
    stage.give(made[frame])
    assert list(stage.take()) == []
    assert stage.counters[Counter.DROP_UNSPLIT] == 1


def test_the_queue_says_when_it_is_full_before_it_is() -> None:
    stage = Stage(delay_ns=1, dup=1.0)
    while faults.has_room(stage.held):
        stage.give(plain_frame())
    assert stage.counters[Counter.DROP_UNSPLIT] == 0
    assert stage.held.queue[2] > faults.HELD_FRAMES - faults.HELD_ROOM
    list(stage.take(1))
    faults.release(stage.held, 1, stage.vectors)
    assert faults.has_room(stage.held)


def test_text_and_settings_are_the_same_thing() -> None:
    text = "loss=0.01,dup=0.01,reorder=0.01,flip=0.0001,truncate=0.001,delay=5000.000us,seed=7"
    settings = parse_faults("loss=0.01,dup=0.01, reorder=0.01,flip=1e-4,truncate=0.001,delay=5ms,seed=7")
    assert settings == FaultSettings(0.01, 0.01, 0.01, 1e-4, 0.001, 5_000_000, 7)
    assert settings.text() == text
    assert parse_faults(text) == settings
    assert parse_faults("") == FaultSettings()
    assert (FaultSettings(seed=3).text(), FaultSettings().is_on) == ("", False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loss", "is not a number"),
        ("loss=1.5", "is not a probability"),
        ("loss=-0.1", "is not a probability"),
        ("loss=nan", "is not a number"),
        ("lose=0.1", "is unknown"),
        ("loss=0.1,loss=0.2", "given twice"),
        ("delay=5", "is not a time with a unit"),
        ("delay=11s", "outside 0..10 s"),
        ("seed=1.5", "is not a whole number"),
        (",", "is unknown"),
    ],
)
def test_what_is_no_fault_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_faults(text)


def test_frames_of_a_wire_whose_mtu_grew_are_held() -> None:
    stage = Stage(mtu=1500, delay_ns=1)
    packet = ETHER / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=1, dport=2) / Raw(bytes(9000 - 28))
    frame = bytes(emit_vnet(Vnet(), bytes(packet)))
    stage.give(frame)
    assert list(stage.take(1)) == [frame[vnet.VNET_LEN :]]
