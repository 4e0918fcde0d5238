"""CommInfo: what calls did, as this rank and its NIC count it.

Only the NIC knows what became of the octets that a rank handed to its sockets. Its flow table has an entry per TCP
connection, so other traffic does not count. To ask it costs about half a millisecond. So a rank asks when its user
reads ``CompComm.totals``, and after every call only if ``per_call`` or ``require`` is set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from operator import sub
from typing import Any

from netoffload.config import ENV_CONTROL, Offload
from netoffload.control import request
from netoffload.errors import CollectiveError

SETTLE_ATTEMPTS = 20
SETTLE_S = 2e-3  # how often, and at what interval, to ask the NIC again while octets that were sent have not reached it

CLASS_COUNTERS = ("tx_class_0", "tx_class_8", "tx_class_16", "tx_class_32")


@dataclass(frozen=True)
class NicShare:
    """What this rank's NIC did with what it sent, on the connections of one communicator."""

    raw_octets: int = 0  # float32 octets that it compressed
    payload_octets: int = 0  # octets of the payloads that it made of them
    wire_octets: int = 0  # octets of the frames that carried them, headers included
    frames: int = 0  # number of these frames
    bypassed_segments: int = 0  # TCP segments that it passed on raw
    fallbacks: int = 0  # connections that went back to raw because their frames did not arrive
    class_floats: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Floats by the octets that each took (0, 1, 2, 4). They are the whole NIC's: a flow has no such count."""
    codec_s: float = 0.0  # seconds that the NIC spent compressing and decoding, for all flows

    @property
    def ratio(self) -> float:
        """float32 octets per octet on the wire; 1.0 if nothing was compressed."""
        return self.raw_octets / self.wire_octets if self.wire_octets else 1.0

    @property
    def class_shares(self) -> dict[str, float]:
        """Shares of floats that took 0, 8, 16 and 32 bits; empty if there were none."""
        total = sum(self.class_floats)
        names = ("0", "8", "16", "32")
        return {name: count / total for name, count in zip(names, self.class_floats, strict=True)} if total else {}

    def __sub__(self, other: NicShare) -> NicShare:
        """Return what was added since ``other``."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        since: list[Any] = [tuple(map(sub, a, b)) if isinstance(a, tuple) else a - b for a, b in pairs]
        return NicShare(*since)


@dataclass(slots=True)
class CommInfo:
    """What calls of one communicator did, seen from this rank.

    An existing one never changes. It is not frozen, because a frozen one takes 3 us to make, and every call makes two.
    """

    calls: int = 0  # number of calls
    raw_octets: int = 0
    """Octets that this rank handed to its sockets, before any compression. If data goes untagged (``Allreduce_ring``,
    short vectors, and what an aggregator sends down), they include the announcements of the calls' meetings, 128 octets
    each."""
    seconds: float = 0.0  # time in the calls
    wire_s: float = 0.0  # part of `seconds` in which the rank slept until data came or went
    reduce_s: float = 0.0  # part of `seconds` that the operation took, such as adding
    codec_s: float = 0.0  # part of `seconds` in this host's codec: rounding, and coding if the ranks code by themselves
    payload_octets: int = 0
    """``raw_octets`` after compression by this rank or its NIC; equal to them if neither compressed, or if the NIC was
    not asked."""
    offload: Offload | None = None  # who compresses what these calls send tagged; None: there were no calls
    nic: NicShare | None = None  # what the NIC did with the octets; None without a NIC, or if it was not asked
    nic_counters: Mapping[str, int] | None = None  # every counter of the NIC, other traffic included

    @property
    def ratio(self) -> float:
        """Raw octets per octet of payload; 1.0 if nothing was sent."""
        return self.raw_octets / self.payload_octets if self.payload_octets else 1.0

    def __add__(self, other: CommInfo) -> CommInfo:
        """Return the sum of both, without the NIC's part."""
        return CommInfo(
            self.calls + other.calls,
            self.raw_octets + other.raw_octets,
            self.seconds + other.seconds,
            self.wire_s + other.wire_s,
            self.reduce_s + other.reduce_s,
            self.codec_s + other.codec_s,
            self.payload_octets + other.payload_octets,
            self.offload or other.offload,
        )


Connection = tuple[int, tuple[str, int], tuple[str, int], int]
"""Peer, own (address, port), the peer's (address, port), octets sent."""


