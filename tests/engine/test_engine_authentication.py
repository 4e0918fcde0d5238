"""The MAC of compiled code is the defined one, at any length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.compiled.arrays import Uint8Array
from netoffload.engine.authentication import has_mac, is_on, make_mac_key, put_mac
from netoffload.errors import UsageError
from netoffload.wire.authentication import KEY_LEN, MAC_LEN, siphash128, siphash_key
from tests.shared.formats import block_mac

KEY = bytes(range(KEY_LEN))
WORDS = make_mac_key(KEY)

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
