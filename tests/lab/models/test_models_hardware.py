"""The hardware model: cycles worked out by hand, and every cycle of every port accounted for."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import get
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.models.hardware import (
    COMPRESSOR,
    DECOMPRESSOR,
    MODELLED,
    REGISTER_BITS,
    Engine,
    Port,
    Wait,
    bursts_of,
    clocked,
    compressor,
    decompressor,
)
from tests.shared.commands import netoffload, refusal
from tests.shared.example_counts import examples

every_codec = pytest.mark.parametrize("codec", MODELLED)

# Exponents around every class limit, more often than a random word would have them.
near_one = st.builds(
    lambda sign, exponent, mantissa: sign << 31 | exponent << 23 | mantissa,
    st.integers(0, 1),
    st.integers(108, 129),
    st.one_of(st.sampled_from([0, 1, 0x400000, 0x7FFFFF]), st.integers(0, 0x7FFFFF)),
)


def floats(words: list[int]) -> Float32Array:
    return np.array(words, np.uint32).view(np.float32)


def whole(bursts: int) -> Float32Array:
    """Bursts in which nothing can be compressed: 272 bits each."""
    return np.full(8 * bursts, 1.5, np.float32)


def nothing(bursts: int) -> Float32Array:
    """Bursts of which only the tags remain: 16 bits each."""
    return np.zeros(8 * bursts, np.float32)


def there_and_back(values: Float32Array, codec: str = "inceptionn", bound_k: int = 10) -> tuple[Engine, Engine]:
    """Both engines after their streams; the octets in between are as many as the codec's."""
    bursts = bursts_of(values, codec, bound_k)
    both = clocked(compressor(bursts)), clocked(decompressor(bursts))
    payload = get(codec).encode(values, bound_k)
    assert both[0].outlet.octets == both[1].intake.octets == payload.size
    for engine in both:
        assert engine.intake.cycles == engine.outlet.cycles  # every cycle of both ports has a name
        assert engine.held_bits == 0
    return both


def seen(port: Port) -> tuple[int, dict[Wait, int]]:
    return port.beats, dict(port.waits)


