"""What a pair of NICs costs and gains, beside plain wires and beside tunnels of others.

A *stage* is one rate of the wires (or none). All its testbeds are up together, and its contenders take turns, so that
what disturbs the machine for a while disturbs all of them; medians are reported, with their spread::

    round 1   kernel  bypass  bypass_kernel  coalesced  per_segment  coalesced_keyed  peers ...
    round 2   kernel  bypass  bypass_kernel  coalesced  per_segment  coalesced_keyed  peers ...

The first round is smaller and not timed. Tunnels and NICs whose turn it is not are idle.

The *limit* of a stream is the link when the sender's wire was busy for 95 % of the time, else the cores when those of
this machine were (other programs count), else neither: then something waited for something.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from netoffload.codec import get
from netoffload.compiled.arrays import Float32Array
from netoffload.config import format_rate
from netoffload.errors import NetOffloadError, RunError
from netoffload.nic_options import NicSettings
from netoffload.testbed import vpn_peers
from netoffload.testbed.build import Testbed
from netoffload.testbed.plan import TestbedSettings, make_plan, new_run_id
from netoffload.testbed.throughput import (
    Payload,
    StreamResult,
    nic_pids,
    round_trips_us,
    run_stream,
    write_payload,
)

WARM_UP_S: Final = 0.3
WARM_UP_OCTETS: Final = 64 * 10**6
PLAIN: Final = "plain"
"""The kind of testbed without NICs."""

NIC_KINDS: Final[dict[str, dict[str, Any]]] = {
    "coalesced": {"packing": "coalesced"},
    "ipcomp": {"encapsulation": "ipcomp"},
    "per-segment": {"packing": "per-segment"},
    "keyed": {"keyed": True},
    "busy-poll": {"busy_poll_us": 1000},
    "bypass-kernel": {"bypass": "kernel"},
}
"""The other kinds, and what is special about their NICs' settings."""

