"""Every method by its name: ``get``, ``names``, and the text form that the command line takes.

A text form is ``name`` or ``name:parameter=value,...``. The parameters are the attributes of the method's class; the
others keep their defaults. ``ALIASES`` has the papers' names for certain sets of parameters.
"""

import dataclasses
import typing
from numbers import Real
from typing import Any, Final, cast

from netoffload.compressors.base import Compressor
from netoffload.compressors.chunked_topk import ChunkedTopK
from netoffload.compressors.eight_bit import EightBit
from netoffload.compressors.libraries import General
from netoffload.compressors.nic import Half, Nic, NoCompression
from netoffload.compressors.qsgd import Qsgd
from netoffload.compressors.terngrad import TernGrad
from netoffload.compressors.thresholds import Bgt, Qgt, Wgt
from netoffload.config import parse_parameters, whole_number
from netoffload.errors import UsageError

METHODS: Final[tuple[type[Compressor], ...]] = (
    NoCompression,
    Nic,
    TernGrad,
    Qsgd,
    Wgt,
    Bgt,
    Qgt,
    ChunkedTopK,
    EightBit,
    Half,
    General,
)

ALIASES: Final[dict[str, str]] = {
    "inceptionn": "nic:codec=inceptionn",
    "bounded": "nic:codec=bounded",
    "packed": "nic:codec=packed",
    "16b-T": "nic:codec=truncate16",
    "22b-T": "nic:codec=truncate22",
    "24b-T": "nic:codec=truncate24",
    "8bit-dynamic": "8bit:type=dynamic",
    "8bit-static": "8bit:type=static,norm=offset,offset=1",
    "8bit-mantissa": "8bit:type=mantissa,norm=offset,offset=1",
    "8bit-linear": "8bit:type=linear",
    "fp16": "half:format=fp16",
    "bf16": "half:format=bf16",
    "lz4": "general:library=lz4",
    "snappy": "general:library=snappy",
    "zstd": "general:library=zstd-1",
    "zfp": "general:library=zfp",
}
"""Names in papers and their text forms here; further parameters may follow such a name."""


_BY_NAME: Final = {method.name: method for method in METHODS}


def names() -> tuple[str, ...]:
    """Return the name of every method, without the aliases."""
    return tuple(_BY_NAME)


def get(name: str, **parameters: object) -> Compressor:
    """Return the compressor ``name`` with these parameters."""
    if name in ALIASES:
        own, _, text = ALIASES[name].partition(":")
        preset = _parameters(own, text)
        first = next(iter(preset))  # what the name stands for
        if parameters.get(first, preset[first]) != preset[first]:
            raise UsageError(f"{name} is {own} with {first}={preset[first]}: for another {first} write {own}")
        return get(own, **{**preset, **parameters})
    if name not in _BY_NAME:
        raise UsageError(f"compressor {name!r} is unknown: choose from {', '.join((*_BY_NAME, *ALIASES))}")
    method = _BY_NAME[name]
    known = [field.name for field in dataclasses.fields(cast(Any, method))]
    if unknown := [key for key in parameters if key not in known]:
        raise UsageError(f"{name} has no parameter {unknown[0]!r}: it takes {', '.join(known) or 'none'}")
    kinds = typing.get_type_hints(method)
    return method(**{key: _checked(f"{name}: {key}", value, kinds[key]) for key, value in parameters.items()})


def parse(spec: str) -> Compressor:
    """Return the compressor of a text such as ``qsgd:levels=15,norm=max,bucket=512``."""
    name, _, rest = spec.partition(":")
    own = ALIASES.get(name, name).partition(":")[0]
    return get(name, **(_parameters(own, rest) if own in _BY_NAME else {}))


def _checked(what: str, value: object, kind: type) -> object:
    """Return a parameter's value if it is of its type; NumPy's numbers are numbers."""
    if kind is int:
        return whole_number(what, value)
    if isinstance(value, bool) or not isinstance(value, Real if kind is float else kind):
        raise UsageError(f"{what} is {value!r}, which is not of type {kind.__name__}")
    return value


def _parameters(name: str, text: str) -> dict[str, object]:
    return parse_parameters(name, text, typing.get_type_hints(_BY_NAME[name]))
