"""A soak: several flows, a disturbance in each round, and every value judged.

A round is one event, then a wait until every flow that was alive has made progress. Flows end when their octets are
sent, and others with other options begin. One seed decides everything but times. So a seed repeats events and flows,
but not their interleaving.
"""

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from netoffload.lab.testbed.build import Testbed
from tests.soak.damage import Damage, damaged_switch, nft_path
from tests.soak.events import Events, add_ipv6
from tests.soak.flows import Flow, Found, wait_for_any
from tests.soak.options import Values, draw_options

FLOWS: Final = 6
"""Number of flows at a time."""
STUCK_S: Final = 60.0
"""Seconds without progress over a whole path after which a flow is stuck."""
ROUND_S: Final = 1.5
"""Least time of a round after its event."""
FIRST_PORT: Final = 20_000
SLICE_S: Final = 0.25
EXAMPLES_MAX: Final = 10


@dataclass
class SoakResult:
    """What a soak found.

    Of ``flows``, connections that ended, each direction counts. A ``wrong`` value is neither the sent one nor the
    codec's round trip; odd octets at a stream's end that differ count as one, and in an untagged stream rounded values
    are wrong too. ``exact`` values arrived as sent although the codec changes them; ``exact_after_begun`` those behind
    the first rounded one, in streams of whole floats. A ``stuck`` flow made no progress for a minute over a path that
    works, and a ``broken`` one ended with an error, or with fewer octets than were sent. ``compressed_share`` is of
    octets that writers sent with a tag; what TCP sends again counts again. ``missing`` has a line for each thing that
    this machine cannot do.
    """

    seed: int
    codec: str
    bound_k: int
    rounds: int = 0
    flows: int = 0
    values: int = 0
    wrong: int = 0
    rounded: int = 0
    exact: int = 0
    exact_after_begun: int = 0
    torn_flows: int = 0
    stuck: int = 0
    broken: int = 0
    compressed_share: float = 0.0
    sent_octets: int = 0
    events: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not (self.wrong or self.stuck or self.broken)


Told = Callable[[int, str], None]
"""Called with the rounds done and a phrase about the last event."""


class Soak:
    """Rounds over a testbed of two nodes with NICs; ``result`` holds the findings of the rounds that have ended."""

    def __init__(self, bed: Testbed, seed: int, on_round: Told = lambda _done, _said: None) -> None:
        """Take a running testbed of two nodes; every event ends with ``on_round``."""
        nic = bed.plan.settings.nic
        assert nic is not None
        self.result = SoakResult(seed, nic.codec, nic.bound_k)
        self._bed, self._on_round = bed, on_round
        self._draw = random.Random(seed)
        self._ports = itertools.count(FIRST_PORT)
        self._flows: list[Flow] = []

    def run(self, rounds: int, flows: int = FLOWS) -> SoakResult:
        """Let ``rounds`` events disturb ``flows`` flows at a time, and return the findings."""
        bed, result = self._bed, self.result
        with contextlib.ExitStack() as stack:
            values = Values(bed.make_scratch(), result.codec, result.bound_k, result.seed)
            has_ipv6 = add_ipv6(bed)
            switch = None
            if nft_path() is not None:
                switch = stack.enter_context(damaged_switch(bed.plan, result.seed))
            events = Events(bed, switch, self._draw, self._attend)
            result.missing += events.missing + ([] if has_ipv6 else ["this kernel has no IPv6"])
            for _ in range(rounds):
                while len(self._flows) < flows:
                    options = draw_options(self._draw, ipv6=has_ipv6)
                    self._flows.append(stack.enter_context(Flow(bed, options, values, next(self._ports))))
                self._attend(0)
                kind, said = events.next()
                result.events[kind] += 1
                result.rounds += 1
                self._recover()
                self._read(events)
                self._on_round(result.rounds, f"{kind} {said}")
            if switch is not None:
                switch.set_damage(Damage())
            self._finish()
            self._read(events)
        return result

    def _attend(self, seconds: float) -> None:
        """Read the flows' lines for this long."""
        deadline = time.monotonic() + seconds
        while True:
            wait_for_any(self._flows, min(deadline - time.monotonic(), SLICE_S))
            self._reap()
            if time.monotonic() >= deadline:
                return

    def _recover(self) -> None:
        """Wait until every flow has made progress since this call; flows that have not within a minute are stuck."""
        whole_s = time.monotonic()
        self._attend(ROUND_S)
        while waiting := [flow for flow in self._flows if flow.moved_s < whole_s]:
            if time.monotonic() - whole_s > STUCK_S:
                for flow in waiting:
                    self.result.stuck += 1
                    self._end(flow, "stuck")
                return
            self._attend(SLICE_S)

    def _finish(self) -> None:
        for flow in self._flows:
            flow.stop()
        while self._flows:
            for flow in [flow for flow in self._flows if time.monotonic() - flow.moved_s > STUCK_S]:
                self.result.stuck += 1
                self._end(flow, "stuck at its end")
            self._attend(SLICE_S)

    def _reap(self) -> None:
        for flow in [flow for flow in self._flows if flow.is_done]:
            self._end(flow, flow.error)

    def _end(self, flow: Flow, trouble: str | None) -> None:
        """Add a flow's findings to the result, and end its programs."""
        self._flows.remove(flow)
        flow.read()
        with flow:
            found = flow.found()
        result = self.result
        short = sum(each.received_octets != each.sent_octets for each in found)
        if trouble is not None and "stuck" not in trouble:
            result.broken += 1
        elif trouble is None and short:
            result.broken += 1
            trouble = f"{short} of its directions arrived short or long"
        for each in found:
            self._count(each, is_tagged=flow.options.tos != 0)
        wrong = max(sum(_wrong(each, flow.options.tos != 0) for each in found), flow.wrong)
        result.wrong += wrong
        if wrong:
            result.torn_flows += 1
        if (wrong or trouble) and len(result.examples) < EXAMPLES_MAX:
            seen = [example for each in found for example in each.examples][:3]
            result.examples.append(f"{trouble or f'{wrong} wrong values'}: {seen} {flow.told()}")

    def _count(self, found: Found, is_tagged: bool) -> None:
        result = self.result
        if not found.sent_octets:
            return
        result.flows += 1
        result.values += found.values
        if not is_tagged:
            return
        result.rounded += found.rounded
        result.exact += found.exact
        result.exact_after_begun += found.exact_after_begun if found.options.is_whole else 0
        result.sent_octets += found.sent_octets

    def _read(self, events: Events) -> None:
        self.result.counters = events.counters()
        sent_octets = self.result.sent_octets + sum(flow.sent_octets for flow in self._flows if flow.options.tos)
        self.result.compressed_share = self.result.counters.get("tx_raw_octets", 0) / max(sent_octets, 1)


def _wrong(found: Found, is_tagged: bool) -> int:
    """Return how many values are wrong: neither as sent nor, in a tagged stream, the codec's round trip."""
    return found.wrong + found.tail_wrong + (0 if is_tagged else found.rounded)
