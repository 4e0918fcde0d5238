"""The compiled CRC32C is the defined one, with every width of register that this machine has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netoffload.compiled.jit import CACHE_DIR, JIT_DISABLED, inlined_with
from netoffload.engine.sums import USABLE_LANES, crc32c, make_fold, ones_sum
from netoffload.wire import checksum
from tests.shared.commands import python

ALL_ONES = 0xFFFFFFFF


@given(octets=st.binary(max_size=200), at=st.integers(0, 9), start=st.integers(0, 2**32 - 1))
def test_crc32c_is_the_defined_one(octets: bytes, at: int, start: int) -> None:
    array = np.frombuffer(bytes(at) + octets + bytes(8), np.uint8)
    assert crc32c(array, at, len(octets), start) == checksum.crc32c(octets, start)


@given(octets=st.binary(max_size=99), at=st.integers(0, 3))
def test_ones_sum_is_the_defined_one_with_its_octets_swapped(octets: bytes, at: int) -> None:
    array = np.frombuffer(bytes(at) + octets + b"\1", np.uint8)
    total = ones_sum(array, at, len(octets))
    assert (total >> 8) | (total & 0xFF) << 8 == checksum.ones_sum(octets)


@pytest.mark.parametrize("registers", [4, 5, 7, 8, 12, 15])
@pytest.mark.parametrize("more", [-1, 0, 1, 8, 63])
@pytest.mark.parametrize("at", [0, 3])
def test_crc32c_of_what_is_folded(registers: int, more: int, at: int) -> None:
    octets = np.random.default_rng(registers).integers(0, 256, at + registers * 64 + more, np.uint8)
    assert crc32c(octets, at, octets.size - at, 7) == checksum.crc32c(octets[at:].tobytes(), 7)


@pytest.mark.skipif(JIT_DISABLED, reason="needs compiled kernels")
@pytest.mark.parametrize("lanes", USABLE_LANES)
def test_every_width_of_register_folds(lanes: int) -> None:
    fold = make_fold(lanes)

    @inlined_with  # not kept on disk: the fold is another one in every process
    def run(crc: int, octets: Any, at: int, registers: int) -> int:
        return int(fold(crc, octets, at, registers))

    octets = np.random.default_rng(lanes).integers(0, 256, 40 * 16 * lanes, np.uint8)
    for registers in range(4, 39):
        folded = run(7 ^ ALL_ONES, octets, 3, registers) ^ ALL_ONES
        assert folded == checksum.crc32c(octets[3 : 3 + 16 * lanes * registers].tobytes(), 7)


@pytest.mark.slow
@pytest.mark.skipif(1 not in USABLE_LANES, reason="needs compiled kernels, SSE 4.2 and PCLMULQDQ")
@pytest.mark.parametrize(
    ("features", "said"), [("+crc32,+pclmul", "[1] True"), ("+crc32", "[] True"), ("+sse4.2", "[] False")]
)
def test_a_lesser_cpu_sums_with_what_it_has(features: str, said: str, tmp_path: Path) -> None:
    environment = {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str((CACHE_DIR or tmp_path) / features),
    }
    done = python(str(Path(__file__).with_name("programs") / "sum_octets.py"), env=environment, timeout_s=120)
    assert (done.stdout, done.stderr) == (f"{said}\n", "")
