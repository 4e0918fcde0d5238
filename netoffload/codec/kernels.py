"""Which kernels run here: the fastest that the CPU has, or the one that ``NETOFFLOAD_KERNEL`` names.

Everything above the codec imports its kernels from this module. All variants give the same octets; the contract and the
constants are those of ``netoffload.codec.plain``.
"""

from __future__ import annotations

import os
from typing import Final

import llvmlite.binding

from netoffload.codec import plain
from netoffload.codec.jit import ENV_KERNEL, JIT_DISABLED
from netoffload.codec.plain import (
    BURST_LEN,
    DECODE_SLACK,
    ENCODE_SLACK,
    LANES,
    MALFORMED,
    MAX_BURST_PAYLOAD,
    TAGS_LEN,
    payload_len,
    round_trip,
)
from netoffload.errors import UsageError

__all__ = [
    "BURST_LEN",
    "DECODE_SLACK",
    "ENCODE_SLACK",
    "KERNEL",
    "KERNELS",
    "LANES",
    "MALFORMED",
    "MAX_BURST_PAYLOAD",
    "TAGS_LEN",
    "decode",
    "encode_fit",
    "payload_len",
    "round_trip",
]

KERNELS: Final = ("avx512", "plain")
"""Fastest first."""

AVX512_FEATURES: Final = ("avx512f", "avx512bw", "avx512vl", "avx512vbmi2", "bmi2", "popcnt")
"""What ``netoffload.codec.avx512`` uses; asking for an instruction that the CPU lacks aborts the process."""


def _choose() -> str:
    features = llvmlite.binding.get_host_cpu_features()
    has_avx512 = not JIT_DISABLED and all(features.get(name, False) for name in AVX512_FEATURES)
    asked = os.environ.get(ENV_KERNEL, "")
    if asked not in ("", *KERNELS):
        raise UsageError(f"{ENV_KERNEL}={asked!r} is unknown: choose from {', '.join(KERNELS)}")
    if asked == "avx512" and not has_avx512:
        raise UsageError(f"{ENV_KERNEL}=avx512, but this CPU lacks AVX-512 VBMI2 (or NUMBA_DISABLE_JIT is set)")
    return asked or ("avx512" if has_avx512 else "plain")


KERNEL: Final = _choose()
"""Name of the kernels in use."""

if KERNEL == "avx512":
    from netoffload.codec.avx512 import decode, encode_fit
else:
    decode, encode_fit = plain.decode, plain.encode_fit
