"""How replicas agree: methods that turn every worker's gradients into the same next weights.

A method knows neither torch nor sockets. It moves vectors through an :class:`~netoffload.collectives.Exchange`, over
threads of one process (``collectives.inprocess``) as well as over TCP::

    spec = parse("qsgd:levels=15,via=server", batch=25)
    method = method_for(spec, Member(exchange, layout=Layout(sizes), seed=1))
    method.step(gradient, parameters, update)         every iteration, all ranks together
    method.finish(parameters)                         after the last one

There are two kinds. Both count the octets that they hand to sockets (:class:`Sent`), to compare with a wire's counters.

:class:`GradientReducer`
    A bucket of gradients goes in, its sum over all workers comes out (``reduce``), and the caller updates the weights.
    A bucket holds all layers or some of them. A compressor's memory belongs to the layers (``buckets``). The reducers
    are rings of floats, and payloads that are gathered, served or passed round a ring. A server runs the counterpart,
    :class:`GradientServer`.

:class:`WeightExchange`
    Weights travel, or their changes: to and from an aggregator (wa), or as averages after some iterations (psgd, rsgd,
    pqasgd).

Files: ``base`` the interface; ``floats`` INCEPTIONN's ring and aggregator; ``payloads`` and ``buckets`` the host-side
compressors; ``scattered`` sums that stay in parts; ``averaging`` the periodic methods; ``selective`` layers that stay
exact, ``scales`` what brings values to where a codec works; ``registry`` the names. A new method is a file and its line
in ``registry.FAMILIES``; a compressor needs neither.
"""

from netoffload.methods.averaging import ChangeAveraging, Outer
from netoffload.methods.base import (
    Bucket,
    GradientReducer,
    GradientServer,
    Member,
    Memory,
    MethodSpec,
    Sent,
    Topology,
    WeightExchange,
)
from netoffload.methods.registry import FAMILIES, method_for, names, parse
from netoffload.methods.selective import Selection, SelectiveReducer

__all__ = [
    "FAMILIES",
    "Bucket",
    "ChangeAveraging",
    "GradientReducer",
    "GradientServer",
    "Member",
    "Memory",
    "MethodSpec",
    "Outer",
    "Selection",
    "SelectiveReducer",
    "Sent",
    "Topology",
    "WeightExchange",
    "method_for",
    "names",
    "parse",
]
