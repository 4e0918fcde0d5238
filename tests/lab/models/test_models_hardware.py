"""The hardware model: the codec's octets, cycles worked out by hand, and every cycle of every port accounted for."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec import get
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CodecError, UsageError
from netoffload.lab.models import hardware
from netoffload.lab.models.hardware import (
    MODELLED,
    REGISTER_BITS,
    Engine,
    Port,
    Wait,
    beats_of,
    blocks_of,
    clocked,
)
from tests.shared.commands import netoffload, refusal
from tests.shared.example_counts import examples


def paced(beats: int, cycles: int) -> hardware.Timing:
    """The timing of a port that is ready in ``beats`` of every ``cycles`` cycles, evenly spread."""
    return lambda cycle: (cycle + 1) * beats // cycles > cycle * beats // cycles


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


def check_there_and_back(
    values: Float32Array, codec: str, bound_k: int, **ports: hardware.Timing
) -> tuple[Engine, Engine]:
    """Both engines, after their octets and floats were compared with the oracle's."""
    oracle = get(codec).oracle
    payload, compressor = hardware.compress(values, codec, bound_k, **ports)
    assert payload.tobytes() == oracle.encode(values, bound_k).tobytes()
    decoded, decompressor = hardware.decompress(payload, values.size, codec, bound_k, **ports)
    assert decoded.tobytes() == oracle.decode(payload, values.size, bound_k).tobytes()
    for engine in (compressor, decompressor):
        assert engine.intake.cycles == engine.outlet.cycles  # every cycle of both ports has a name
    return compressor, decompressor


def octets_after(values: Float32Array) -> bytes:
    return hardware.compress(values, "inceptionn", 10)[0].tobytes()


def seen(port: Port) -> tuple[int, dict[Wait, int]]:
    return port.beats, dict(port.waits)


@every_codec
@given(words=st.lists(st.one_of(near_one, st.integers(0, 2**32 - 1)), max_size=40), bound_k=st.integers(1, 16))
def test_octets_and_floats_are_the_oracles(codec: str, words: list[int], bound_k: int) -> None:
    check_there_and_back(floats(words), codec, bound_k)


def test_bursts_without_a_value_by_hand() -> None:
    compressor, decompressor = check_there_and_back(nothing(64), "inceptionn", 10)
    # Sixteen tag words are a beat; it leaves one cycle after the sixteenth came, while the next burst enters.
    assert seen(compressor.intake) == (64, {Wait.INPUT_ENDED: 1})
    assert seen(compressor.outlet) == (4, {Wait.COLLECTING: 61})
    # One cycle to get the first beat, then a burst every cycle. Beats 1 and 2 fill the buffer to 496 bits; there is
    # room for the third when 256 are left (cycle 16), for the fourth 16 cycles later, and then 32 bursts are held.
    assert seen(decompressor.intake) == (4, {Wait.BUFFER_FULL: 29, Wait.INPUT_ENDED: 32})
    assert seen(decompressor.outlet) == (64, {Wait.INCOMPLETE_BURST: 1})


