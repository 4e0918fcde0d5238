"""Which kernels a CPU gets, and what it is told where it cannot run the ones that are asked for."""

import os
from pathlib import Path

import pytest
from numba.core import config as numba_config

from netoffload.codec import kernels
from netoffload.codec.kernels import CPU_FEATURES, KERNEL, usable_kernels
from netoffload.compiled.jit import CACHE_DIR, JIT_DISABLED, has_fast_bit_moves
from tests.shared.commands import python
from tests.shared.quick_cases import NIGHT, by_day


@pytest.mark.slow
@pytest.mark.skipif(JIT_DISABLED or "avx2" not in usable_kernels(), reason="needs compiled kernels and AVX2")
@pytest.mark.parametrize(
    ("cpu", "kernel"),
    by_day([("haswell", "avx2"), ("znver2", "avx2"), ("x86-64", "plain")], [("x86-64", "plain")]),
)
def test_a_lesser_cpu_gets_lesser_kernels(cpu: str, kernel: str, tmp_path: Path) -> None:
    features = "+avx2,+avx,+bmi,+bmi2,+fma,+popcnt,+sse4.2" if kernel == "avx2" else "-avx2"
    environment = {
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": features,
        "NETOFFLOAD_KERNEL": "",
        "NUMBA_CACHE_DIR": str((CACHE_DIR or tmp_path) / cpu),  # what others compiled is of no use, and stays apart
    }
    program = str(Path(__file__).with_name("programs") / "round_trips.py")
    codecs = ("inceptionn", "bounded", "packed", "exact") if NIGHT else ("packed",)
    done = python(program, *codecs, env=environment, timeout_s=120)
    assert (done.stdout, done.stderr) == (f"{kernel}\n", "")


@pytest.mark.skipif(JIT_DISABLED, reason="the process that it starts compiles nothing")
@pytest.mark.parametrize(
    ("asked", "said"),
    [("sse", "'sse' is unknown: choose from"), pytest.param("avx512", "needs avx512f", marks=pytest.mark.slow)],
)
def test_a_kernel_that_cannot_run_is_refused(asked: str, said: str) -> None:
    environment = {"NETOFFLOAD_KERNEL": asked, "NUMBA_DISABLE_JIT": "1"}
    done = python("-c", "import netoffload.codec.kernels", env=environment)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.skipif(JIT_DISABLED, reason="only plain without compiled kernels")
@pytest.mark.parametrize(
    ("kernel", "needed"),
    [("avx512", ("avx512vbmi", "avx512vbmi2", "bmi2", "fma")), ("avx2", ("avx2", "fma", "popcnt"))],
)
def test_a_kernel_needs_every_feature_it_uses(
    kernel: str, needed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = {feature: True for features in CPU_FEATURES.values() for feature in features}
    for feature in needed:
        monkeypatch.setattr(kernels, "cpu_features", lambda without=feature: everything | {without: False})
        assert kernel not in usable_kernels()


@pytest.mark.skipif(JIT_DISABLED, reason="no features without compiled kernels")
@pytest.mark.parametrize(
    ("cpu", "features", "fast"),
    [
        ("znver2", "+avx2,+bmi2", False),
        ("znver3", "+avx2,+bmi2", True),
        ("haswell", "+avx2,+bmi2", True),
        ("haswell", "+avx2", False),
    ],
)
def test_bits_are_moved_by_instructions_where_these_are_fast(
    cpu: str, features: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba_config, "CPU_NAME", cpu)
    monkeypatch.setattr(numba_config, "CPU_FEATURES", features)
    assert has_fast_bit_moves() == fast


def test_the_fastest_kernel_is_the_one_in_use() -> None:
    assert os.environ.get("NETOFFLOAD_KERNEL") or usable_kernels()[0] == KERNEL
