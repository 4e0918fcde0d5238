"""One stream, or one ping-pong, between two nodes: started, checked, and accounted for.

::

    n0  send ── TCP ──► (NIC) ── wire ── bridge ── wire ── (NIC) ──► receive  n1
        │ "go"            │        │                                   │ every octet compared
        start_s        CPU time   octets, frames                    end_s

Goodput is payload over the time from the first octet sent to the last one received and found right. The programs
(``testbed.stream_end``) are up and connected before the counters are read, so that only the stream is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from netoffload.errors import RunError
from netoffload.lab.bench.cpu_time import machine_cpu_s, processes_cpu_s
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.journal import read_run
from netoffload.lab.testbed.stream import Payload
from netoffload.lab.testbed.stream_end import End
from netoffload.nic_options import NicSettings

PORT: Final = 49_778
READY_TIMEOUT_S: Final = 60.0
"""Time to start Python and NumPy on a busy machine, and for a tunnel to come up."""
STREAM_TIMEOUT_S: Final = 600.0
"""Time limit for a program that hangs; normally the programs end by themselves after half a minute of silence."""
RAW_SHARE_MAX: Final = 0.01
"""Largest share of floats of a tagged stream that may arrive uncompressed; with more, the stream is an error."""
SENDER, RECEIVER = 0, 1
"""The nodes' indices."""
SILENCE_S: Final = 30
CONGESTION_CONTROL: Final = "cubic"
"""Set on the sockets, because routes through a tunnel do not set it as the testbed's do."""


@dataclass(frozen=True)
class StreamResult:
    """One stream that arrived as it must.

    Attributes:
        seconds: from the first octet sent to the last one received.
        wire_octets: octets that the sender's wire carried, with every header.
        carrier_cpu_s: CPU time of the processes that carried the stream (NICs, or a tunnel's).
        machine_cpu_s: CPU time of the whole machine, other programs included.
        stolen_s: core time that a hypervisor gave to others meanwhile, although there was work.
        raw_floats: float32 of a tagged stream that crossed uncompressed.
    """

    octets: int
    seconds: float
    wire_octets: int
    wire_frames: int
    carrier_cpu_s: float
    machine_cpu_s: float
    stolen_s: float
    raw_floats: int

    @property
    def goodput_bps(self) -> float:
        """Payload bits per second."""
        return 8 * self.octets / self.seconds

    @property
    def ratio(self) -> float:
        """Payload octets over octets on the wire."""
        return self.octets / self.wire_octets


def nic_pids(bed: Testbed) -> list[int]:
    """Return the pids of a testbed's NIC processes."""
    record = read_run(bed.plan.state_dir)
    return [] if record is None else [process.pid for name, process in record.processes if name.startswith("nic ")]


def run_stream(
    bed: Testbed,
    payload: Payload,
    octets: int,
    *,
    tagged: bool,
    address: str | None = None,
    carriers: Sequence[int] = (),
) -> StreamResult:
    """Send a stream from n0 to n1 and check what arrives.

    Args:
        octets: length of the stream; a multiple of four.
        tagged: send with the NICs' ToS, and expect the codec's round trip.
        address: address of n1 in a tunnel; None: its address on the data network.
        carriers: pids of the processes that carry the stream.
    """
    nic = bed.plan.settings.nic or NicSettings()
    sends = {"sent": str(payload.sent), "octets": octets}
    marked: dict[str, Any] = {"port": nic.tagged_port(PORT) if tagged else PORT, "tos": nic.tos if tagged else 0}
    with (
        _end(bed, RECEIVER, receive=payload.judged(tagged=tagged), **marked) as receiver,
        _end(bed, SENDER, address, send=sends, **marked) as sender,
    ):
        wire, carrier_s, before_s = bed.wire_counters()[SENDER], processes_cpu_s(carriers), machine_cpu_s()
        sender.go()
        received = receiver.result(STREAM_TIMEOUT_S)
        carrier_s, after_s = processes_cpu_s(carriers) - carrier_s, machine_cpu_s()
        after = bed.wire_counters()[SENDER]
        start_s = sender.result(STREAM_TIMEOUT_S)["start_s"]
    if received["received_octets"] != octets:
        raise RunError(f"{received['received_octets']} of {octets} octets of a stream arrived")
    if received["wrong"] or received["tail_wrong"]:
        raise RunError(f"{received['wrong']} float32 arrived wrong")
    if received["exact"] > RAW_SHARE_MAX * octets / 4:
        raise RunError(f"{received['exact']} of {octets // 4} float32 of a tagged stream were not compressed")
    return StreamResult(
        octets=octets,
        seconds=received["end_s"] - start_s,
        wire_octets=after.tx_octets - wire.tx_octets,
        wire_frames=after.tx_frames - wire.tx_frames,
        carrier_cpu_s=carrier_s,
        machine_cpu_s=after_s[0] - before_s[0],
        stolen_s=after_s[1] - before_s[1],
        raw_floats=received["exact"],
    )


def round_trips_us(bed: Testbed, count: int) -> list[float]:
    """Return ``count`` round-trip times of one octet over TCP between n0 and n1, untagged, without Nagle's delay."""
    with (
        _end(bed, RECEIVER, pings=count, nodelay=True) as echo,
        _end(bed, SENDER, pings=count, nodelay=True) as pinger,
    ):
        pinger.go()
        times: list[float] = pinger.result(STREAM_TIMEOUT_S)["rtt_us"]
        echo.result(STREAM_TIMEOUT_S)
    return times


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one sample, interpolated linearly."""
    return float(np.percentile(np.asarray(samples), percent))


@contextlib.contextmanager
def _end(bed: Testbed, node_index: int, address: str | None = None, **options: Any) -> Iterator[End]:
    """Run an end that is ready: n1 listens everywhere, because a tunnel's address may not be there yet."""
    common = {"port": PORT, "tos": 0, "silence_s": SILENCE_S, "congestion_control": CONGESTION_CONTROL}
    connects = {"role": "connect", "address": address or bed.plan.nodes[RECEIVER].address, "waits": True}
    place = {"role": "listen", "address": ""} if node_index == RECEIVER else connects
    with bed.end(node_index, {**common, **place, **options}) as end:
        end.read(READY_TIMEOUT_S)
        yield end
