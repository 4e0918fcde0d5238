"""The methods by their names, as ``--exchange`` takes them.

=============================  =======================================================  ==================
name                           what travels                                             way
=============================  =======================================================  ==================
wa, wa+c                       gradients up, weights down; +c: gradients through NICs   aggregator
inc, inc+c; fullsgd            sums of gradients; +c: through NICs; fullsgd is inc      ring
wa:groups=2, inc:groups=2      the same by groups of workers, with and without +c       tree, rings of rings
psgd, rsgd                     weights every p iterations, or a p-th of them in each    ring
pqasgd                         quantised changes of the weights every p iterations      gather
a compressor's name            payloads of gradients                                    see below
=============================  =======================================================  ==================

Parameters may follow a name: ``psgd:p=4``, ``qsgd:levels=15,norm=max,via=ring``. ``groups`` is a number of groups of
workers: ``wa:groups=2`` is a tree of aggregators, ``inc:groups=2`` rings of rings, ``inc:groups=2,top=wa`` rings under
aggregators (INCEPTIONN, Fig. 1 a, c, b). ``p`` is the period of the periodic methods. ``via`` is the way of payloads:
``gather`` (every worker's payload to all others; the default), ``server`` (a parameter server adds and answers;
TernGrad's default) or ``ring`` (every hop decodes, adds and encodes; the default of types of 16 bits or more, in which
sums stay in range). All other parameters are the compressor's.

Sources: INCEPTIONN, Algorithm 1 and Fig. 1 (wa, inc); Jiang and Agrawal, "A Linear Speedup Analysis ...", Algorithms 1
and 2 and section 5 (fullsgd, psgd, rsgd, pqasgd); TernGrad, Fig. 1 (the server); Anoosheh et al. (wgt, bgt, qgt).
"""

from collections.abc import Mapping
from typing import Final

from netoffload.collectives.hierarchy import TOPS
from netoffload.compressors import Compressor, registry
from netoffload.config import check_choice
from netoffload.errors import UsageError
from netoffload.methods import payloads
from netoffload.methods.averaging import Averaging, ChangeAveraging, Rotation
from netoffload.methods.base import Family, Member, Method, MethodSpec, Topology
from netoffload.methods.floats import Aggregation, RingReducer
from netoffload.methods.scattered import PayloadScatter, RingScatter

FAMILIES: Final[Mapping[str, Family]] = {
    "wa": Family(Topology.AGGREGATOR, Aggregation, Aggregation, grouped=True),
    "wa+c": Family(Topology.AGGREGATOR, Aggregation, Aggregation, tagged=True, grouped=True),
    "inc": Family(Topology.RING, RingReducer, grouped=True),
    "inc+c": Family(Topology.RING, RingReducer, tagged=True, grouped=True),
    "fullsgd": Family(Topology.RING, RingReducer),
    "psgd": Family(Topology.RING, Averaging, periodic=True),
    "rsgd": Family(Topology.RING, Rotation, periodic=True),
    "pqasgd": Family(Topology.GATHER, ChangeAveraging, periodic=True, compressor="qsgd"),
}
"""Every method by its name, one line each; all other names are compressors."""

_VIA: Final[Mapping[str, Family]] = {
    "gather": Family(Topology.GATHER, payloads.GatherReducer),
    "server": Family(Topology.SERVER, payloads.ServedReducer, payloads.PayloadServer),
    "ring": Family(Topology.PAYLOAD_RING, payloads.PayloadRingReducer),
}
_SERVED_OTHERWISE: Final = {"terngrad": Family(Topology.SERVER, payloads.TernaryWorker, payloads.TernaryServer)}
"""Compressors whose server does more than add payloads."""
_OWN_VIA: Final = {
    "terngrad": "server",
    **dict.fromkeys(("half", "fp16", "bf16", "16b-T", "22b-T", "24b-T"), "ring"),
}
"""Default ways of compressors for which it is not ``gather``."""

PERIOD_DEFAULT: Final = 8  # Jiang and Agrawal, 5.1: the period with which PQASGD matches FULLSGD

PQASGD_ITEMS: Final = ("norm=l2", "bucket=0")
"""Jiang and Agrawal, sections 4 and 5: s = sqrt(m p N) / 2 for partitioned data, sqrt(N) / 2 for shared data. Here N is
the size of a layer."""


def names() -> tuple[str, ...]:
    """Return every name without parameters, those of :data:`FAMILIES` first."""
    return (*FAMILIES, *registry.names(), *registry.ALIASES)