@dataclass
class NicAccount:
    """Asks this rank's NIC about one communicator's connections."""

    path: str | None  # the NIC's control socket; None: no NIC
    connections: Callable[[], Sequence[Connection]]  # returns the communicator's tagged connections
    _start: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_environment(cls, connections: Callable[[], Sequence[Connection]]) -> NicAccount:
        """Return an account that begins with the present counters of the NIC at ``$NETOFFLOAD_CONTROL``."""
        account = cls(os.environ.get(ENV_CONTROL) or None, connections)
        account._start = account._ask_counters()
        return account

    def read(self) -> tuple[NicShare, dict[str, int]] | None:
        """Return this communicator's share and all counters since set-up; None without a NIC."""
        if self.path is None:
            return None
        flows = [flow for _, flow in self._settled() if flow is not None]
        counters = {name: value - self._start.get(name, 0) for name, value in self._ask_counters().items()}
        classes = [counters[name] for name in CLASS_COUNTERS]
        share = NicShare(
            sum(flow["raw_octets"] for flow in flows),
            sum(flow["payload_octets"] for flow in flows),
            sum(flow["wire_octets"] for flow in flows),
            sum(flow["blocks"] for flow in flows),
            sum(flow["bypassed_segments"] for flow in flows),
            sum(bool(flow["on_probation"]) for flow in flows),
            (classes[0], classes[1], classes[2], classes[3]),
            (counters["tx_codec_ns"] + counters["rx_codec_ns"]) * 1e-9,
        )
        return share, counters

    def require_compression(self, aside_octets: int = 0) -> None:
        """Check that every tagged connection compressed what it carried; else raise an error with flow and reason.

        A segment may go raw if compression would not have made it smaller. ``aside_octets`` of tagged calls went
        untagged, because they were few. They need a connection that would have compressed them.
        """
        if self.path is None:
            if aside_octets or any(sent for *_, sent in self.connections()):
                raise CollectiveError(f"compression is required, but this rank has no NIC: set ${ENV_CONTROL}")
            return
        for (peer, own, other, sent), flow in self._settled():
            reason = None
            if flow is None:
                reason = "the NIC did not see its SYN: does it pass the NIC?" if sent or aside_octets else None
            elif flow["on_probation"]:
                reason = "it is on probation: compressed frames did not arrive"
            elif not flow["peer_decodes"]:
                reason = "the peer's NIC does not decode this codec, or there is none"
            elif sent and flow["promised_by"] in ("nobody", "no socket"):
                reason = "its NIC finds no socket that promises floats: see --socket-netns and --trust"
            elif sent and flow["verdict"] == "not floats":
                reason = "what it carries does not look like floats"
            if reason is not None:
                flow_name = f"{own[0]}:{own[1]} -> {other[0]}:{other[1]}"
                raise CollectiveError(f"compression is required, but flow {flow_name} to rank {peer} is raw: {reason}")

    def _settled(self) -> list[tuple[Connection, dict[str, Any] | None]]:
        """Return each connection with its entry in the NIC's flow table; None if it has no entry."""
        assert self.path is not None
        for _ in range(SETTLE_ATTEMPTS):
            connections = self.connections()
            flows = {
                (flow["src"], flow["sport"], flow["dst"], flow["dport"]): flow
                for flow in request(self.path, "flows")["flows"]
                if flow["direction"] == "tx"
            }
            rows = [(one, flows.get((*one[1], *one[2]))) for one in connections]
            # An entry counts segments that passed raw, but not their octets.
            if all(
                not one[3] or (flow and (flow["raw_octets"] >= one[3] or flow["bypassed_segments"]))
                for one, flow in rows
            ):
                break
            time.sleep(SETTLE_S)
        return rows

    def _ask_counters(self) -> dict[str, int]:
        return {} if self.path is None else dict(request(self.path, "counters")["counters"])


def with_nic(info: CommInfo, reading: tuple[NicShare, dict[str, int]] | None, before: NicShare | None) -> CommInfo:
    """Return ``info`` with what the NIC did, since ``before`` if that is given."""
    if reading is None:
        return info
    share, counters = reading
    share = share if before is None else share - before
    payload_octets = info.raw_octets - (share.raw_octets - share.payload_octets)
    return replace(info, payload_octets=payload_octets, nic=share, nic_counters=counters)
