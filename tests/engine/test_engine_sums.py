"""The compiled CRC32C is the defined one, with every width of register that folds here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netoffload.codec.jit import JIT_DISABLED, kernel
from netoffload.engine.sums import USABLE_LANES, crc32c, make_fold
from netoffload.wire import checksum

ALL_ONES = 0xFFFFFFFF


@settings(deadline=None)
@given(octets=st.binary(max_size=200), at=st.integers(0, 9), start=st.integers(0, 2**32 - 1))
def test_crc32c_is_the_defined_one(octets: bytes, at: int, start: int) -> None:
    array = np.frombuffer(bytes(at) + octets + bytes(8), np.uint8)
    assert crc32c(array, at, len(octets), start) == checksum.crc32c(octets, start)


@pytest.mark.parametrize("registers", [4, 5, 7, 8, 12, 15])
@pytest.mark.parametrize("more", [-1, 0, 1, 8, 63])
def test_crc32c_of_what_is_folded(registers: int, more: int) -> None:
    octets = np.random.default_rng(registers).integers(0, 256, registers * 64 + more, np.uint8)
    assert crc32c(octets, 0, octets.size, 7) == checksum.crc32c(octets.tobytes(), 7)


def test_every_octet_of_a_block_counts() -> None:
    octets = np.zeros(1500, np.uint8)
    sums = set()
    for index in range(octets.size):
        octets[index] = 1
        sums.add(crc32c(octets, 0, octets.size, 0))
        octets[index] = 0
    assert len(sums) == octets.size


@pytest.mark.skipif(JIT_DISABLED, reason="needs compiled kernels")
@pytest.mark.parametrize("lanes", USABLE_LANES)
def test_every_width_of_register_folds(lanes: int) -> None:
    fold = make_fold(lanes)

    @kernel
    def run(crc: int, octets: Any, at: int, registers: int) -> int:
        return int(fold(crc, octets, at, registers))

    octets = np.random.default_rng(lanes).integers(0, 256, 40 * 16 * lanes, np.uint8)
    for registers in range(4, 39):
        folded = run(7 ^ ALL_ONES, octets, 3, registers) ^ ALL_ONES
        assert folded == checksum.crc32c(octets[3 : 3 + 16 * lanes * registers].tobytes(), 7)
