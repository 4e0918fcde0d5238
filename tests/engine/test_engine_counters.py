"""The list of counters is complete, and compiled fields and headers are the defined ones."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netoffload.compiled.octets import be16, be32, be64, put_be16, put_be32
from netoffload.engine.counters import Counter, as_dict, make_counters
from netoffload.engine.network import pseudo_sum, put_datagram
from netoffload.wire import checksum
from tests.shared.formats import Ipv4, Ipv6, emit_ipv4, emit_ipv6, parse_ipv6


def test_every_counter_says_what_it_counts() -> None:
    assert list(as_dict(make_counters())) == [counter.name.lower() for counter in Counter]
    assert all(counter.meaning.strip() for counter in Counter)


@given(word=st.integers(0, 2**32 - 1), half=st.integers(0, 2**16 - 1), at=st.integers(0, 3))
def test_fields_are_in_network_order(word: int, half: int, at: int) -> None:
    array = np.zeros(16, np.uint8)
    put_be32(array, at, word)
    put_be16(array, at + 4, half)
    assert bytes(array[at : at + 6]) == word.to_bytes(4, "big") + half.to_bytes(2, "big")
    assert (be32(array, at), be16(array, at + 4)) == (word, half)
    assert be64(array, at) == int.from_bytes(bytes(array[at : at + 8]), "big", signed=True)


@given(
    header=st.builds(
        Ipv4,
        *[st.integers(0, 255), st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 255), st.just(6)],
        *[st.binary(min_size=4, max_size=4)] * 2,
    ),
    length=st.integers(20, 65000),
)
def test_a_changed_ipv4_header_is_summed_anew(header: Ipv4, length: int) -> None:
    array = np.frombuffer(b"ab" + emit_ipv4(header, b"") + bytes(8), np.uint8).copy()
    put_datagram(array, 2, 20, length, 3, 108)
    octets = bytes(array[2:22])
    assert checksum.internet_checksum(octets) == 0
    assert octets[2:6] == length.to_bytes(2, "big") + ((header.ident + 3) % 2**16).to_bytes(2, "big")
    pseudo = header.src + header.dst + bytes((0, 6)) + length.to_bytes(2, "big")
    assert pseudo_sum(array, 2, 20, 6, length) == checksum.ones_sum(pseudo)


@given(
    header=st.builds(
        Ipv6,
        *[st.integers(0, 255), st.integers(0, 2**20 - 1), st.integers(0, 255), st.integers(0, 255)],
        *[st.binary(min_size=16, max_size=16)] * 2,
    ),
    length=st.integers(40, 65000),
)
def test_a_changed_ipv6_header(header: Ipv6, length: int) -> None:
    array = np.frombuffer(b"ab" + emit_ipv6(header, b"") + bytes(8), np.uint8).copy()
    put_datagram(array, 2, 40, length, 3, 108)
    payload = bytes(length - 40)
    assert parse_ipv6(bytes(array[2:42]) + payload) == (dataclasses.replace(header, next_header=108), payload)
    pseudo = header.src + header.dst + bytes((0, 6)) + length.to_bytes(2, "big")
    assert pseudo_sum(array, 2, 40, 6, length) == checksum.ones_sum(pseudo)
