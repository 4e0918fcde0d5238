"""Blocks with a MAC: only NICs with the same key accept each other's blocks."""

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.wire.authentication import KEY_LEN
from netoffload.wire.offload import FLAGS, HAS_MAC, MAC_LEN
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FAMILIES, ISN, Nic, connect, connected
from tests.shared.formats import block_mac

KEY = bytes(range(KEY_LEN))
OTHER_KEY = bytes(reversed(KEY))
VALUES = np.random.default_rng(25).normal(0, 2e-3, 8000).astype(np.float32)
SENT = VALUES.tobytes()
ROUNDED = get("inceptionn").round_trip(VALUES, 10).tobytes()
WAYS = pytest.mark.parametrize(("in_udp", "bundles"), [(False, False), (True, False), (True, True)])


def make_pair(ipv6: bool = False, **settings: bool) -> tuple[Nic, Nic]:
    return connected(ipv6, key=KEY, **settings)


@FAMILIES
@WAYS
def test_blocks_cross_between_nics_with_the_same_key(ipv6: bool, in_udp: bool, bundles: bool) -> None:
    sender, receiver = make_pair(ipv6, in_udp=in_udp, bundles=bundles)
    frames = sender.from_host(make_segment(SENT, seq=ISN + 1, ipv6=ipv6))
    assert bundles or all(len(frame) - 24 <= 1500 for frame in frames)
    (got,) = receiver.from_wire(frames)
    assert tcp_of(got)[1] == ROUNDED
    (flow,) = sender.flows()
    assert flow["payload_octets"] == receiver.flows("rx")[0]["payload_octets"]


@FAMILIES
def test_the_mac_is_the_defined_one_of_addresses_and_block(ipv6: bool) -> None:
    sender, _ = make_pair(ipv6)
    (frame,) = sender.from_host(make_segment(SENT[:1000], seq=ISN + 1, ipv6=ipv6))
    comp_at = 24 + (40 if ipv6 else 20)
    assert frame[comp_at + FLAGS] == HAS_MAC
    addresses_at = comp_at - (32 if ipv6 else 8)
    assert frame[-MAC_LEN:] == block_mac(KEY, frame[addresses_at:-MAC_LEN])


def test_a_block_without_a_mac_or_of_another_key_is_refused() -> None:
    for key in (None, OTHER_KEY):
        sender, receiver = make_pair()
        forger = Nic(key=key)
        sender.settings = sender.settings._replace(mac_key=forger.settings.mac_key)
        (forged,) = sender.from_host(make_segment(SENT[:1000], seq=ISN + 1))
        assert receiver.from_wire([forged]) == []
        assert receiver.counts()["drop_bad_mac"] == 1


def test_a_nic_without_a_key_refuses_a_mac() -> None:
    sender, receiver = make_pair()
    receiver.settings = receiver.settings._replace(mac_key=Nic().settings.mac_key)
    assert receiver.from_wire(sender.from_host(make_segment(SENT[:1000], seq=ISN + 1))) == []
    assert receiver.counts()["drop_bad_version"] == 1


@pytest.mark.parametrize("keys", [(KEY, None), (None, KEY)])
def test_a_nic_with_a_key_and_one_without_send_each_other_no_blocks(keys: tuple[bytes | None, bytes | None]) -> None:
    client, server = Nic(key=keys[0]), Nic(key=keys[1])
    connect(client, server)
    data = make_segment(SENT[:1000], seq=ISN + 1)
    assert client.from_host(data) == [data]
    assert client.counts()["bypass_peer"] == 1
    assert not client.flows()[0]["peer_decodes"]


@pytest.mark.parametrize(("block_len", "reason"), [(55, "drop_runt"), (56, "drop_bad_crc")])
def test_a_frame_too_short_for_its_mac_is_a_runt(block_len: int, reason: str) -> None:
    sender, receiver = make_pair(ipv6=True)
    (good,) = sender.from_host(make_segment(SENT[:1000], seq=ISN + 1, ipv6=True))
    short = bytearray(good[: 24 + 40 + block_len])
    short[24 + 4 : 24 + 6] = block_len.to_bytes(2, "big")
    assert receiver.from_wire([bytes(short)]) == []
    assert receiver.counts()[reason] == 1
