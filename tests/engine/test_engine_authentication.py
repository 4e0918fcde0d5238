"""The MAC of compiled code is the defined one, and only NICs with the same key accept each other's blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.codec import get
from netoffload.compiled.arrays import Uint8Array
from netoffload.engine.authentication import has_mac, is_on, make_mac_key, put_mac
from netoffload.errors import UsageError
from netoffload.wire.authentication import KEY_LEN, MAC_LEN, siphash128, siphash_key
from netoffload.wire.offload import FLAGS, HAS_MAC
from tests.engine.frames import make_segment, tcp_of
from tests.engine.nic_pair import FAMILIES, ISN, Nic, connect, connected
from tests.shared.formats import block_mac

KEY = bytes(range(KEY_LEN))
WORDS = make_mac_key(KEY)
OTHER_KEY = bytes(reversed(KEY))
VALUES = np.random.default_rng(25).normal(0, 2e-3, 8000).astype(np.float32)
SENT = VALUES.tobytes()
ROUNDED = get("inceptionn").round_trip(VALUES, 10).tobytes()
WAYS = pytest.mark.parametrize(("in_udp", "bundles"), [(False, False), (True, False), (True, True)])

# The authors' reference implementation, vectors.h: the key is 00 01 .. 0f, the octets are 00 01 .. as many as said.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def random_octets(seed: int, length: int) -> Uint8Array:
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)


@pytest.mark.parametrize("length", VECTORS)
def test_the_oracle_is_the_authors(length: int) -> None:
    assert siphash128(bytes(range(16)), bytes(range(length))).hex() == VECTORS[length]


def test_the_key_of_a_file_never_changes_its_meaning() -> None:
    assert siphash_key(KEY).hex() == "4b6f5806686c671f08286701efdbc9d3"
    assert block_mac(KEY, b"netoffload").hex() == "ae48b5153c52077892695ad520afa276"


@given(seed=st.integers(0, 99), length=st.integers(0, 9000), at=st.integers(0, 9))
def test_a_mac_is_the_defined_one(seed: int, length: int, at: int) -> None:
    octets = random_octets(seed, at + length + MAC_LEN + 1)
    rest = octets[at + length + MAC_LEN :].copy()
    put_mac(WORDS, octets, at, length, at + length)
    defined = block_mac(KEY, octets[at : at + length].tobytes())
    assert octets[at + length : at + length + MAC_LEN].tobytes() == defined
    assert (octets[at + length + MAC_LEN :] == rest).all()
    assert has_mac(WORDS, octets, at, length, at + length)


def test_every_bit_counts() -> None:
    octets = random_octets(1, 100 + MAC_LEN)
    put_mac(WORDS, octets, 0, 100, 100)
    for index in range(octets.size):
        for bit in range(8):
            octets[index] ^= 1 << bit
            assert not has_mac(WORDS, octets, 0, 100, 100)
            octets[index] ^= 1 << bit
    assert has_mac(WORDS, octets, 0, 100, 100)


def test_without_a_key_it_is_off() -> None:
    assert is_on(WORDS)
    assert not is_on(make_mac_key(None))


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match=f"a key of {length} octets"):
        make_mac_key(bytes(length))


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
