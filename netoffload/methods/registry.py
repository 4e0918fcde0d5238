"""The methods by their names, as ``--exchange`` takes them.

=============================  =======================================================  ==================
name                           what travels                                             way
=============================  =======================================================  ==================
wa, wa+c                       gradients up, weights down; +c: gradients through NICs   aggregator
inc, inc+c; fullsgd            sums of gradients; +c: through NICs; fullsgd is inc      ring
psgd, rsgd                     weights every p iterations, or a p-th of them in each    ring
pqasgd                         quantised changes of the weights every p iterations      gather
a compressor's name            payloads of gradients                                    see below
=============================  =======================================================  ==================

Parameters may follow a name: ``psgd:p=4``, ``qsgd:levels=15,norm=max,via=ring``. ``p`` is the period of the
periodic methods. ``via`` is the way of payloads: ``gather`` (everybody's payload to everybody; the default), ``server``
(a parameter server adds and answers; TernGrad's default) or ``ring`` (every hop decodes, adds and encodes; the
default of types as wide as 16 bits, whose sums stay in their range). All other parameters are the compressor's.

Sources: INCEPTIONN, Algorithm 1 and Fig. 1 (wa, inc); Jiang and Agrawal, "A Linear Speedup Analysis ...", Algorithms 1
and 2 and section 5 (fullsgd, psgd, rsgd, pqasgd); TernGrad, Fig. 1 (the server); Anoosheh et al. (wgt, bgt, qgt).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from netoffload.compressors import Compressor, registry
from netoffload.errors import UsageError
from netoffload.methods.averaging import averaging, quantised_averaging, rotation
from netoffload.methods.base import Member, Method, MethodSpec, Way
from netoffload.methods.floats import aggregation, ring
from netoffload.methods.payloads import gathered, ringed, served

Build = Callable[[MethodSpec, Member], Method]


@dataclasses.dataclass(frozen=True)
class Family:
    """A method that is not just a compressor.

    Attributes:
        way: how the ranks are connected.
        build: makes a rank's side.
        tagged: gradients travel through the NICs' codec.
        periodic: it takes ``p``, the iterations from one exchange of weights to the next.
        compressor: the one that it always uses, by name; empty: none.
    """

    way: Way
    build: Build
    tagged: bool = False
    periodic: bool = False
    compressor: str = ""


FAMILIES: Final[Mapping[str, Family]] = {
    "wa": Family(Way.AGGREGATOR, aggregation),
    "wa+c": Family(Way.AGGREGATOR, aggregation, tagged=True),
    "inc": Family(Way.RING, ring),
    "inc+c": Family(Way.RING, ring, tagged=True),
    "fullsgd": Family(Way.RING, ring),
    "psgd": Family(Way.RING, averaging, periodic=True),
    "rsgd": Family(Way.RING, rotation, periodic=True),
    "pqasgd": Family(Way.GATHER, quantised_averaging, periodic=True, compressor="qsgd"),
}
"""Every method by its name, one line each; all other names are compressors."""

_VIA: Final[Mapping[str, tuple[Way, Build]]] = {
    "gather": (Way.GATHER, gathered),
    "server": (Way.SERVER, served),
    "ring": (Way.PAYLOAD_RING, ringed),
}
_OWN_VIA: Final = {
    "terngrad": "server",
    **dict.fromkeys(("half", "fp16", "bf16", "16b-T", "22b-T", "24b-T"), "ring"),
}
"""The way of a compressor's payloads where it is not ``gather``."""

PERIOD_DEFAULT: Final = 8
"""Jiang and Agrawal, 5.1: the period with which PQASGD matches FULLSGD."""

PQASGD_ITEMS: Final = ("norm=l2", "bucket=0")
"""Jiang and Agrawal, sections 4 and 5: s = sqrt(m p N) / 2 for partitioned data, sqrt(N) / 2 for shared; N here is a
layer's."""

LEARNING_RATE_MAX: Final = {"terngrad": 0.01}
"""By name, where a method wants less than a model does at the start. Ternary gradients are noise for the most part,
and with 0.1 HDC diverges on bright images; Wen et al. train on MNIST with 0.01 and momentum 0.9 (Fig. 3)."""

PAPERS: Final = (
    *("wa", "wa+c", "inc", "inc+c", "16b-T"),
    "terngrad",
    *("qsgd:rule=mn,norm=l2,bucket=0", "psgd", "rsgd", "pqasgd"),
    *("wgt", "bgt", "qgt"),
    *("8bit-dynamic", "8bit-static", "8bit-mantissa", "8bit-linear"),
)
"""One of every kind in the five papers, with the parameters they recommend, for one table."""


