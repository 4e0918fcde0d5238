"""The names behind ``--exchange``: which gradients travel, by which way, compressed by what.

=============================  =======================================================  ==================
name                           what travels                                             way
=============================  =======================================================  ==================
wa, wa+c                       gradients up, weights down; +c: gradients through NICs   aggregator
inc, inc+c; fullsgd            sums of gradients; +c: through NICs; fullsgd is inc      ring
psgd, rsgd                     weights every p iterations, or a p-th of them in each    ring
pqasgd                         quantised changes of the weights every p iterations      gather
a compressor's name            payloads of gradients                                    see below
=============================  =======================================================  ==================

A name may be followed by parameters: ``psgd:p=4``, ``qsgd:levels=15,norm=max,via=ring``. ``p`` is the period of the
periodic methods, ``via`` the way of payloads: ``gather`` (everybody's payload to everybody; the default), ``server``
(a parameter server that adds and answers; TernGrad's default) or ``ring`` (decode, add, encode on every hop; the
default of types as wide as 16 bits, whose sums stay in their range). All other parameters are the compressor's.

Sources: INCEPTIONN, Algorithm 1 and Fig. 1 (wa, inc); Jiang and Agrawal, "A Linear Speedup Analysis ...", Algorithms 1
and 2 and section 5 (fullsgd, psgd, rsgd, pqasgd); TernGrad, Fig. 1 (the server); Anoosheh et al. (wgt, bgt, qgt).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Final

from netoffload.compressors import Compressor, registry
from netoffload.errors import UsageError


class Way(enum.Enum):
    """How ranks are connected in an exchange."""

    AGGREGATOR = "aggregator"
    """One rank more, which updates the weights."""
    RING = "ring"
    """Floats, partial sums."""
    GATHER = "gather"
    """Payloads to everybody."""
    SERVER = "server"
    """One rank more, which adds payloads."""
    PAYLOAD_RING = "payload-ring"
    """Payloads, decoded, added and encoded on every hop."""


_VIA: Final = {"gather": Way.GATHER, "server": Way.SERVER, "ring": Way.PAYLOAD_RING}

PERIOD_DEFAULT: Final = 8
"""Jiang and Agrawal, 5.1: the period with which PQASGD matches FULLSGD."""

_PLAIN: Final = {"wa": Way.AGGREGATOR, "wa+c": Way.AGGREGATOR, "inc": Way.RING, "inc+c": Way.RING, "fullsgd": Way.RING}
_PERIODIC: Final = {"psgd": Way.RING, "rsgd": Way.RING, "pqasgd": Way.GATHER}
_SERVED: Final = frozenset({"terngrad"})
_RINGED: Final = frozenset({"half", "fp16", "bf16", "16b-T", "22b-T", "24b-T"})


PQASGD_ITEMS: Final = ("norm=l2", "bucket=0")
"""Jiang and Agrawal, sections 4 and 5: s = sqrt(m p N) / 2 for partitioned data, sqrt(N) / 2 for shared; N here is a
layer's."""

PAPERS: Final = (
    *("wa", "wa+c", "inc", "inc+c", "16b-T"),
    "terngrad",
    *("qsgd:rule=mn,norm=l2,bucket=0", "psgd", "rsgd", "pqasgd"),
    *("wgt", "bgt", "qgt"),
    *("8bit-dynamic", "8bit-static", "8bit-mantissa", "8bit-linear"),
)
"""One of every system of the five papers, with the parameters they recommend, for one table; :data:`THRESHOLDS` has
those of ``wgt``, ``bgt`` and ``qgt``."""

THRESHOLDS: Final = {
    "hdc": {"wgt": 0.002, "bgt": 0.05, "qgt": 0.005},
    "cnn": {"wgt": 0.002, "bgt": 0.2, "qgt": 0.01},
}
"""By model and method: what `netoffload bench thresholds` found best. docs/training.md has the commands and results."""


@dataclasses.dataclass(frozen=True)
class System:
    """What a name stands for.

    Attributes:
        name: as it was asked for.
        family: the name without its parameters.
        way: how ranks are connected.
        tagged: gradients travel through the NICs' codec.
        period: iterations from one exchange to the next; 1 for all but the periodic methods.
        compressor: what makes payloads; None where floats travel.
    """

    name: str
    family: str
    way: Way
    tagged: bool = False
    period: int = 1
    compressor: Compressor | None = None

    @property
    def has_server(self) -> bool:
        """Whether one rank more than the workers takes part."""
        return self.way in (Way.AGGREGATOR, Way.SERVER)

    @property
    def averages_weights(self) -> bool:
        """Whether workers update their own weights and average those (or their changes), instead of gradients."""
        return self.family in _PERIODIC

    @property
    def rotates(self) -> bool:
        """Whether a ``period``-th of the weights is averaged in every iteration (RSGD)."""
        return self.family == "rsgd"

    @property
    def keeps_residual(self) -> bool:
        """Whether error feedback is possible: payloads of a worker's own vectors."""
        return self.compressor is not None and self.way is not Way.PAYLOAD_RING


