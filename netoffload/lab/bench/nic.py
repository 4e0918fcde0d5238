"""Measures a pair of NICs beside plain wires and beside tunnels of other programs.

A *stage* is one rate of the wires (or none). All its testbeds are up together, and its contenders take turns, so a
disturbance of the machine disturbs all of them. Medians are reported, with their spread::

    round 1   kernel  bypass  bypass_kernel  coalesced  per_segment  coalesced_keyed  peers ...
    round 2   kernel  bypass  bypass_kernel  coalesced  per_segment  coalesced_keyed  peers ...

The first round is smaller and not timed. The tunnels and NICs of the other contenders are idle.

The *limit* of a stream is the link if the sender's wire was busy for 95 % of the time. Else it is the cores if they
were busy for 95 % of the time, other programs included. Else it is neither: processes waited for each other.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from netoffload.codec import get
from netoffload.config import format_rate
from netoffload.errors import NetOffloadError, RunError
from netoffload.lab.bench import nic_report, vpn_peers
from netoffload.lab.bench.experiment import Contender, take_turns
from netoffload.lab.bench.nic_report import Measured, Stage
from netoffload.lab.bench.settings import NicBenchSettings
from netoffload.lab.bench.throughput import StreamResult, nic_pids, round_trips_us, run_stream
from netoffload.lab.bench.vectors import gaussian, of_file
from netoffload.lab.declared import Progress
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, prepared_ranks
from netoffload.lab.testbed.build import check_root
from netoffload.lab.testbed.nics import NIC_IMPORTS
from netoffload.lab.testbed.stream import write_payload

BLOCK_OCTETS: Final = 4 * 1024 * 1024
"""Length of the block that streams repeat: too long for a compressor of frames to notice, short for the cache."""
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
"""The kinds of testbed with NICs, and the settings in which their NICs differ from the default."""

ROUND_TRIP_KINDS: Final = {
    "kernel": PLAIN,
    "nic": "coalesced",
    "nic_busy_poll": "busy-poll",
    "bypass_kernel": "bypass-kernel",
}
"""Kinds of testbed whose round-trip times are measured, by their names in the report."""


@dataclass(frozen=True)
class Way:
    """A stream's way: the kind of testbed, and whether the stream is tagged."""

    kind: str
    tagged: bool = False


WAYS: Final = {
    "kernel": Way(PLAIN),
    "bypass": Way("coalesced"),
    "bypass_kernel": Way("bypass-kernel"),
    "coalesced": Way("coalesced", tagged=True),
    "coalesced_ipcomp": Way("ipcomp", tagged=True),
    "per_segment": Way("per-segment", tagged=True),
    "coalesced_keyed": Way("keyed", tagged=True),
}
"""All ways, in the order in which they take turns."""
UNSHAPED_ONLY: Final = ("kernel", "bypass_kernel")
"""Ways that are measured unshaped only: over a shaped link they would fill the wire as ``bypass`` does."""