def names() -> tuple[str, ...]:
    """Return every name without parameters, those of :data:`FAMILIES` first."""
    return (*FAMILIES, *registry.names(), *registry.ALIASES)


def expand(asked: Sequence[str], thresholds: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names in ``asked``, each once, with ``papers`` replaced by :data:`PAPERS`.

    Args:
        asked: names with their parameters.
        thresholds: by name, the threshold that ``papers`` takes.
    """
    papers = [f"{name}:threshold={thresholds[name]:g}" if name in thresholds else name for name in PAPERS]
    return tuple(dict.fromkeys(name for given in asked for name in (papers if given == "papers" else (given,))))


def parse(text: str, *, batch: int, shared: bool = False) -> MethodSpec:
    """Return what ``text`` stands for.

    Args:
        text: a name, or ``name:key=value,...``.
        batch: samples per worker and iteration, m in the rules for QSGD's levels.
        shared: all workers draw from the whole training set, so PQASGD needs fewer levels.

    Raises:
        UsageError: an unknown name or parameter, or a value that cannot be.
    """
    name, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item]
    if name not in names():
        raise UsageError(f"exchange {name!r} is unknown: choose from {', '.join(names())}")
    family = FAMILIES.get(name)
    if family is None:
        way, build, items = _way(name, items)
        return MethodSpec(text, name, way, build, compressor=_compressor(name, items, batch, 1))
    period = 1
    if family.periodic:
        period, items = _period(name, items)
    compressor = None
    if family.compressor:
        items = _gathered_items(name, items) or [f"rule={'n' if shared else 'mpn'}", *PQASGD_ITEMS]
        compressor = _compressor(family.compressor, items, batch, period)
    elif items and family.periodic:
        raise UsageError(f"{name} takes p=ITERATIONS and nothing else, not {','.join(items)}")
    elif items:
        raise UsageError(f"exchange {name!r} takes no parameters")
    return MethodSpec(text, name, family.way, family.build, family.tagged, period, compressor)


def method_for(spec: MethodSpec, member: Member) -> Method:
    """Return a rank's side of a method.

    Raises:
        UsageError: a tagged ring has nothing to round by.
    """
    return spec.build(spec, member)


def _compressor(name: str, items: list[str], batch: int, period: int) -> Compressor:
    """Return a compressor; QSGD's rules for the levels know the batch and the period."""
    if name == "qsgd":
        given = {item.partition("=")[0] for item in items}
        known = (("batch", batch), ("period", period))
        items = [*items, *(f"{key}={value}" for key, value in known if key not in given)]
    return registry.parse(f"{name}:{','.join(items)}")


def _period(name: str, items: list[str]) -> tuple[int, list[str]]:
    """Take ``p=...`` out of a periodic method's parameters."""
    given, rest = _taken("p=", items)
    text = str(PERIOD_DEFAULT) if given is None else given
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{name}: p={text} is not a number of iterations, 1 or more")
    return int(text), rest


def _way(name: str, items: list[str]) -> tuple[Way, Build, list[str]]:
    """Take ``via=...`` out of a compressor's parameters."""
    given, rest = _taken("via=", items)
    via = _OWN_VIA.get(name, "gather") if given is None else given
    if via not in _VIA:
        raise UsageError(f"{name}: via={via} is unknown: choose from {', '.join(_VIA)}")
    way, build = _VIA[via]
    by_layer = [item for item in rest if item.startswith(("exempt=", "layers="))]
    if way is Way.PAYLOAD_RING and by_layer:
        raise UsageError(f"{name}: {by_layer[0]} names layers of the model, via=ring encodes blocks that cut them")
    return way, build, rest


def _gathered_items(name: str, items: list[str]) -> list[str]:
    """Take ``via=gather`` out of the parameters of a method that knows no other way."""
    given, rest = _taken("via=", items)
    if given is not None and given not in _VIA:
        raise UsageError(f"{name}: via={given} is unknown: choose from {', '.join(_VIA)}")
    if given not in (None, "gather"):
        raise UsageError(f"{name} gathers its payloads: via={given} is not for it")
    return rest


def _taken(key: str, items: list[str]) -> tuple[str | None, list[str]]:
    """Return the last value of ``key`` (None: it is not there), and the other items."""
    given = [item.removeprefix(key) for item in items if item.startswith(key)]
    return (given[-1] if given else None), [item for item in items if not item.startswith(key)]
