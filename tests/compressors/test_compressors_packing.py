"""Codes and octets: every width, ternary digits, Elias codes; kernels against their oracles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.compressors import elias, packing
from netoffload.errors import CodecError
from tests.compressors.oracles import elias_exact, pack_exact, pack_trits_exact
from tests.shared.example_counts import examples

RANDOM = np.random.default_rng(1)
COUNTS = (0, 1, 2, 7, 8, 9, 31, 64, 203)


@pytest.mark.parametrize("width", range(1, packing.MAX_WIDTH + 1))
@pytest.mark.parametrize("at", [0, 3])
def test_any_width_is_packed_as_the_oracle_has_it_and_comes_back(width: int, at: int) -> None:
    for count in COUNTS:
        codes = RANDOM.integers(0, 2**width, count + 5).astype(np.uint16)
        if count:
            codes[5] = 2**width - 1
        octets = packing.stream_octets(count, width)
        target = np.zeros(at + octets + packing.SLACK, np.uint8)
        assert packing.pack(codes.view(np.uint8), 5, count, width, target, at) == at + octets
        assert target[at : at + octets].tobytes() == pack_exact(codes[5:], width)
        assert not target[:at].any()
        assert not target[at + octets :].any()
        back = np.zeros(count + 5, np.uint16)
        assert packing.unpack(target, at, back.view(np.uint8), 5, count, width) == at + octets
        assert back[5:].tolist() == codes[5:].tolist()


@pytest.mark.parametrize(("count", "width"), [(1, 2), (3, 5), (9, 15), (7, 1)])
def test_bits_behind_a_stream_are_noticed(count: int, width: int) -> None:
    octets = packing.stream_octets(count, width)
    for bit in range(count * width, 8 * octets):
        stream = np.zeros(octets + packing.SLACK, np.uint8)
        stream[bit >> 3] |= 1 << (bit & 7)
        assert packing.unpack(stream, 0, np.zeros(count, np.uint16).view(np.uint8), 0, count, width) == -1


@pytest.mark.parametrize("count", COUNTS)
def test_five_ternary_digits_share_an_octet(count: int) -> None:
    codes = RANDOM.choice(np.array([0, 2, 3], np.uint16), count)
    octets = packing.trit_octets(count)
    target = np.zeros(octets + packing.SLACK, np.uint8)
    packing.pack_trits(codes, count, target, 0)
    assert target[:octets].tobytes() == pack_trits_exact(np.where(codes > 0, codes - 1, 0))
    assert not target[octets:].any()
    back = np.zeros(count, np.uint16)
    assert packing.unpack_trits(target, 0, back, count)
    assert back.tolist() == codes.tolist()


def test_every_octet_of_five_digits_is_read_or_refused() -> None:
    for octet in range(256):
        stream = np.zeros(1 + packing.SLACK, np.uint8)
        stream[0] = octet
        codes = np.zeros(5, np.uint16)
        assert packing.unpack_trits(stream, 0, codes, 5) == (octet <= packing.LARGEST_TRITS)
        if octet <= packing.LARGEST_TRITS:
            assert pack_trits_exact(np.where(codes > 0, codes - 1, 0)) == bytes([octet])
        assert packing.unpack_trits(stream, 0, codes, 2) == (octet < 9)  # digits behind the second one must be 0


def elias_codes(kind: str) -> np.ndarray:
    levels = {
        "empty": np.zeros(0, int),
        "one": np.ones(1, int),
        "zeros": np.zeros(77, int),
        "small": RANDOM.integers(0, 4, 500),
        "sparse": RANDOM.integers(1, 9, 3000) * (RANDOM.random(3000) < 0.01),
        "all": np.concatenate((np.arange(70), 2 ** np.arange(1, 15), 2 ** np.arange(1, 16) - 1)),
    }[kind]
    signs = RANDOM.integers(0, 2, levels.size)
    return np.where(levels > 0, levels << 1 | signs, 0).astype(np.uint16)


@pytest.mark.parametrize("kind", ["empty", "one", "zeros", "small", "sparse", "all"])
@pytest.mark.parametrize("form", elias.FORMS)
def test_elias_streams_are_the_oracles_and_come_back(form: str, kind: str) -> None:
    codes = elias_codes(kind)
    wanted = elias_exact(codes, form)
    assert -(-elias.stream_bits(codes, form) // 8) == len(wanted)
    target = np.zeros(3 + len(wanted) + packing.SLACK, np.uint8)
    elias.write_stream(codes, form, target, 3)
    assert target[3 : 3 + len(wanted)].tobytes() == wanted
    assert not target[3 + len(wanted) :].any()
    assert elias.read_stream(target[3 : 3 + len(wanted)].copy(), codes.size, form).tolist() == codes.tolist()


def test_elias_codes_are_those_of_the_literature() -> None:
    # Lengths from the definitions: gamma 2 floor(log2 k) + 1; omega 1, 3, 3, 6, 6, 6, 6, 7, ... 7, 11.
    gamma = [elias.stream_bits(np.array([(k - 1) << 1], np.uint16), "gamma") - (k > 1) for k in range(1, 18)]
    omega = [elias.stream_bits(np.array([(k - 1) << 1], np.uint16), "omega") - (k > 1) for k in range(1, 18)]
    assert gamma == [1, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 9, 9]
    assert omega == [1, 3, 3, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 11, 11]


@settings(max_examples=examples(60))
@given(st.sampled_from(elias.FORMS), st.binary(max_size=40), st.integers(0, 60))
def test_any_octets_are_an_elias_stream_or_refused(form: str, octets: bytes, count: int) -> None:
    stream = np.frombuffer(octets, np.uint8)
    try:
        codes = elias.read_stream(stream, count, form)
    except CodecError:
        return
    assert codes.size == count
    assert elias_exact(np.where(codes == 1, 0, codes), form) == octets  # one form only
