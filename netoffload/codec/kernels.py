"""One set of kernels for every codec: each call chooses by codec id, and the CPU decides the variant once.

All layers above the codec import its kernels from this module. Codecs with tags or groups have variants. The fastest
one that the CPU can run is used, or the one that ``NETOFFLOAD_KERNEL`` names. All variants give the same octets;
``netoffload.codec.bursts`` is their contract.
"""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.codec import bursts, exact, fixed, packed, scalar, tagged
from netoffload.codec.bursts import DECODE_SLACK as DECODE_SLACK  # "as": for all layers above
from netoffload.codec.bursts import ENCODE_SLACK as ENCODE_SLACK
from netoffload.codec.bursts import LANES as LANES
from netoffload.codec.bursts import MALFORMED as MALFORMED
from netoffload.codec.bursts import MAX_BURST_PAYLOAD as MAX_BURST_PAYLOAD
from netoffload.codec.bursts import Middle as Middle
from netoffload.codec_specs import ALL_CODECS, SPECS, CodecId, Cut, Packed, Tagged
from netoffload.compiled.arrays import Stretch
from netoffload.compiled.jit import ENV_KERNEL, cpu_features, inline_kernel, kernel
from netoffload.compiled.octets import whole
from netoffload.errors import UsageError

CPU_FEATURES: Final = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vbmi2", "avx2", "fma", "bmi2", "popcnt"),
    "avx2": ("avx2", "fma", "popcnt"),
    "plain": (),
}
"""Variants, fastest first, and the CPU features that each needs; a missing instruction aborts the process."""


def usable_kernels() -> list[str]:
    """Return the variants that this CPU can run, fastest first."""
    features = cpu_features()
    return [name for name, needed in CPU_FEATURES.items() if all(features.get(feature, False) for feature in needed)]


def _choose() -> str:
    usable = usable_kernels()
    name = os.environ.get(ENV_KERNEL) or usable[0]
    if name not in CPU_FEATURES:
        raise UsageError(f"{ENV_KERNEL}={name!r} is unknown: choose from {', '.join(CPU_FEATURES)}")
    if name not in usable:
        raise UsageError(f"{ENV_KERNEL}={name} needs {', '.join(CPU_FEATURES[name])}, or NUMBA_DISABLE_JIT is set")
    return name


KERNEL: Final = _choose()
"""The variant in use."""


class Kernels(NamedTuple):
    """The kernels of one codec, and the function from the bound k to the parameter that decoding takes in its place."""

    encode: Callable[..., Any]
    decode: Callable[..., Any]
    decode_halves: Callable[..., Any]
    round_trip: Callable[..., Any]
    decoding: Callable[[int], Any]


_ENCODE: Final = "source, source_at, count, bound_k, target, target_at, capacity, classes"
_DECODE: Final = "payload, payload_at, available, count, parameter, target, target_at"
_HALVES: Final = "payload, payload_at, available, count, middle, parameter, target, target_at"
_ROUND: Final = "source, bound_k, target"
_SHORTER: Final = {"room": "Stretch(target, target_at, capacity)", "coded": "Stretch(payload, payload_at, available)"}


def _made(name: str, arguments: str, result: str, **uses: Any) -> Callable[..., Any]:
    """Return a kernel of one expression. Numba keeps what it compiles by this file and the kernel's name."""
    names = {"__name__": __name__, "Stretch": Stretch, **uses}
    exec(compile(f"def {name}({arguments}):\n    return {result.format(**_SHORTER)}\n", __file__, "exec"), names)
    return kernel(names[name])


