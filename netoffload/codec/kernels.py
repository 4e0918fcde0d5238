"""One set of kernels for every codec: chosen by codec id at each call, and by the CPU once.

Everything above the codec imports its kernels from this module. The tagged codecs have variants: the fastest that the
CPU has, or the one that ``NETOFFLOAD_KERNEL`` names. All variants give the same octets; the contract is that of
``netoffload.codec.bursts``.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any, Final

from netoffload.codec import fixed, plain
from netoffload.codec.bursts import (
    BURST_LEN,
    DECODE_SLACK,
    ENCODE_SLACK,
    LANES,
    MALFORMED,
    MAX_BURST_PAYLOAD,
    TAGS_LEN,
)
from netoffload.codec.fixed import Kernels
from netoffload.codec_specs import ALL_CODECS, SPECS, CodecId, Fixed
from netoffload.compiled.jit import ENV_KERNEL, compiled_with, cpu_features, inline_kernel, inlined_with, kernel
from netoffload.errors import UsageError

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
    "Kernels",
    "decode",
    "decode_halves",
    "encode_fit",
    "is_known",
    "kernels_of",
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


def _of_variant(name: str, function: str) -> Any:
    """Return a function of a variant, or of ``plain`` where the variant has none of its own for this codec.

    Raises:
        UsageError: ``plain`` has none either.
    """
    module = plain if name == "plain" else importlib.import_module(f"netoffload.codec.{name}")
    found = getattr(module, function, None) or getattr(plain, function, None)
    if found is None:
        raise UsageError(f"no kernel is called {function}: netoffload.codec.plain must have one")
    return found


@functools.cache
def kernels_of(codec_id: CodecId, variant: str = KERNEL) -> Kernels:
    """Return the kernels of a codec in one of the variants.

    Raises:
        UsageError: a tagged codec without kernels.
    """
    spec = SPECS[codec_id]
    if isinstance(spec.form, Fixed):
        return fixed.kernels_of(spec.form)
    unit8 = plain.unit8_of(spec.form)
    decode_tagged, decode_halves_tagged = (
        _of_variant(variant, name) for name in ("decode_tagged", "decode_tagged_halves")
    )

    @compiled_with
    def decode(
        payload: Any, payload_at: int, available: int, count: int, bound_k: int, target: Any, target_at: int
    ) -> Any:
        return decode_tagged(payload, payload_at, available, count, unit8(bound_k), target, target_at)

    @compiled_with
    def decode_halves(
        payload: Any,
        payload_at: int,
        available: int,
        count: int,
        half_len: int,
        half_count: int,
        bound_k: int,
        target: Any,
        target_at: int,
    ) -> Any:
        return decode_halves_tagged(
            payload, payload_at, available, count, half_len, half_count, unit8(bound_k), target, target_at
        )

    encode, round_trip = (_of_variant(variant, f"{name}_{spec.name}") for name in ("encode", "round_trip"))
    return Kernels(encode, decode, decode_halves, round_trip)


@inlined_with
def _encode_unknown(asked: Any, source: Any, source_at: Any, count: Any, *rest: Any) -> Any:
    return 0, 0


@inlined_with
def _decode_unknown(asked: Any, payload: Any, payload_at: Any, *rest: Any) -> Any:
    return MALFORMED


@inlined_with
def _copy(asked: Any, source: Any, bound_k: Any, target: Any) -> None:
    for index in range(source.size):
        target[index] = source[index]


def _either(codec_id: int, ours: Any, others: Any) -> Any:
    @inlined_with
    def either(asked: Any, *arguments: Any) -> Any:
        if asked == codec_id:
            return ours(*arguments)
        return others(asked, *arguments)

    return either


def _chosen_by_id(kernels: dict[CodecId, Kernels]) -> Kernels:
    """Return kernels that take a codec's id in front and do as its own do; one that is nobody's codes nothing."""
    chosen = Kernels(_encode_unknown, _decode_unknown, _decode_unknown, _copy)
    for codec_id, ours in reversed(kernels.items()):
        chosen = Kernels(*(_either(int(codec_id), mine, others) for mine, others in zip(ours, chosen, strict=True)))
    return chosen


_BY_ID: Final = _chosen_by_id({codec_id: kernels_of(codec_id) for codec_id in SPECS})
_encode, _decode, _decode_halves, _round_trip = _BY_ID


@inline_kernel
def is_known(codec_id: Any) -> Any:
    """Whether a block header's codec id is one of ours."""
    return ALL_CODECS >> codec_id & 1 != 0


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
        codec_id: a :class:`~netoffload.codec_specs.CodecId`.
        source: uint8 array; the floats start at ``source_at`` and need no alignment.
        source_at: first octet of the first float.
        count: floats to encode.
        bound_k: the error bound is 2**-bound_k; codecs without tags ignore it.
        target: uint8 array for the payload; see the contract for its slack.
        target_at: where the payload starts.
        capacity: octets the payload may have.
        classes: int64[4], floats per class (0, 8, 16, 32 bits) are added to it.

    Returns:
        Floats encoded, octets written; none of either for an id that is nobody's.
    """
    return _encode(codec_id, source, source_at, count, bound_k, target, target_at, capacity, classes)


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
    """Decode ``count`` floats and return the octets read, or ``MALFORMED``, as for an id that is nobody's.

    Args:
        codec_id: a :class:`~netoffload.codec_specs.CodecId`.
        payload: uint8 array; see the contract for its slack.
        payload_at: where the payload starts.
        available: octets the payload may have.
        count: floats to decode.
        bound_k: the error bound is 2**-bound_k.
        target: uint8 array for the floats; see the contract.
        target_at: where they start.
    """
    return _decode(codec_id, payload, payload_at, available, count, bound_k, target, target_at)


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
    return _decode_halves(
        codec_id, payload, payload_at, available, count, half_len, half_count, bound_k, target, target_at
    )


@kernel
def round_trip(codec_id: int, source: Any, bound_k: int, target: Any) -> None:
    """Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same.

    An id that is nobody's copies them.
    """
    _round_trip(codec_id, source, bound_k, target)