class NicBench:
    """Every stage; finished stages are reported even if a later one fails."""

    def __init__(self, asked: NicBenchSettings) -> None:
        self._asked, self._peers = asked, asked.peers_of(tuple(vpn_peers.PEERS))
        self._nic = NicSettings(asked.codec, asked.bound)
        self._rates_bps, self._size_octets = asked.rates_bps, asked.size_octets
        floats = BLOCK_OCTETS // 4
        self._values = (
            gaussian(asked.gradients, floats, asked.seed)
            if asked.gradients.startswith("gaussian:")
            else of_file(Path(asked.gradients), floats)
        )
        self._measured = Measured()

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        check_root()
        for name in self._peers:
            if reason := vpn_peers.missing(vpn_peers.PEERS[name]):
                progress(f"without {name}: {reason}")
        with prepared_ranks(NIC_IMPORTS):  # there are a dozen testbeds
            self._measured.unshaped = self._run_unshaped(progress)
            for rate_bps in self._rates_bps:
                self._measured.shaped.append(self._run_shaped(rate_bps, progress))

    def findings(self, reason: str | None) -> nic_report.Findings | None:
        """Return the findings; None: not even the unshaped stage is finished."""
        return None if self._measured.unshaped is None else nic_report.report(self._asked, self._measured, reason)

    def _run_unshaped(self, progress: Progress) -> Stage:
        with self._stage(None, tuple(WAYS), ROUND_TRIP_KINDS.values(), progress) as stage:

            def octets_of(_way: Way, number: int) -> int:
                return min(WARM_UP_OCTETS, self._size_octets) if number < 1 else self._size_octets

            stage.contenders = {name: _through(stage, name, octets_of) for name in WAYS}
            for name, kind in ROUND_TRIP_KINDS.items():
                ping = functools.partial(_round_trips_us, stage.beds[kind], self._asked.round_trips)
                stage.pings[name] = Contender(f"round-trip times, {name}", ping)
            self._take_turns(stage, progress)
        return stage

    def _run_shaped(self, rate_bps: int, progress: Progress) -> Stage:
        asked = self._asked
        names = tuple(name for name in WAYS if name not in UNSHAPED_ONLY)
        with (
            self._stage(rate_bps, names, [PLAIN] if self._peers else [], progress) as stage,
            contextlib.ExitStack() as tunnels,
        ):

            def raw_octets(number: int) -> int:
                seconds = asked.seconds if number > 0 else min(WARM_UP_S, asked.seconds)
                return max(4, int(rate_bps / 8 * seconds) // 4 * 4)

            def octets_of(way: Way, number: int) -> int:
                return int(raw_octets(number) * (stage.payload.ratio if way.tagged else 1.0)) // 4 * 4

            stage.contenders = {name: _through(stage, name, octets_of) for name in names}
            for name in self._peers:
                progress(f"{format_rate(rate_bps)}: starting {name}")
                stage.contenders[name] = _through_peer(stage, name, raw_octets, tunnels)
            self._take_turns(stage, progress)
        return stage

    def _take_turns(self, stage: Stage, progress: Progress) -> None:
        text, repeat = _rate_text(stage.rate_bps), self._asked.repeat

        def on_turn(name: str, number: int) -> None:
            progress(f"{text}, round {number} of {repeat}: {name}")

        take_turns([*stage.contenders.values(), *stage.pings.values()], repeat, warm_ups=1, on_turn=on_turn)

    @contextlib.contextmanager
    def _stage(
        self, rate_bps: int | None, names: Sequence[str], kinds: Iterable[str], progress: Progress
    ) -> Iterator[Stage]:
        """Build the testbeds that the contenders need, one per kind; take them down afterwards."""
        asked, text = self._asked, _rate_text(rate_bps)
        with contextlib.ExitStack() as stack:
            beds = {}
            for kind in dict.fromkeys([*kinds, *(WAYS[name].kind for name in names)]):
                nic = None if kind == PLAIN else replace(self._nic, **NIC_KINDS[kind])
                plan = make_plan(TestbedSettings(2, rate_bps, asked.mtu, nic), new_run_id())
                bed = Testbed(plan, check_rate=rate_bps is not None, progress=lambda said: progress(f"{text}: {said}"))
                beds[kind] = stack.enter_context(bed)
            # In a testbed's own folder, which goes with the testbed even if this process is killed.
            folder = next(iter(beds.values())).make_scratch()
            payload = write_payload(self._values, get(self._nic.codec), self._nic.bound_k, folder)
            yield Stage(rate_bps, payload, beds)


def _rate_text(rate_bps: int | None) -> str:
    return "unshaped" if rate_bps is None else format_rate(rate_bps)


def _through(stage: Stage, name: str, octets_of: Callable[[Way, int], int]) -> Contender[StreamResult]:
    """Return a contender whose streams go one of :data:`WAYS`."""
    way = WAYS[name]
    bed = stage.beds[way.kind]

    def turn(number: int) -> StreamResult:
        return run_stream(bed, stage.payload, octets_of(way, number), tagged=way.tagged, carriers=nic_pids(bed))

    return Contender(name, turn)


def _round_trips_us(bed: Testbed, count: int, _number: int) -> list[float]:
    return round_trips_us(bed, count)


def _through_peer(
    stage: Stage, name: str, octets_of: Callable[[int], int], tunnels: contextlib.ExitStack
) -> Contender[StreamResult]:
    """Start a tunnel and return the contender whose streams go through it; the contender may fail."""
    peer, bed = vpn_peers.PEERS[name], stage.beds[PLAIN]
    failed, tunnel = vpn_peers.missing(peer), None
    if failed is None:
        try:
            tunnel = tunnels.enter_context(vpn_peers.tunnel(bed, peer))
        except NetOffloadError as error:
            failed = str(error)

    def turn(number: int) -> StreamResult:
        assert tunnel is not None  # else it has failed, and takes no turn
        octets, address, pids = octets_of(number), tunnel.address, tunnel.pids
        try:
            return run_stream(bed, stage.payload, octets, tagged=False, address=address, carriers=pids)
        except RunError as error:
            raise RunError(f"{error} ({tunnel.state()})") from error

    return Contender(name, turn, may_fail=True, failed=failed)