ROUND_TRIP_KINDS: Final = {
    "kernel": PLAIN,
    "nic": "coalesced",
    "nic_busy_poll": "busy-poll",
    "bypass_kernel": "bypass-kernel",
}
"""Which testbeds' round-trip times are measured, by the name they have in the report."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Contender:
    """A way for a stream to go: over which kind of testbed, and whether it is tagged."""

    kind: str
    tagged: bool = False


CONTENDERS: Final = {
    "kernel": Contender(PLAIN),
    "bypass": Contender("coalesced"),
    "bypass_kernel": Contender("bypass-kernel"),
    "coalesced": Contender("coalesced", tagged=True),
    "coalesced_ipcomp": Contender("ipcomp", tagged=True),
    "per_segment": Contender("per-segment", tagged=True),
    "coalesced_keyed": Contender("keyed", tagged=True),
}
"""In the order in which they take turns."""
UNSHAPED_ONLY: Final = ("kernel", "bypass_kernel")
"""Their wires would be as full as that of ``bypass``."""


@dataclass(frozen=True)
class Asked:
    """What a person asked for.

    Attributes:
        rates_bps: of the shaped stages.
        size_octets: of a stream over unshaped wires; a multiple of four.
        seconds: that a stream over shaped wires should take.
        repeat: timed rounds.
        peers: names of :data:`~netoffload.testbed.vpn_peers.PEERS`, installed or not.
        mtu: of every link.
        nic: codec and bound of the NICs; the packing is chosen by the kind of testbed.
        round_trips: timed round trips per round.
    """

    rates_bps: tuple[int, ...]
    size_octets: int
    seconds: float
    repeat: int
    peers: tuple[str, ...]
    mtu: int
    nic: NicSettings
    round_trips: int


@dataclass
class Samples:
    """The timed streams of one contender in one stage; ``failed`` says why there are none (peers only)."""

    streams: list[StreamResult] = field(default_factory=list)
    failed: str | None = None


@dataclass
class Stage:
    """One rate of the wires: its testbeds, and what was measured on them."""

    rate_bps: int | None
    payload: Payload
    beds: dict[str, Testbed]
    samples: dict[str, Samples]
    tunnels: dict[str, vpn_peers.Tunnel] = field(default_factory=dict)


@dataclass
class Findings:
    """What was measured so far: stages that got to their end.

    Attributes:
        unshaped: the first one; None until then.
        rtts_us: its round-trip times in microseconds by contender and round.
        shaped: the others.
        load_before: load average when it began.
    """

    unshaped: Stage | None = None
    rtts_us: dict[str, list[list[float]]] = field(default_factory=dict)
    shaped: list[Stage] = field(default_factory=list)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])


def measure(asked: Asked, values: Float32Array, progress: Progress, found: Findings) -> None:
    """Measure everything.

    Args:
        asked: what to measure.
        values: float32[n] that the streams repeat.
        progress: called with a phrase whenever something begins.
        found: gets what a stage found at the stage's end, so that an interrupted series leaves what it has.

    Raises:
        RunError: a stream did not arrive as it must.
        TestbedError: a testbed cannot be built as asked for.
    """
    found.unshaped, found.rtts_us = _unshaped(asked, values, progress)
    for rate_bps in asked.rates_bps:
        found.shaped.append(_shaped(asked, rate_bps, values, progress))


def _unshaped(asked: Asked, values: Float32Array, progress: Progress) -> tuple[Stage, dict[str, list[list[float]]]]:
    rtts_us: dict[str, list[list[float]]] = {name: [] for name in ROUND_TRIP_KINDS}
    with _stage(asked, values, None, tuple(CONTENDERS), ROUND_TRIP_KINDS.values(), progress) as stage:
        for number in range(asked.repeat + 1):
            for name in CONTENDERS:
                progress(f"unshaped, round {number} of {asked.repeat}: {name}")
                octets = min(WARM_UP_OCTETS, asked.size_octets) if number == 0 else asked.size_octets
                _run(stage, name, octets, timed=number > 0)
            progress(f"unshaped, round {number} of {asked.repeat}: round-trip times")
            for name, kind in ROUND_TRIP_KINDS.items():
                times_us = round_trips_us(stage.beds[kind], asked.round_trips)
                rtts_us[name] += [times_us] if number > 0 else []
    return stage, rtts_us


def _shaped(asked: Asked, rate_bps: int, values: Float32Array, progress: Progress) -> Stage:
    names = tuple(name for name in CONTENDERS if name not in UNSHAPED_ONLY)
    text = format_rate(rate_bps)
    with (
        _stage(asked, values, rate_bps, names, [PLAIN] if asked.peers else [], progress) as stage,
        contextlib.ExitStack() as tunnels,
    ):
        for name in asked.peers:
            progress(f"{text}: starting {name}")
            _start_peer(stage, name, tunnels)
        for number in range(asked.repeat + 1):
            seconds = asked.seconds if number > 0 else min(WARM_UP_S, asked.seconds)
            raw_octets = max(4, int(rate_bps / 8 * seconds) // 4 * 4)
            for name in names:
                progress(f"{text}, round {number} of {asked.repeat}: {name}")
                ratio = stage.payload.ratio if CONTENDERS[name].tagged else 1.0
                _run(stage, name, int(raw_octets * ratio) // 4 * 4, timed=number > 0)
            for name in stage.tunnels:
                progress(f"{text}, round {number} of {asked.repeat}: {name}")
                _run_peer(stage, name, raw_octets, timed=number > 0)
    return stage


@contextlib.contextmanager
def _stage(
    asked: Asked,
    values: Float32Array,
    rate_bps: int | None,
    names: Sequence[str],
    kinds: Iterable[str],
    progress: Progress,
) -> Iterator[Stage]:
    """Build a testbed of these kinds and of all that the contenders need; take them down afterwards."""
    text = "unshaped" if rate_bps is None else format_rate(rate_bps)
    with contextlib.ExitStack() as stack:
        beds = {}
        for kind in dict.fromkeys([*kinds, *(CONTENDERS[name].kind for name in names)]):
            nic = None if kind == PLAIN else replace(asked.nic, **NIC_KINDS[kind])
            plan = make_plan(TestbedSettings(2, rate_bps, asked.mtu, nic), new_run_id())
            bed = Testbed(plan, check_rate=rate_bps is not None, progress=lambda said: progress(f"{text}: {said}"))
            beds[kind] = stack.enter_context(bed)
        # In a testbed's own folder, which goes with the testbed even if this process is killed.
        folder = next(iter(beds.values())).make_scratch()
        payload = write_payload(values, get(asked.nic.codec), asked.nic.bound_k, folder)
        yield Stage(rate_bps, payload, beds, {name: Samples() for name in (*names, *(asked.peers if rate_bps else ()))})


def _run(stage: Stage, name: str, octets: int, *, timed: bool) -> None:
    contender = CONTENDERS[name]
    bed = stage.beds[contender.kind]
    result = run_stream(bed, stage.payload, octets, tagged=contender.tagged, carriers=nic_pids(bed))
    stage.samples[name].streams += [result] if timed else []


def _start_peer(stage: Stage, name: str, stack: contextlib.ExitStack) -> None:
    """Start a tunnel; one that cannot be started is noted and is no error of ours."""
    peer = vpn_peers.PEERS[name]
    stage.samples[name].failed = vpn_peers.missing(peer)
    if stage.samples[name].failed is None:
        try:
            stage.tunnels[name] = stack.enter_context(vpn_peers.tunnel(stage.beds[PLAIN], peer))
        except NetOffloadError as error:
            stage.samples[name].failed = str(error)


def _run_peer(stage: Stage, name: str, octets: int, *, timed: bool) -> None:
    """Run a stream through a tunnel, unless that failed before."""
    samples, tunnel = stage.samples[name], stage.tunnels[name]
    if samples.failed is not None:
        return
    try:
        result = run_stream(
            stage.beds[PLAIN], stage.payload, octets, tagged=False, address=tunnel.address, carriers=tunnel.pids
        )
        samples.streams += [result] if timed else []
    except RunError as error:
        samples.failed = f"{error} ({tunnel.state()})"
        samples.streams.clear()
