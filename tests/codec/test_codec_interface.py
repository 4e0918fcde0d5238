"""The whole-array interface, the registry, and the codecs' promises about values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload import config
from netoffload.codec import CODECS, Codec, by_id, get, kernels
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.errors import CodecError, UsageError

INCEPTIONN, BOUNDED = get("inceptionn"), get("bounded")

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("codec", "value", "bound_k", "decoded"),
    [
        (INCEPTIONN, 1.0, 10, 1.0),
        (INCEPTIONN, -3.5, 10, -3.5),
        (INCEPTIONN, 0.75, 10, 0.75),
        (INCEPTIONN, 2.0**-5, 10, 2.0**-5),  # n = 5 = k // 2: still 16 bits
        (INCEPTIONN, 2.0**-5 + 2.0**-16, 10, 2.0**-5),  # cut off below 2^-15
        (INCEPTIONN, 2.0**-6, 10, 2.0**-6),  # 8 bits
        (INCEPTIONN, 0.03, 10, 3 / 128),
        (INCEPTIONN, 2.0**-8, 10, 0.0),  # the known defect: inside the bound's window, below the 8-bit form's last bit
        (INCEPTIONN, -(2.0**-8), 10, 0.0),
        (INCEPTIONN, 2.0**-11, 10, 0.0),
        (INCEPTIONN, -0.0, 10, 0.0),
        (INCEPTIONN, 1e-40, 10, 0.0),
        (INCEPTIONN, 0.6, 1, 76 / 128),
        (INCEPTIONN, 0.4, 1, 0.0),
        (BOUNDED, 2.0**-10, 10, 0.0),  # a tie between 0 and 2^-9: to even
        (BOUNDED, 1.01 * 2.0**-10, 10, 2.0**-9),
        (BOUNDED, 3 * 2.0**-10, 10, 2 * 2.0**-9),  # a tie between 1 and 2 units: to even
        (BOUNDED, -0.2, 10, -102 * 2.0**-9),
        (BOUNDED, 127.4 * 2.0**-9, 10, 127 * 2.0**-9),
        (BOUNDED, 0.6, 10, 19661 * 2.0**-15),
        (BOUNDED, 1 - 2.0**-17, 10, 1 - 2.0**-17),  # would round to 1: travels whole
        (BOUNDED, 0.5, 1, 0.0),
        (BOUNDED, 0.5 + 2.0**-20, 1, 0.5 + 2.0**-20),  # would round to 1/2, which is class 0: travels whole
        (BOUNDED, 0.7, 1, 22938 * 2.0**-15),
        (BOUNDED, -0.0, 10, 0.0),
        (BOUNDED, 1.5, 10, 1.5),
    ],
)
def test_values_by_hand(codec: Codec, value: float, bound_k: int, decoded: float) -> None:
    result = codec.round_trip(np.array([value], np.float32), bound_k)
    assert result[0] == np.float32(decoded)
    assert not np.signbit(result[0]) or decoded < 0


def test_a_burst_by_hand() -> None:
    values = np.array([0, 0.03, 0, 0, -0.5, 0, 0, 1.5], np.float32)
    payload = INCEPTIONN.encode(values, 10)
    assert payload.tobytes().hex() == "04c2" + "03" + "00c0" + "0000c03f"


@pytest.mark.skipif(JIT_DISABLED, reason="looks at what is compiled")
def test_values_that_may_not_be_written_compile_no_kernel_anew() -> None:
    values = np.array([0, 0.03, -0.5, 1.5], np.float32)
    payload, rounded = INCEPTIONN.encode(values, 10), INCEPTIONN.round_trip(values, 10)
    compiled: list[Any] = [kernels.encode_fit, kernels.round_trip]
    before = [len(one.signatures) for one in compiled]
    read_only = np.frombuffer(values.tobytes(), np.float32)
    for one in (read_only, read_only[1:], read_only[:0]):
        assert INCEPTIONN.round_trip(one, 10).tobytes() == INCEPTIONN.round_trip(one.copy(), 10).tobytes()
    assert INCEPTIONN.encode(read_only, 10).tobytes() == payload.tobytes()
    assert INCEPTIONN.round_trip(read_only, 10).tobytes() == rounded.tobytes()
    assert [len(one.signatures) for one in compiled] == before


@given(st.lists(finite, max_size=30), st.integers(1, 16))
def test_the_error_is_below_the_bound_or_the_eight_bit_forms_last_bit(values: list[float], bound_k: int) -> None:
    given_values = np.array(values, np.float32)
    error = np.abs(given_values.astype(np.float64) - INCEPTIONN.round_trip(given_values, bound_k))
    assert (error <= max(2.0**-bound_k, 2.0**-7)).all()
    assert (error[np.abs(given_values) >= 1] == 0).all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=30), st.integers(1, 16))
def test_a_second_round_trip_changes_nothing(words: list[int], bound_k: int) -> None:
    once = INCEPTIONN.round_trip(np.array(words, np.uint32).view(np.float32), bound_k)
    twice = INCEPTIONN.round_trip(once, bound_k)
    assert np.array_equal(once.view(np.uint32), twice.view(np.uint32))
    out = once.copy()
    assert INCEPTIONN.round_trip(out, bound_k, out) is out


ZEROS = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        *(("encode", (values, 10), "float32, not") for values in (np.zeros(4), np.zeros(4, np.int32), [0.0])),
        ("encode", (np.zeros((4, 4), np.float32)[:, ::2], 10), "float32, not"),
        *(("encode", (ZEROS, bound_k), r"1\.\.16") for bound_k in (0, 17, -1)),
        *(("encode", (ZEROS, bound_k), "is not a whole number") for bound_k in (10.0, True, "10")),
        *(
            ("decode", (payload, 8, 10), "a payload is a vector of uint8")
            for payload in (b"\0\0", np.zeros(2, np.int8), np.zeros((1, 2), np.uint8))
        ),
        *(("decode", (np.zeros(2, np.uint8), count, 10), "give the number of floats") for count in ("8", 8.0, None)),
    ],
)
def test_other_arguments_are_refused(name: str, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        getattr(INCEPTIONN, name)(*arguments)


def test_a_round_trip_writes_only_where_as_many_floats_may_be_written() -> None:
    values, memory = np.full(16, 0.3, np.float32), np.full(40, 7, np.float32)
    read_only = np.zeros(16, np.float32)
    read_only.flags.writeable = False
    for out in (memory[:15], memory[:17], read_only):
        with pytest.raises(UsageError, match=r"out has \d+ [a-z-]+ floats: give 16 that may be written"):
            INCEPTIONN.round_trip(values, 10, out)
    with pytest.raises(UsageError, match="out overlaps the values"):
        INCEPTIONN.round_trip(memory[:16], 10, memory[8:24])
    assert (memory == 7).all()
    assert INCEPTIONN.round_trip(memory[:16], 10, memory[16:32]).tobytes() == memory[:16].tobytes()


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_matrix_is_an_array() -> None:
    values = np.full((1, 16), 0.3, np.float32)
    matrix = np.asmatrix(values)
    assert INCEPTIONN.encode(matrix, 10).tobytes() == INCEPTIONN.encode(values, 10).tobytes()
    assert INCEPTIONN.round_trip(matrix, 10).tobytes() == INCEPTIONN.round_trip(values, 10).tobytes()


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (b"\x03\x00\x01", 8),
        (b"\x00\x00\x00", 8),
        (b"\x04\x00\x01", 1),
        (b"\x00\x00", 2**40),
        (b"\x00\x00", 2**62),
    ],
)
def test_malformed_payloads_are_refused(payload: bytes, count: int) -> None:
    with pytest.raises(CodecError):
        INCEPTIONN.decode(np.frombuffer(payload, np.uint8), count, 10)


@given(st.lists(st.floats(-1, 1, width=32, exclude_min=True, exclude_max=True), max_size=30), st.integers(1, 16))
def test_bounded_keeps_its_word_and_its_octets(values: list[float], bound_k: int) -> None:
    given_values = np.array(values, np.float32)
    payload = BOUNDED.encode(given_values, bound_k)
    decoded = BOUNDED.decode(payload, given_values.size, bound_k)
    assert (np.abs(given_values.astype(np.float64) - decoded) <= 2.0**-bound_k).all()
    assert np.array_equal(BOUNDED.encode(decoded, bound_k), payload)


def test_names_and_ids() -> None:
    assert [codec.name for codec in CODECS.values()] == list(config.CODECS)
    assert by_id(1) is INCEPTIONN
    assert by_id(0) is get("none")
    assert by_id(9) is None
    with pytest.raises(UsageError, match="inceptionn"):
        get("gzip")
    with pytest.raises(UsageError, match="codec 'sparse' is retired: use packed"):
        get("sparse")


@pytest.mark.parametrize(
    ("wanted", "understood", "taken"),
    [
        ("packed", ["packed", "bounded"], "packed"),
        ("packed", ["inceptionn", "bounded"], "bounded"),
        ("packed", ["inceptionn", "none"], None),
        ("bounded", ["packed"], None),
    ],
)
def test_a_peer_gets_a_codec_that_it_knows_with_the_same_values(
    wanted: str, understood: list[str], taken: str | None
) -> None:
    bitmap = sum(1 << get(name).codec_id for name in understood)
    assert kernels.codec_for(int(get(wanted).codec_id), bitmap) == (-1 if taken is None else get(taken).codec_id)


@pytest.mark.parametrize("made_up", [6, 9, 15])
def test_an_id_that_is_nobodys_codes_nothing(made_up: int) -> None:
    values = np.random.default_rng(1).normal(0, 0.01, 64).astype(np.float32)
    target = np.full(1000, 0xA5, np.uint8)
    classes = np.zeros(4, np.int64)
    assert not kernels.is_known(made_up)
    assert kernels.encode_fit(made_up, values.view(np.uint8), 0, 64, 10, target, 0, 500, classes) == (0, 0)
    assert kernels.decode(made_up, target, 0, 500, 64, 10, target, 500) == kernels.MALFORMED
    middle = kernels.Middle(0, 0)
    assert kernels.decode_halves(made_up, target, 0, 500, 64, middle, 10, target, 500) == kernels.MALFORMED
    assert (target == 0xA5).all()
    assert not classes.any()
    words = np.zeros(64, np.uint32)
    kernels.round_trip(made_up, values.view(np.uint32), 10, words)
    assert words.tobytes() == values.tobytes()


@pytest.mark.parametrize(("name", "counted"), [("truncate24", 1), ("truncate22", 2), ("truncate16", 2), ("none", 3)])
def test_a_codec_with_one_width_counts_its_floats_under_that(name: str, counted: int) -> None:
    source, target = np.zeros(4 * 64, np.uint8), np.zeros(1000, np.uint8)
    classes = np.zeros(4, np.int64)
    kernels.encode_fit(get(name).codec_id, source, 0, 64, 10, target, 0, 500, classes)
    assert classes.tolist() == [64 * (place == counted) for place in range(4)]
