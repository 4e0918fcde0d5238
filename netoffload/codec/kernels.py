"""One set of kernels for every codec: chosen by codec id at each call, and by the CPU once.

Everything above the codec imports its kernels from this module. The tagged codecs have variants: the fastest that the
CPU has, or the one that ``NETOFFLOAD_KERNEL`` names. All variants give the same octets; the contract is that of
``netoffload.codec.bursts``.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final

from netoffload.codec import plain
from netoffload.codec.bursts import (
    BURST_LEN,
    DECODE_SLACK,
    ENCODE_SLACK,
    LANES,
    MALFORMED,
    MAX_BURST_PAYLOAD,
    TAGS_LEN,
)
from netoffload.codec.fixed import decode_fixed, decode_fixed_halves, encode_fixed, round_trip_fixed
from netoffload.compiled.jit import ENV_KERNEL, cpu_features, inline_kernel, kernel
from netoffload.errors import UsageError
from netoffload.wire.offload import CodecId

__all__ = [
    "BURST_LEN",
    "CPU_FEATURES",
    "DECODE_SLACK",
    "ENCODE_SLACK",
    "KERNEL",
    "LANES",
    "MALFORMED",
    "MAX_BURST_PAYLOAD",
    "TAGS_LEN",
    "decode",
    "decode_halves",
    "encode_fit",
    "is_known",
    "round_trip",
    "usable_kernels",
]

CPU_FEATURES: Final = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512vbmi2", "avx2", "fma", "bmi2", "popcnt"),
    "avx2": ("avx2", "fma", "popcnt"),
    "plain": (),
}
"""Variants, fastest first, and what each needs: asking for an instruction that the CPU lacks aborts the process."""


def usable_kernels() -> list[str]:
    """Return the variants that run here, fastest first."""
    features = cpu_features()
    return [name for name, needed in CPU_FEATURES.items() if all(features.get(feature, False) for feature in needed)]


def _choose() -> str:
    usable = usable_kernels()
    asked = os.environ.get(ENV_KERNEL) or usable[0]
    if asked not in CPU_FEATURES:
        raise UsageError(f"{ENV_KERNEL}={asked!r} is unknown: choose from {', '.join(CPU_FEATURES)}")
    if asked not in usable:
        raise UsageError(f"{ENV_KERNEL}={asked} needs {', '.join(CPU_FEATURES[asked])}, or NUMBA_DISABLE_JIT is set")
    return asked


KERNEL: Final = _choose()
"""The variant in use."""


def _variant() -> ModuleType:
    if KERNEL == "avx512":
        from netoffload.codec import avx512

        return avx512
    if KERNEL == "avx2":
        from netoffload.codec import avx2

        return avx2
    return plain


_encode_inceptionn = _variant().encode_inceptionn
_encode_bounded = _variant().encode_bounded
_decode_tagged = _variant().decode_tagged
_decode_tagged_halves = _variant().decode_tagged_halves
_round_trip_inceptionn = _variant().round_trip_inceptionn
_round_trip_bounded = _variant().round_trip_bounded

_NONE: Final = int(CodecId.NONE)
_INCEPTIONN: Final = int(CodecId.INCEPTIONN)
_BOUNDED: Final = int(CodecId.BOUNDED)
_TRUNCATE16: Final = int(CodecId.TRUNCATE16)
_TRUNCATE22: Final = int(CodecId.TRUNCATE22)
_LAST: Final = max(CodecId)


@inline_kernel
def is_known(codec_id: Any) -> Any:
    """Whether a block header's codec id is one of ours."""
    return codec_id <= _LAST


@inline_kernel
def _kept_bits(codec_id: Any) -> Any:
    if codec_id == _NONE:
        return 32
    return 16 if codec_id == _TRUNCATE16 else 10 if codec_id == _TRUNCATE22 else 8


@kernel
def encode_fit(
    codec_id: int,
    source: Any,
    source_at: int,
    count: int,
    bound_k: int,
    target: Any,
    target_at: int,
    capacity: int,
    classes: Any,
) -> tuple[int, int]:
    """Encode as many of ``count`` floats as fit into ``capacity`` octets, whole bursts only except at the end.

    Args:
        codec_id: a :class:`CodecId`.
        source: uint8 array; the floats start at ``source_at`` and need no alignment.
        source_at: first octet of the first float.
        count: floats to encode.
        bound_k: the error bound is 2**-bound_k; codecs without tags ignore it.
        target: uint8 array for the payload; see the contract for its slack.
        target_at: where the payload starts.
        capacity: octets the payload may have.
        classes: int64[4], floats per class (0, 8, 16, 32 bits) are added to it.

    Returns:
        Floats encoded, octets written.
    """
    if codec_id == _INCEPTIONN:
        return _encode_inceptionn(source, source_at, count, bound_k, target, target_at, capacity, classes)
    if codec_id == _BOUNDED:
        return _encode_bounded(source, source_at, count, bound_k, target, target_at, capacity, classes)
    return encode_fixed(source, source_at, count, _kept_bits(codec_id), target, target_at, capacity, classes)


@kernel
def decode(
    codec_id: int,
    payload: Any,
    payload_at: int,
    available: int,
    count: int,
    bound_k: int,
    target: Any,
    target_at: int,
) -> int:
    """Decode ``count`` floats and return the octets read, or ``MALFORMED``.

    Args:
        codec_id: a :class:`CodecId`.
        payload: uint8 array; see the contract for its slack.
        payload_at: where the payload starts.
        available: octets the payload may have.
        count: floats to decode.
        bound_k: the error bound is 2**-bound_k.
        target: uint8 array for the floats; see the contract.
        target_at: where they start.
    """
    if codec_id == _INCEPTIONN:
        return _decode_tagged(payload, payload_at, available, count, plain.UNIT16, target, target_at)
    if codec_id == _BOUNDED:
        unit8 = plain.bounded_unit8(bound_k)
        return _decode_tagged(payload, payload_at, available, count, unit8, target, target_at)
    return decode_fixed(payload, payload_at, available, count, _kept_bits(codec_id), target, target_at)


@kernel
def decode_halves(
    codec_id: int,
    payload: Any,
    payload_at: int,
    available: int,
    count: int,
    half_len: int,
    half_count: int,
    bound_k: int,
    target: Any,
    target_at: int,
) -> int:
    """Decode like :func:`decode` a payload whose middle is known.

    Args:
        half_len: octets of the first half, at most ``available``; not being where a burst starts is ``MALFORMED``.
        half_count: floats in it, at most ``count``: whole bursts, or none.
    """
    if codec_id == _INCEPTIONN:
        return _decode_tagged_halves(
            payload, payload_at, available, count, half_len, half_count, plain.UNIT16, target, target_at
        )
    if codec_id == _BOUNDED:
        unit8 = plain.bounded_unit8(bound_k)
        return _decode_tagged_halves(
            payload, payload_at, available, count, half_len, half_count, unit8, target, target_at
        )
    kept_bits = _kept_bits(codec_id)
    return decode_fixed_halves(
        payload, payload_at, available, count, half_len, half_count, kept_bits, target, target_at
    )


@kernel
def round_trip(codec_id: int, source: Any, bound_k: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same."""
    if codec_id == _INCEPTIONN:
        _round_trip_inceptionn(source, bound_k, target)
    elif codec_id == _BOUNDED:
        _round_trip_bounded(source, bound_k, target)
    else:
        round_trip_fixed(source, _kept_bits(codec_id), target)
