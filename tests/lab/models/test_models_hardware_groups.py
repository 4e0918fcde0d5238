"""The engines for groups: cycles worked out by hand, refused payloads, and their circuits.

``test_engine_hardware`` compares the octets and floats of every codec, these among them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec.reference import pack_groups
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.errors import CodecError
from netoffload.lab.models import hardware
from netoffload.lab.models.hardware import Wait, paced
from netoffload.lab.models.hardware.blocks import blocks_of
from netoffload.lab.models.hardware.groups import ALIGNMENT_BITS
from netoffload.lab.models.hardware.ports import beats_of
from tests.lab.models.test_models_hardware import check_there_and_back, floats, near_one, nothing, seen, whole
from tests.shared.example_counts import examples

many_words = st.lists(st.one_of(st.just(0), near_one, st.just(0x3FC00000)), max_size=200)


def of_classes(*tags: int) -> Float32Array:
    """A float of each class at bound 10: 0 bits, 8, 16 or 32."""
    return np.array([0.0, 0.01, 0.5, 1.5], np.float32)[list(tags)]


@given(many_words, st.integers(1, 16))
def test_groups_of_all_classes_are_the_oracles(words: list[int], bound_k: int) -> None:
    check_there_and_back(floats(words), "sparse", bound_k)


def test_groups_without_a_value_by_hand() -> None:
    compressor, decompressor = check_there_and_back(nothing(64), "sparse", 10)
    # The last group's mask is moved in the cycle after its last burst, and leaves with the others' one cycle later.
    assert seen(compressor.intake) == (64, {Wait.INPUT_ENDED: 2})
    assert seen(compressor.outlet) == (1, {Wait.COLLECTING: 65})
    # One cycle to get the beat, one to read a mask; then a burst every cycle.
    assert seen(decompressor.intake) == (1, {Wait.INPUT_ENDED: 65})
    assert seen(decompressor.outlet) == (64, {Wait.INCOMPLETE_GROUP: 2})


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ((3,) * 64, 1 + 2 + 8),
        ((2, *(3,) * 63), 1 + 2 + 1 + 8),
        ((2,) * 64, 1 + 2 + 4),
        ((1,) * 64, 1 + 2),
        ((2,) * 24 + (3,) * 24 + (0,) * 16, 1 + 2 + 2 + 3),
        ((2,) * 25 + (3,) * 25 + (0,) * 14, 1 + 2 + 2 + 4),
    ],
)
def test_a_group_takes_eight_cycles_or_one_per_word(group: tuple[int, ...], words: int) -> None:
    few, many = (check_there_and_back(np.tile(of_classes(*group), groups), "sparse", 10) for groups in (10, 30))
    for engine, more in zip(few, many, strict=True):
        assert more.intake.cycles - engine.intake.cycles == pytest.approx(20 * max(8, words), abs=1)
    # All groups but the first two and the last one wait for what is left of the group before the one before.
    surplus = max(0, words - 8)
    assert many[0].intake.waits[Wait.GROUP_FULL] == surplus * (30 - 2)
    assert many[1].outlet.waits[Wait.INCOMPLETE_GROUP] >= surplus * (30 - 1)


def test_whole_groups_by_hand() -> None:
    compressor, decompressor = check_there_and_back(whole(32), "sparse", 10)
    # Bursts enter in cycles 0..15, 19..26 and 30..37; the words of the fourth group are moved in 41..51; of the 1316
    # octets, 36 are left then: a beat and four octets.
    assert seen(compressor.intake) == (32, {Wait.GROUP_FULL: 6, Wait.INPUT_ENDED: 16})
    assert seen(compressor.outlet) == (42, {Wait.COLLECTING: 54 - 42})
    # The words of a group are read in 1..11, 12..22 and so on, and the last burst leaves eight cycles after the last.
    assert decompressor.outlet.cycles == 1 + 4 * 11 + 8
    assert seen(decompressor.outlet) == (32, {Wait.INCOMPLETE_GROUP: 53 - 32})


def test_a_slow_sink_stalls_both_engines() -> None:
    compressor, decompressor = check_there_and_back(whole(160), "sparse", 10, ready=paced(1, 4))
    for engine in (compressor, decompressor):
        assert engine.intake.waits[Wait.SINK_BUSY] > 250
        assert engine.outlet.beats / engine.outlet.cycles == pytest.approx(1 / 4, rel=0.02)


@settings(max_examples=examples(50))
@given(many_words, st.integers(1, 4))
def test_a_register_never_holds_more_than_it_has(words: list[int], pace: int) -> None:
    values = np.concatenate([whole(24), floats(words[: len(words) // 64 * 64])])
    sink = paced(1, pace)
    payload, _ = hardware.compress(values, "sparse", 10)
    blocks = blocks_of("sparse", 10)
    engines = (hardware.GroupCompressor(blocks), hardware.GroupDecompressor(blocks, values.size))
    for engine, octets in zip(engines, (values.tobytes(), payload.tobytes()), strict=True):
        for beat in beats_of(octets):
            taken = False
            while not taken:
                taken, _ = engine.cycle(beat, False, sink(engine.intake.cycles))
                assert engine.held.length <= ALIGNMENT_BITS
                assert engine.held.bits >> engine.held.length == 0


@pytest.mark.parametrize(
    ("octets", "count", "says"),
    [
        (b"\x02\x01\x05", 8, "a float is beyond the last one"),
        (b"\x01\x08\x05", 3, "a float is beyond the last one"),
        (b"\x01\x00", 8, "a burst has no float"),
        (b"\x01", 8, "ends 8 bits or more before"),
        (b"\x01\x03\x05", 8, "ends 8 bits or more before"),
        (b"\x01\x01\x80\x05", 8, "ends 8 bits or more before"),
        (b"\x01\x01\x00\x05", 8, "ends 24 bits or more before"),
        (b"\x00\x00", 8, "1 octets behind its last group"),
        (b"\x00", 0, "1 octets behind its last group"),
        (b"\x00", 65, "holds 8 bursts, not 65 floats"),
    ],
)
def test_what_no_encoder_makes_is_refused(octets: bytes, count: int, says: str) -> None:
    with pytest.raises(CodecError, match=says):
        hardware.decompress(np.frombuffer(octets, np.uint8), count, "sparse", 10)


def test_an_escape_is_read_in_its_order() -> None:
    tags: Uint8Array = np.array([3, 2, 1, 0, 2, 3], np.uint8)
    payload = pack_groups(tags, np.array([0x3F800001, 0x4000, 5, 0, 0xC001, 0xBF800002], np.uint32))
    decoded, _ = hardware.decompress(payload, 6, "sparse", 10)
    assert decoded.view(np.uint32)[[0, 5]].tolist() == [0x3F800001, 0xBF800002]
    assert decoded[1:5].tolist() == [0.5, 5 / 512, 0, -(0.5 + 2**-15)]


def test_what_the_engines_are_made_of() -> None:
    made_of = {
        machine: (machine.circuit.register_bits, machine.circuit.memory_bits, machine.circuit.width_bits)
        for machine in (hardware.Compressor, hardware.GroupCompressor)
    }
    # Three levels of 256 bits and the register; three levels of each of three trees, three words, and the register.
    assert made_of[hardware.Compressor] == (520, 0, 3 * 256 + 520)
    assert made_of[hardware.GroupCompressor] == (504, 2 * (72 + 56 * 64), 3 * (64 + 128 + 256) + 3 * 256 + 504)
    # Rows of a tree: 1, 2, 3; of a rotator: 5, 4, 3; of the register: 5.
    assert hardware.GroupCompressor.circuit.multiplexers == 6 * (64 + 128 + 256) + (5 + 4 + 3) * 256 + 5 * 504