def parse(text: str, *, batch: int, shared: bool = False) -> MethodSpec:
    """Return what ``name`` or ``name:key=value,...`` stands for.

    ``batch`` is the number of samples per worker and iteration, m in the rules for QSGD's levels. With ``shared`` all
    workers draw from the whole training set, so PQASGD needs fewer levels.
    """
    name, _, rest = text.partition(":")
    items = [item for item in rest.split(",") if item]
    if name not in names():
        raise UsageError(f"exchange {name!r} is unknown: choose from {', '.join(names())}")
    if name not in FAMILIES:
        family = _by_way(name, items)
        return MethodSpec(text, name, family, compressor=_compressor(name, items, batch, 1))
    family, compressor = FAMILIES[name], None
    groups, top = _groups(name, family, items) if family.grouped else (1, TOPS[0])
    period = _period(name, items) if family.periodic else 1
    if family.compressor:
        if (via := _via(name, items)) not in (None, "gather"):
            raise UsageError(f"{name} gathers its payloads: leave out via={via}")
        items = items or [f"rule={'n' if shared else 'mpn'}", *PQASGD_ITEMS]
        compressor = _compressor(family.compressor, items, batch, period)
    elif items:
        takes = "p=ITERATIONS and nothing else" if family.periodic else "no parameters"
        raise UsageError(f"{name} takes {takes}, not {','.join(items)}")
    return MethodSpec(text, name, family, period, compressor, groups, top)


def method_for(spec: MethodSpec, member: Member) -> Method:
    """Return a rank's side of a method."""
    if member.owners and spec.sums_gradients:
        return (PayloadScatter if spec.compressor else RingScatter)(spec, member)
    is_worker = member.exchange.rank < member.exchange.size - spec.servers
    side = spec.family.worker if is_worker or spec.family.server is None else spec.family.server
    return side(spec, member)


def _compressor(name: str, items: list[str], batch: int, period: int) -> Compressor:
    """Return a compressor; QSGD's rules for the levels get the batch and the period."""
    if name == "qsgd":
        given = {item.partition("=")[0] for item in items}
        known = (("batch", batch), ("period", period))
        items = [*items, *(f"{key}={value}" for key, value in known if key not in given)]
    return registry.parse(f"{name}:{','.join(items)}")


def _period(name: str, items: list[str]) -> int:
    """Take ``p=...`` out of a periodic method's parameters."""
    text = str(PERIOD_DEFAULT) if (given := _taken("p=", items)) is None else given
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise UsageError(f"{name}: p={text} is not a number of iterations, 1 to 1000000")
    return int(text)


def _groups(name: str, family: Family, items: list[str]) -> tuple[int, str]:
    """Take ``groups=`` and ``top=`` out of the parameters; only rings have ``top``, and nothing may be left."""
    given, top = _taken("groups=", items), _taken("top=", items) if family.topology is Topology.RING else None
    if items:
        takes = " and top=ring or top=wa" if family.topology is Topology.RING else ""
        raise UsageError(f"{name} takes groups=NUMBER{takes}, not {','.join(items)}")
    if given is not None and not (given.isdecimal() and 2 <= int(given) <= 1000):
        raise UsageError(f"{name}: groups={given} is not a number of groups, 2 or more")
    if top is not None:
        check_choice(f"{name}: top", top, TOPS)
    return int(given or 1), TOPS[0] if top is None else top


def _by_way(name: str, items: list[str]) -> Family:
    """Take ``via=...`` out of a compressor's parameters, and return the family of this way."""
    family = _VIA[_via(name, items) or _OWN_VIA.get(name, "gather")]
    by_layer = [item for item in items if item.startswith(("exempt=", "layers="))]
    if family.topology is Topology.PAYLOAD_RING and by_layer:
        raise UsageError(f"{name}: {by_layer[0]} names layers of the model, but via=ring cuts layers: choose one")
    return _SERVED_OTHERWISE.get(name, family) if family.topology is Topology.SERVER else family


def _via(name: str, items: list[str]) -> str | None:
    via = _taken("via=", items)
    if via not in (None, *_VIA):
        raise UsageError(f"{name}: via={via} is unknown: choose from {', '.join(_VIA)}")
    return via


def _taken(key: str, items: list[str]) -> str | None:
    """Take ``key`` out of the parameters, and return its value; None: it was not there."""
    given = [item.removeprefix(key) for item in items if item.startswith(key)]
    items[:] = [item for item in items if not item.startswith(key)]
    if len(given) > 1:
        raise UsageError(f"{key}{given[0]} and {key}{given[1]}: give it once")
    return given[0] if given else None