@pytest.mark.parametrize(("bursts", "surplus"), [(16, 0), (32, 1), (64, 3)])
def test_bursts_that_grow_by_hand(bursts: int, surplus: int) -> None:
    compressor, decompressor = check_there_and_back(whole(bursts), "inceptionn", 10)
    # 272 bits in, 256 out: after 16 bursts a whole beat is left over, and the next burst waits for it to leave. The
    # last sixteen leave theirs after the input has ended.
    assert seen(compressor.intake) == (
        bursts,
        {Wait.INPUT_ENDED: 2} | ({Wait.ALIGNMENT_FULL: surplus} if surplus else {}),
    )
    assert seen(compressor.outlet) == (bursts * 17 // 16, {Wait.COLLECTING: 1})
    # Two cycles until two beats are there; from then on 16 bits fewer are left each cycle, and in every seventeenth
    # none.
    assert seen(decompressor.intake) == (bursts * 17 // 16, {Wait.INPUT_ENDED: 1})
    assert seen(decompressor.outlet) == (bursts, {Wait.INCOMPLETE_BURST: 2 + surplus})


def test_one_float_by_hand() -> None:
    compressor, decompressor = check_there_and_back(np.array([1.5], np.float32), "inceptionn", 10)
    assert (seen(compressor.intake), seen(compressor.outlet)) == (
        (1, {Wait.INPUT_ENDED: 1}),
        (1, {Wait.COLLECTING: 1}),
    )
    assert (compressor.outlet.octets, decompressor.outlet.octets) == (2 + 4, 32)
    assert compressor.outlet.rate_bps(1e8) == 8 * 6 * 1e8 / 2


def test_no_float_takes_no_cycle() -> None:
    for engine in check_there_and_back(nothing(0), "bounded", 10):
        assert (engine.intake.cycles, engine.outlet.cycles, engine.intake.rate_bps(1e8)) == (0, 0, 0.0)


@every_codec
@settings(max_examples=examples(50))
@given(
    words=st.lists(st.one_of(near_one, st.just(0), st.just(0x3FC00000)), max_size=200),
    source=st.tuples(st.integers(1, 9), st.integers(0, 9)),
    sink=st.tuples(st.integers(1, 9), st.integers(0, 9)),
)
def test_slow_ports_change_nothing_but_the_time(
    codec: str, words: list[int], source: tuple[int, int], sink: tuple[int, int]
) -> None:
    valid, ready = (paced(moves, moves + waits) for moves, waits in (source, sink))
    check_there_and_back(floats(words), codec, 10, valid=valid, ready=ready)


def test_a_slow_sink_stalls_both_engines() -> None:
    compressor, decompressor = check_there_and_back(whole(160), "inceptionn", 10, ready=paced(1, 4))
    assert compressor.intake.waits[Wait.SINK_BUSY] > 450  # of 4 x 170 cycles in which 160 bursts entered
    assert decompressor.intake.waits[Wait.SINK_BUSY] > 450
    assert compressor.outlet.waits[Wait.SINK_BUSY] + compressor.outlet.waits[Wait.COLLECTING] == 3 * 170
    assert decompressor.outlet.beats / decompressor.outlet.cycles == pytest.approx(1 / 4, rel=0.01)


def test_a_slow_line_carries_its_rate_times_the_ratio() -> None:
    values = np.random.default_rng(3).standard_normal(16_000).astype(np.float32) * np.float32(0.002)
    compressor, _ = check_there_and_back(values, "inceptionn", 10, ready=paced(1, 16))
    ratio = values.nbytes / compressor.outlet.octets
    assert compressor.intake.beats / compressor.intake.cycles == pytest.approx(ratio / 16, rel=0.02)


def test_a_slow_source_starves_the_decompressor() -> None:
    _, decompressor = check_there_and_back(whole(160), "inceptionn", 10, valid=paced(1, 2))
    assert decompressor.intake.waits[Wait.SOURCE_IDLE] == 170
    assert decompressor.outlet.waits[Wait.INCOMPLETE_BURST] == pytest.approx(180, abs=2)


def test_mixed_bursts_stall_more_and_a_third_beat_ends_it() -> None:
    mixed = np.array([1.5] * 6 + [0.5, 0.0], np.float32)  # 16 + 6 * 32 + 16 = 224 bits
    values = np.tile(np.concatenate([whole(1), mixed, whole(1)]), 200)
    compressor, decompressor = check_there_and_back(values, "inceptionn", 10)
    assert compressor.outlet.octets == values.nbytes
    # Compressor: 272 bits are held, then 16 + 224, then 240 + 272; one beat of those leaves, and another stays.
    assert seen(compressor.intake) == (600, {Wait.ALIGNMENT_FULL: 199, Wait.INPUT_ENDED: 2})
    # Decompressor: of 512 bits 240 stay, of 496 then 272, of those none: 256 come, and 272 are needed.
    assert seen(decompressor.outlet) == (600, {Wait.INCOMPLETE_BURST: 1 + 200})
    for machine, beats in ((hardware.Compressor, values.tobytes()), (hardware.Decompressor, octets_after(values))):
        larger = type("Larger", (machine,), {"capacity_bits": 3 * 256})(blocks_of("inceptionn", 10))
        clocked(larger, beats_of(beats))
        assert larger.intake.cycles == 602


class TwoBeatsAndNoMore(hardware.Decompressor):
    """The burst buffer with the 512 bits that the paper gives it."""

    capacity_bits = 512


@pytest.mark.parametrize(("machine", "finishes"), [(hardware.Decompressor, True), (TwoBeatsAndNoMore, False)])
def test_two_beats_are_too_small_a_buffer(machine: type[hardware.Decompressor], finishes: bool) -> None:
    values = np.array([1.5] * 7 + [0.02] + [1.5] * 8, np.float32)
    payload, _ = hardware.compress(values, "inceptionn", 10)
    assert payload.size == 31 + 34  # the second vector: an octet of the first beat, all of the second, one of the third
    coming = list(beats_of(payload.tobytes()))
    engine = machine(blocks_of("inceptionn", 10))
    for _ in range(20):
        taken, _ = engine.cycle(coming[0] if coming else None, not coming, True)
        coming = coming[1:] if taken else coming
    assert (not coming and engine.outlet.beats == 2) is finishes
    assert finishes or (engine.held.length, engine.intake.waits[Wait.BUFFER_FULL]) == (264, 18)


@settings(max_examples=examples(50))
@given(st.lists(st.one_of(near_one, st.just(0), st.just(0x3FC00000)), min_size=8, max_size=160))
def test_a_register_never_holds_more_than_it_has(words: list[int]) -> None:
    payload, _ = hardware.compress(floats(words), "inceptionn", 10)
    for engine, octets in (
        (hardware.Compressor(blocks_of("inceptionn", 10)), floats(words[: len(words) // 8 * 8]).tobytes()),
        (hardware.Decompressor(blocks_of("inceptionn", 10)), payload.tobytes()),
    ):
        for beat in beats_of(octets):
            while not engine.cycle(beat, False, True)[0]:
                pass
            assert engine.held.length <= REGISTER_BITS
            assert engine.held.bits >> engine.held.length == 0


def test_what_no_engine_can_do_is_refused() -> None:
    with pytest.raises(UsageError, match="codec 'truncate16' has no burst engine: choose from inceptionn, bounded"):
        hardware.compress(whole(1), "truncate16", 10)
    with pytest.raises(UsageError, match=r"1\.\.16"):
        hardware.compress(whole(1), "bounded", 0)
    payload, _ = hardware.compress(whole(2), "inceptionn", 10)
    with pytest.raises(CodecError, match="24 bits before"):
        hardware.decompress(payload[:-3], 16, "inceptionn", 10)
    for count in (8, 17):
        with pytest.raises(CodecError, match="holds 2 bursts"):
            hardware.decompress(payload, count, "inceptionn", 10)


def test_what_the_engines_are_made_of() -> None:
    # Three levels of 256 bits and the register.
    assert hardware.Compressor.circuit.register_bits == 520
    assert hardware.Compressor.circuit.width_bits == 3 * 256 + 520
    # Rows of the levels: 3, 4, 5; of the register: 5.
    assert hardware.Compressor.circuit.multiplexers == (3 + 4 + 5) * 256 + 5 * 520
    # A beat enters behind 0 to 33 octets, a burst leaves with 0 to 32, a lane's code begins 0 to 4 octets per lane on.
    assert hardware.Decompressor.circuit.register_bits == 520
    assert hardware.Decompressor.circuit.width_bits == 520 + 520 + 32 * sum(range(1, 9))
    rows = (0, 3, 4, 4, 5, 5, 5, 5)
    assert hardware.Decompressor.circuit.multiplexers == (6 + 6) * 520 + sum(32 * (i + 1) * rows[i] for i in range(8))


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
        *("configuration", "floats", "bursts", "ratio", "compressor", "decompressor", "lines", "circuits"),
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
        (("--gradients", "laplace:1"), "gradients 'laplace:1' are unknown"),
        (("--gradients", "/nonexistent.npy"), "cannot read gradients /nonexistent.npy"),
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
