"""Dataclasses chosen by name and parameters: ``adam:beta2=0.99``, ``cosine:warmup=100``."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from netoffload.config import check_choice, parse_parameters
from netoffload.errors import UsageError

T = TypeVar("T")


def choose(what: str, kinds: Mapping[str, type[T]], text: str | None, own: T, **given: object) -> T:
    """Return the dataclass that ``text`` names.

    Args:
        text: a name, or ``name:parameter=value,...``. None: ``own``.
        own: the default; if ``text`` names its kind, its values are the defaults of the parameters.
        given: more values, by field; None: not given.
    """
    name, _, rest = (name_of(kinds, own) if text is None else text).partition(":")
    kind: Any = kinds[check_choice(what, name, tuple(kinds))]
    known = [field.name for field in dataclasses.fields(kind)]
    values = parse_parameters(name, rest, typing.get_type_hints(kind))
    values.update({key: value for key, value in given.items() if value is not None})
    if unknown := [key for key in values if key not in known]:
        raise UsageError(f"{name} has no parameter {unknown[0]!r}: it takes {', '.join(known) or 'none'}")
    chosen: T = dataclasses.replace(typing.cast(Any, own), **values) if type(own) is kind else kind(**values)
    return chosen


def name_of(kinds: Mapping[str, type[T]], value: T) -> str:
    """Return the name of a value's kind."""
    return next(name for name, kind in kinds.items() if kind is type(value))


def spelt(kinds: Mapping[str, type[T]], value: T, *, without: str = "") -> str:
    """Return the text that :func:`choose` reads as ``value``, with every parameter but ``without``."""
    fields = [field.name for field in dataclasses.fields(typing.cast(Any, value)) if field.name != without]
    values = {name: getattr(value, name) for name in fields}
    texts = [f"{name}={str(one).lower() if isinstance(one, bool) else one}" for name, one in values.items()]
    return name_of(kinds, value) + (f":{','.join(texts)}" if texts else "")