def _decoders(name: str, result: str, **uses: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a kernel, and one that decodes one half after the other with it; each half is a complete payload."""
    decode = _made(f"decode_{name}", _DECODE, result, **uses)
    halves = "body(decode, {coded}, count, middle, parameter, target, target_at)"
    return decode, _made(f"decode_{name}_halves", _HALVES, halves, body=bursts.decode_halves, decode=decode)


def _primitives_of(variant: str) -> Any:
    """Return the module of an instruction set; without the instructions an import must not happen."""
    return importlib.import_module(f"netoffload.codec.{variant}")


@functools.cache
def _tagged_decoders(variant: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    isa, name = _primitives_of(variant).ISA, f"decode_tagged_{variant}"
    same, other = (tagged.burst_decoder(isa, same_unit=is_same) for is_same in (True, False))
    # The choice stands outside the loops: with one unit for both forms a burst takes fewer instructions.
    either = "body(same, {}) if parameter == UNIT16 else body(other, {})"
    uses = {"same": same, "other": other, "UNIT16": scalar.UNIT16}
    arguments = "{coded}, count, parameter, target, target_at"
    decode = _made(name, _DECODE, either.format(arguments, arguments), body=tagged.decode, **uses)
    arguments = "decode, {coded}, count, middle, parameter, target, target_at"
    halves = either.format(arguments, arguments)
    return decode, _made(f"{name}_halves", _HALVES, halves, body=tagged.decode_halves, decode=decode, **uses)


def _tagged_kernels(codec_id: CodecId, form: Tagged, variant: str) -> Kernels:
    if codec_id not in tagged.ARITHMETIC:
        raise UsageError(f"codec {SPECS[codec_id].name} has no arithmetic: add it to netoffload.codec.tagged")
    isa, limits = _primitives_of(variant).ISA, tagged.limits_of(codec_id)
    name, unit8 = f"{SPECS[codec_id].name}_{variant}", scalar.unit8_of(form)
    encode = "body(limits(bound_k), source, source_at, count, {room}, classes)"
    rounding = {
        "body": tagged.round_trip,
        "full": tagged.burst_rounder(codec_id, full=True),
        "part": tagged.burst_rounder(codec_id, full=False),
        "unit8": unit8,
    }
    round_trip = "body(full, part, limits(bound_k), unit8(bound_k), source, target)"
    return Kernels(
        _made(f"encode_{name}", _ENCODE, encode, body=tagged.encoder(isa, codec_id), limits=limits),
        *_tagged_decoders(variant),
        _made(f"round_trip_{name}", _ROUND, round_trip, limits=limits, **rounding),
        decoding=unit8,
    )


def _packed_kernels(form: Packed, variant: str) -> Kernels:
    name, uses = f"packed_{variant}", _primitives_of(variant).GROUPS._asdict()
    encode = "body(put, limits(bound_k), source, source_at, count, {room}, classes)"
    limits = tagged.limits_of(form.values)
    decoding = "body(read_masks, get, {coded}, count, parameter, target, target_at)"
    decode, decode_halves = _decoders(name, decoding, body=packed.decode, **uses)
    return kernels_of(form.values, variant)._replace(
        encode=_made(f"encode_{name}", _ENCODE, encode, body=packed.encode, limits=limits, **uses),
        decode=decode,
        decode_halves=decode_halves,
    )


def _exact_kernels(variant: str) -> Kernels:
    name, moves = f"exact_{variant}", _primitives_of(variant).MOVES
    encode = "body(source, source_at, count, {room}, classes)"
    decoding = "body({coded}, count, target, target_at)"
    decode, decode_halves = _decoders(name, decoding, body=exact.decoder(moves))
    return kernels_of(CodecId.NONE, variant)._replace(
        encode=_made(f"encode_{name}", _ENCODE, encode, body=exact.encoder(moves)),
        decode=decode,
        decode_halves=decode_halves,
    )


@inline_kernel
def _bound_itself(bound_k: int) -> int:
    return bound_k


def _fixed_kernels(name: str, form: Cut) -> Kernels:
    to_code, to_word = fixed.mappings_of(form)
    encode = "body(to_code, bits, bound_k, source, source_at, count, {room}, classes)"
    decoding = "body(to_word, bits, parameter, {coded}, count, target, target_at)"
    round_trip = "body(to_code, to_word, bound_k, source, target)"
    return Kernels(
        _made(f"encode_{name}", _ENCODE, encode, body=fixed.encode, to_code=to_code, bits=form.bits),
        *_decoders(name, decoding, body=fixed.decode, to_word=to_word, bits=form.bits),
        _made(f"round_trip_{name}", _ROUND, round_trip, body=fixed.round_trip, to_code=to_code, to_word=to_word),
        decoding=_bound_itself,
    )


@functools.cache
def kernels_of(codec_id: CodecId, variant: str = KERNEL) -> Kernels:
    """Return the kernels of a codec in one of the variants."""
    spec = SPECS[codec_id]
    if isinstance(spec.form, Cut):
        return _fixed_kernels(spec.name, spec.form)
    if isinstance(spec.form, Tagged):
        return _tagged_kernels(codec_id, spec.form, variant)
    return _packed_kernels(spec.form, variant) if isinstance(spec.form, Packed) else _exact_kernels(variant)


@inline_kernel
def is_known(codec_id: int) -> bool:
    """Whether this version has a codec with this id."""
    return ALL_CODECS >> codec_id & 1 != 0


_LOSSLESS: Final = sum(1 << codec_id for codec_id, spec in SPECS.items() if spec.is_lossless)


@inline_kernel
def is_lossless(codec_id: int) -> bool:
    """Whether a codec gives back every bit of any octets."""
    return _LOSSLESS >> codec_id & 1 != 0


_SAME_VALUES: Final = np.full(16, -1, np.int64)
"""Per codec id the id of a codec with tags and the same values, or -1."""
for _codec_id, _spec in SPECS.items():
    if isinstance(_spec.form, Packed):
        _SAME_VALUES[_codec_id] = _spec.form.values


@inline_kernel
def codec_for(codec_id: int, understood: int) -> int:
    """Return ``codec_id`` if it is in the bitmap ``understood``, else another one there with its values, or -1."""
    while codec_id >= 0 and understood >> codec_id & 1 == 0:
        codec_id = whole(_SAME_VALUES[codec_id])
    return codec_id


def _by_id(kind: str, arguments: str, otherwise: str) -> Callable[..., Any]:
    """Return the kernel that calls a codec's kernel of this kind by its id, in a chain of comparisons.

    ``parameter`` among the arguments is made from the bound. ``otherwise`` is the result for an unknown id.
    """
    names: dict[str, Any] = {"__name__": __name__, "MALFORMED": MALFORMED}
    lines = [f"def {kind}(codec_id, {arguments.replace('parameter', 'bound_k')}):"]
    for codec_id in SPECS:
        kernels = kernels_of(codec_id)
        names |= {f"of_{codec_id:d}": getattr(kernels, kind), f"decoding_{codec_id:d}": kernels.decoding}
        own = arguments.replace("parameter", f"decoding_{codec_id:d}(bound_k)")
        lines += [f"    if codec_id == {codec_id:d}:", f"        return of_{codec_id:d}({own})"]
    source = "\n".join([*lines, f"    return {otherwise}"])
    exec(compile(source, __file__, "exec"), names)  # Numba keeps what it compiles by the file
    return kernel(names[kind])


encode_fit: Final = _by_id("encode", _ENCODE, "0, 0")
"""Encode as many of ``count`` floats as fit into ``capacity`` octets: whole bursts, but for the last of the floats.

The floats need no alignment. Source and target are uint8 arrays; the contract says what slack they need. The call adds
the floats per class (0, 8, 16, 32 bits) to ``classes``, int64[4]. It returns floats encoded and octets written, 0 and 0
for an unknown id.
"""

decode: Final = _by_id("decode", _DECODE, "MALFORMED")
"""Decode ``count`` floats and return the octets read; ``MALFORMED`` for a bad payload or an unknown id.

The payload, at most ``available`` octets, and the target are uint8 arrays with the slack of the contract.
"""

decode_halves: Final = _by_id("decode_halves", _HALVES, "MALFORMED")
"""Decode a payload whose middle is known; otherwise like :func:`decode`.

The middle's octets are at most ``available``, its floats at most ``count``. The result is ``MALFORMED`` if no burst
starts there.
"""

round_trip: Final = _by_id("round_trip", _ROUND, f"of_{CodecId.NONE:d}(source, bound_k, target)")
"""Write the round trip of ``source`` to ``target``; both are uint32 arrays of float bits, and may be the same.

With an unknown id the call copies the floats.
"""