@every_codec
@given(words=st.lists(st.one_of(near_one, st.integers(0, 2**32 - 1)), max_size=40), bound_k=st.integers(1, 16))
def test_bursts_are_as_long_as_the_codecs(codec: str, words: list[int], bound_k: int) -> None:
    values = floats(words)
    each = [get(codec).encode(values[at : at + 8].copy(), bound_k).size for at in range(0, len(words), 8)]
    assert [burst.bits // 8 for burst in bursts_of(values, codec, bound_k)] == each


def test_bursts_without_a_value_by_hand() -> None:
    packs, unpacks = there_and_back(nothing(64))
    # Sixteen tag words are a beat; it leaves one cycle after the sixteenth came, while the next burst enters.
    assert seen(packs.intake) == (64, {Wait.INPUT_ENDED: 1})
    assert seen(packs.outlet) == (4, {Wait.COLLECTING: 61})
    # One cycle to get the first beat, then a burst every cycle. Beats 1 and 2 fill the buffer to 496 bits; there is
    # room for the third when 256 are left (cycle 16), for the fourth 16 cycles later, and then 32 bursts are held.
    assert seen(unpacks.intake) == (4, {Wait.BUFFER_FULL: 29, Wait.INPUT_ENDED: 32})
    assert seen(unpacks.outlet) == (64, {Wait.INCOMPLETE_BURST: 1})


@pytest.mark.parametrize(("bursts", "surplus"), [(16, 0), (32, 1), (64, 3)])
def test_bursts_that_grow_by_hand(bursts: int, surplus: int) -> None:
    packs, unpacks = there_and_back(whole(bursts))
    # 272 bits in, 256 out: after 16 bursts a whole beat is left over, and the next burst waits for it to leave. The
    # last sixteen leave theirs after the input has ended.
    assert seen(packs.intake) == (bursts, {Wait.INPUT_ENDED: 2} | ({Wait.ALIGNMENT_FULL: surplus} if surplus else {}))
    assert seen(packs.outlet) == (bursts * 17 // 16, {Wait.COLLECTING: 1})
    # Two cycles until two beats are there; from then on 16 bits fewer are left each cycle, and in every seventeenth
    # none.
    assert seen(unpacks.intake) == (bursts * 17 // 16, {Wait.INPUT_ENDED: 1})
    assert seen(unpacks.outlet) == (bursts, {Wait.INCOMPLETE_BURST: 2 + surplus})


def test_one_float_by_hand() -> None:
    packs, unpacks = there_and_back(np.array([1.5], np.float32))
    assert (seen(packs.intake), seen(packs.outlet)) == ((1, {Wait.INPUT_ENDED: 1}), (1, {Wait.COLLECTING: 1}))
    assert (packs.outlet.octets, unpacks.outlet.octets) == (2 + 4, 32)
    assert packs.outlet.rate_bps(1e8) == 8 * 6 * 1e8 / 2


def test_no_float_takes_no_cycle() -> None:
    for engine in there_and_back(nothing(0), "bounded", 10):
        assert (engine.intake.cycles, engine.outlet.cycles, engine.intake.rate_bps(1e8)) == (0, 0, 0.0)


@every_codec
@settings(max_examples=examples(50))
@given(words=st.lists(st.one_of(near_one, st.just(0), st.just(0x3FC00000)), max_size=200))
def test_whole_streams_go_there_and_back(codec: str, words: list[int]) -> None:
    there_and_back(floats(words), codec)


def test_mixed_bursts_stall_more_and_a_third_beat_ends_it() -> None:
    mixed = np.array([1.5] * 6 + [0.5, 0.0], np.float32)  # 16 + 6 * 32 + 16 = 224 bits
    values = np.tile(np.concatenate([whole(1), mixed, whole(1)]), 200)
    packs, unpacks = there_and_back(values)
    assert packs.outlet.octets == values.nbytes
    # Compressor: 272 bits are held, then 16 + 224, then 240 + 272; one beat of those leaves, and another stays.
    assert seen(packs.intake) == (600, {Wait.ALIGNMENT_FULL: 199, Wait.INPUT_ENDED: 2})
    # Decompressor: of 512 bits 240 stay, of 496 then 272, of those none: 256 come, and 272 are needed.
    assert seen(unpacks.outlet) == (600, {Wait.INCOMPLETE_BURST: 1 + 200})
    bursts = bursts_of(values, "inceptionn", 10)
    packs = compressor(bursts, replace(COMPRESSOR, register_bits=3 * 256))
    unpacks = decompressor(bursts, replace(DECOMPRESSOR, register_bits=3 * 256))
    assert clocked(packs).intake.cycles == clocked(unpacks).intake.cycles == 602


@pytest.mark.parametrize(("register_bits", "finishes"), [(REGISTER_BITS, True), (512, False)])
def test_the_papers_two_beats_are_too_small_a_buffer(register_bits: int, finishes: bool) -> None:
    bursts = bursts_of(np.array([1.5] * 7 + [0.02] + [1.5] * 8, np.float32), "inceptionn", 10)
    # The second vector: an octet of the first beat, all of the second, one of the third.
    assert [burst.bits // 8 for burst in bursts] == [31, 34]
    engine = decompressor(bursts, replace(DECOMPRESSOR, register_bits=register_bits))
    for _ in range(20):
        engine.cycle()
    assert (engine.outlet.beats == 2) is finishes
    assert finishes or (engine.held_bits, engine.intake.waits[Wait.BUFFER_FULL]) == (264, 18)


@settings(max_examples=examples(50))
@given(st.lists(st.one_of(near_one, st.just(0), st.just(0x3FC00000)), min_size=8, max_size=160))
def test_a_register_never_holds_more_than_it_has(words: list[int]) -> None:
    bursts = bursts_of(floats(words), "inceptionn", 10)
    for engine in (compressor(bursts), decompressor(bursts)):
        while engine.outlet.next is not None:
            engine.cycle()
            assert 0 <= engine.held_bits <= REGISTER_BITS


def test_what_no_engine_can_do_is_refused() -> None:
    with pytest.raises(UsageError, match="codec 'truncate16' has no burst engine: choose from inceptionn, bounded"):
        bursts_of(whole(1), "truncate16", 10)
    with pytest.raises(UsageError, match=r"1\.\.16"):
        bursts_of(whole(1), "bounded", 0)


def test_what_the_engines_are_made_of() -> None:
    # Three levels of 256 bits and the register.
    assert COMPRESSOR.register_bits == 520
    assert COMPRESSOR.width_bits == 3 * 256 + 520
    # Rows of the levels: 3, 4, 5; of the register: 5.
    assert COMPRESSOR.multiplexers == (3 + 4 + 5) * 256 + 5 * 520
    # A beat enters behind 0 to 33 octets, a burst leaves with 0 to 32, a lane's code begins 0 to 4 octets per lane on.
    assert DECOMPRESSOR.register_bits == 520
    assert DECOMPRESSOR.width_bits == 520 + 520 + 32 * sum(range(1, 9))
    rows = (0, 3, 4, 4, 5, 5, 5, 5)
    assert DECOMPRESSOR.multiplexers == (6 + 6) * 520 + sum(32 * (i + 1) * rows[i] for i in range(8))


def model_engine(*words: str) -> subprocess.CompletedProcess[str]:
    return netoffload("model", "engine", *words)


@pytest.mark.parametrize("suffix", [".npy", ".bin"])
def test_the_command_reports_what_the_model_counts(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"gradient{suffix}"
    values = whole(48)
    np.save(path, values.reshape(16, 24)) if suffix == ".npy" else values.tofile(path)
    done = model_engine("--gradients", str(path), "--bursts", "32", "--clock", "200MHz", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.keys() == {
        *("configuration", "floats", "bursts", "ratio", "compressor", "decompressor", "lines", "circuits")
    }
    assert (report["floats"], report["bursts"], report["ratio"]) == (256, 32, 16 / 17)
    assert report["configuration"]["clock_hz"] == 200_000_000
    assert report["compressor"] == {
        "cycles": 35,
        "beats_in": 32,
        "beats_out": 34,
        "input_bps": 256 * 32 * 200e6 / 35,
        "output_bps": 256 * 34 * 200e6 / 35,
        "stalls": {"alignment_full": 1, "input_ended": 2},
        "wire_waits": {"collecting": 1},
    }
    assert report["decompressor"].keys() == report["compressor"].keys()
    assert report["decompressor"]["stalls"] == {"incomplete_burst": 3}
    ten, _, hundred = report["lines"]
    assert (ten["line_bps"], ten["limited_by"], ten["speedup"]) == (10**10, "line", pytest.approx(16 / 17))
    assert (hundred["limited_by"], hundred["gradient_bps"]) == ("engine", report["compressor"]["input_bps"])
    assert hundred["clock_to_fill_hz"] == pytest.approx(200e6 * 100e9 / report["compressor"]["output_bps"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--clock", "fast"), "clock 'fast' is not a number with a unit"),
        (("--codec", "none"), "codec 'none' has no burst engine"),
        (("--codec", "packed"), "codec 'packed' has no burst engine: choose from inceptionn, bounded"),
        (("--bound", "17"), "bound 17 is outside 1..16"),
        (("--gradients", "laplace:1"), "gradients 'laplace:1' are no .npy or .bin file of float32: name one, or write"),
        (("--gradients", "gaussian:x"), "gradients 'gaussian:x' are unknown: write gaussian:0.002"),
        (("--gradients", "/nonexistent.npy"), "cannot read gradients /nonexistent.npy"),
        (("--gradients", "gaussian-of-none.npy"), "cannot read gradients gaussian-of-none.npy"),
    ],
)
def test_a_wrong_option_is_one_line(words: tuple[str, ...], says: str) -> None:
    assert says in refusal("model", "engine", *words)


def test_files_that_are_no_float32_are_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(bytes(7))
    (tmp_path / "empty.bin").touch()
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "doubles.npy", np.zeros(8))
    np.save(tmp_path / "none.npy", np.zeros(0, np.float32))
    for name in ("odd.bin", "empty.bin", "text.npy", "doubles.npy", "none.npy"):
        assert name in refusal("model", "engine", "--gradients", str(tmp_path / name))