def names() -> tuple[str, ...]:
    """Return every name, without parameters, the plain exchanges first."""
    return (*_PLAIN, *_PERIODIC, *registry.names(), *registry.ALIASES)


def expand(asked: Sequence[str], model: str) -> tuple[str, ...]:
    """Return what was asked for, each once, with ``papers`` replaced by one system of every kind.

    Args:
        asked: names, with their parameters.
        model: that is trained, which decides the thresholds.
    """
    thresholds = THRESHOLDS[model]
    papers = [f"{name}:threshold={thresholds[name]:g}" if name in thresholds else name for name in PAPERS]
    return tuple(dict.fromkeys(name for given in asked for name in (papers if given == "papers" else (given,))))


def parse(text: str, *, batch: int, shared: bool = False) -> System:
    """Return what ``text`` stands for.

    Args:
        text: a name, or ``name:key=value,...``.
        batch: samples per worker and iteration, m in the rules for QSGD's levels.
        shared: all workers draw from the whole training set, so that PQASGD needs fewer levels.

    Raises:
        UsageError: an unknown name or parameter, or a value that cannot be.
    """
    family, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item]
    if family in _PLAIN:
        if items:
            raise UsageError(f"exchange {family!r} takes no parameters")
        return System(text, family, _PLAIN[family], tagged=family.endswith("+c"))
    if family not in names():
        raise UsageError(f"exchange {family!r} is unknown: choose from {', '.join(names())}")
    period, items = _period(family, items)
    if family in ("psgd", "rsgd"):
        if items:
            raise UsageError(f"{family} takes p=ITERATIONS and nothing else, not {','.join(items)}")
        return System(text, family, Way.RING, period=period)
    way, items = _way(family, items)
    by_layer = [item for item in items if item.startswith(("exempt=", "layers="))]
    if way is Way.PAYLOAD_RING and by_layer:
        raise UsageError(f"{family}: {by_layer[0]} names layers of the model, via=ring encodes blocks that cut them")
    compressor = _compressor_of(family, items, batch=batch, period=period, shared=shared)
    return System(text, family, way, period=period, compressor=compressor)


def _compressor_of(family: str, items: list[str], *, batch: int, period: int, shared: bool) -> Compressor:
    """Return the compressor of a system: PQASGD's is QSGD, whose rules for the levels know the batch and the period."""
    if family == "pqasgd":
        items = items or [f"rule={'n' if shared else 'mpn'}", *PQASGD_ITEMS]
    name = "qsgd" if family == "pqasgd" else family
    if name == "qsgd":
        given = {item.partition("=")[0] for item in items}
        items = [
            *items,
            *(f"{key}={value}" for key, value in (("batch", batch), ("period", period)) if key not in given),
        ]
    return registry.parse(f"{name}:{','.join(items)}")


def _period(family: str, items: list[str]) -> tuple[int, list[str]]:
    """Take ``p=...`` out of a periodic method's parameters."""
    if family not in _PERIODIC:
        return 1, items
    given = [item for item in items if item.startswith("p=")]
    text = given[-1].removeprefix("p=") if given else str(PERIOD_DEFAULT)
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{family}: p={text} is not a number of iterations, 1 or more")
    return int(text), [item for item in items if not item.startswith("p=")]


def _way(family: str, items: list[str]) -> tuple[Way, list[str]]:
    """Take ``via=...`` out of a system's parameters."""
    given = [item.removeprefix("via=") for item in items if item.startswith("via=")]
    if not given:
        default = Way.SERVER if family in _SERVED else Way.PAYLOAD_RING if family in _RINGED else Way.GATHER
        return default, items
    if given[-1] not in _VIA:
        raise UsageError(f"{family}: via={given[-1]} is unknown: choose from {', '.join(_VIA)}")
    if family in _PERIODIC and given[-1] != "gather":
        raise UsageError(f"{family} gathers its payloads: via={given[-1]} is not for it")
    return _VIA[given[-1]], [item for item in items if not item.startswith("via=")]
