"""One set of kernels for every codec: chosen by codec id at each call, and by the CPU once.

Everything above the codec imports its kernels from this module. Codecs with tags or masks have variants: the fastest that the
CPU has, or the one that ``NETOFFLOAD_KERNEL`` names. All variants give the same octets; the contract is that of
``netoffload.codec.bursts``.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np

from netoffload.codec import fixed, groups, packed, plain
from netoffload.codec.bursts import (
    BURST_LEN,
    DECODE_SLACK,
    ENCODE_SLACK,
    LANES,
    MALFORMED,
    MAX_BURST_PAYLOAD,
    TAGS_LEN,
    Middle,
)
from netoffload.codec.fixed import Kernels
from netoffload.codec_specs import ALL_CODECS, SPECS, CodecId, Made, Masked, Packed, Tagged
from netoffload.compiled.jit import ENV_KERNEL, cpu_features, inline_kernel, kernel
from netoffload.compiled.octets import whole
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
    "Middle",
    "codec_for",
    "decode",
    "decode_halves",
    "encode_fit",
    "is_known",
    "kernels_of",
    "round_trip",
    "usable_kernels",
]

CPU_FEATURES: Final = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx2", "fma", "bmi2", "popcnt"),
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


def _of_variant(name: str, function: str, base: ModuleType = plain) -> Callable[..., Any]:
    """Return a function of a variant, or of the plain module where the variant has none of its own for this codec.

    Args:
        name: of the variant.
        function: its name.
        base: the module of plain kernels: ``plain`` for bursts, ``groups`` or ``packed`` for groups.

    Raises:
        UsageError: the plain module has none either.
    """
    prefix = "" if base is plain else f"{base.__name__.rpartition('.')[2]}_"
    module = base if name == "plain" else importlib.import_module(f"netoffload.codec.{prefix}{name}")
    found = getattr(module, function, None) or getattr(base, function, None)
    if found is None:
        raise UsageError(f"no kernel is called {function}: {base.__name__} must have one")
    return found


@functools.cache
def kernels_of(codec_id: CodecId, variant: str = KERNEL) -> Kernels:
    """Return the kernels of a codec in one of the variants.

    Raises:
        UsageError: a codec with tags or masks and without kernels.
    """
    spec = SPECS[codec_id]
    if isinstance(spec.form, Tagged):
        return Kernels(
            encode=_of_variant(variant, f"encode_{spec.name}"),
            decode=_of_variant(variant, "decode_tagged"),
            decode_halves=_of_variant(variant, "decode_tagged_halves"),
            round_trip=_of_variant(variant, f"round_trip_{spec.name}"),
            coding=fixed.bound_itself,
            decoding=plain.unit8_of(spec.form),
        )
    if isinstance(spec.form, Masked):
        form, base = ("packed", packed) if isinstance(spec.form, Packed) else ("masked", groups)
        return kernels_of(spec.form.values, variant)._replace(
            encode=_of_variant(variant, f"encode_{spec.name}", base),
            decode=_of_variant(variant, f"decode_{form}", base),
            decode_halves=_of_variant(variant, f"decode_{form}_halves", base),
        )
    return fixed.made_kernels(spec.form) if isinstance(spec.form, Made) else fixed.cut_kernels(spec.form)


@inline_kernel
def is_known(codec_id: int) -> bool:
    """Whether a block header's codec id is one of ours."""
    return ALL_CODECS >> codec_id & 1 != 0


_SAME_VALUES: Final = np.full(16, -1, np.int64)
"""Per codec id the one that has the same values in an older form, or -1."""
for _codec_id, _spec in SPECS.items():
    if isinstance(_spec.form, Masked):
        _SAME_VALUES[_codec_id] = _spec.form.values


@inline_kernel
def codec_for(codec_id: int, understood: int) -> int:
    """Return a codec with the values of ``codec_id`` that is in the bitmap ``understood``, the newest, or -1."""
    while codec_id >= 0 and understood >> codec_id & 1 == 0:
        codec_id = whole(_SAME_VALUES[codec_id])
    return codec_id


def _by_id(kind: str, arguments: str, parameter: str, otherwise: str) -> Callable[..., Any]:
    """Return the kernel that calls a codec's own by its id: a chain of comparisons, as one would write it by hand.

    Args:
        kind: of the kernels: a field of :class:`~netoffload.codec.fixed.Kernels`.
        arguments: what they take; ``bound_k`` stands for their parameter.
        parameter: the field that says it.
        otherwise: the result for an id that is nobody's.
    """
    names: dict[str, Any] = {"__name__": __name__, "MALFORMED": MALFORMED, "round_trip_cut": fixed.round_trip_cut}
    lines = [f"def {kind}(codec_id, {arguments}):"]
    for codec_id in SPECS:
        kernels = kernels_of(codec_id)
        names |= {f"of_{codec_id:d}": getattr(kernels, kind), f"parameter_{codec_id:d}": getattr(kernels, parameter)}
        said = arguments.replace("bound_k", f"parameter_{codec_id:d}(bound_k)")
        lines += [f"    if codec_id == {codec_id:d}:", f"        return of_{codec_id:d}({said})"]
    source = "\n".join([*lines, f"    return {otherwise}"])
    exec(compile(source, __file__, "exec"), names)  # Numba keeps what it compiles by the file
    return kernel(names[kind])


encode_fit: Final = _by_id(
    "encode", "source, source_at, count, bound_k, target, target_at, capacity, classes", "coding", "0, 0"
)
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

decode: Final = _by_id(
    "decode", "payload, payload_at, available, count, bound_k, target, target_at", "decoding", "MALFORMED"
)
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

decode_halves: Final = _by_id(
    "decode_halves",
    "payload, payload_at, available, count, middle, bound_k, target, target_at",
    "decoding",
    "MALFORMED",
)
"""Decode like :func:`decode` a payload whose middle is known.

Args:
    middle: a :class:`~netoffload.codec.bursts.Middle`, its octets at most ``available``, its floats at most ``count``.
        Not being where a burst starts is ``MALFORMED``.
"""

round_trip: Final = _by_id("round_trip", "source, bound_k, target", "coding", "round_trip_cut(source, 32, target)")
"""Write what decoding the encoded ``source`` gives; both are uint32 arrays of float bits, and may be the same.

An id that is nobody's copies them.
"""
