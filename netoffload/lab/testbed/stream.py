"""A stream, or a ping-pong, between n0 and n1: started, compared value by value, and accounted for.

::

    n0  send ── TCP ──► (NIC) ── wire ── bridge ── wire ── (NIC) ──► receive  n1
        │ "go"            │        │                                   │ every octet compared
        start_s        CPU time   octets, frames                    end_s

The programs (``stream_end``) are up and connected before the counters are read, so that only the stream is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from netoffload import control
from netoffload.codec import Codec, get
from netoffload.errors import RunError
from netoffload.lab.testbed.build import CONGESTION_CONTROL, Testbed
from netoffload.lab.testbed.processes import machine_cpu_s, processes_cpu_s
from netoffload.lab.testbed.stream_end import End
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array

PORT: Final = 5028
BLOCK_VALUES: Final = 1 << 22
"""Values that a stream repeats."""
SIGMA: Final = 2e-3
"""Standard deviation of the values, about that of the papers' gradients."""
READY_TIMEOUT_S: Final = 60.0
"""Time to start Python and NumPy on a busy machine, and for a tunnel to come up."""
SILENCE_S: Final = 60
"""Seconds without an octet after which the connection counts as dead."""
HANG_S: Final = 600.0
"""Time limit for an end that says nothing; one that runs speaks five times a second."""
SENDER, RECEIVER = 0, 1
"""The nodes' indices."""


@dataclass(frozen=True)
class Payload:
    """What streams carry: one block of float32, sent over and over, and the file of the codec's round trip of it.

    ``ratio`` is the block's octets over those of the codec's payload.
    """

    block_octets: int
    ratio: float
    sent: Path
    rounded: Path

    def judged(self, *, tagged: bool = True) -> dict[str, str]:
        """Return the options of an end that receives the block, through NICs if tagged."""
        return {"sent": str(self.sent), "rounded": str(self.rounded if tagged else self.sent)}


def write_payload(values: Float32Array, codec: Codec, bound_k: int, folder: Path) -> Payload:
    """Write a block, float32[n] with n > 0, and the codec's round trip of it into an existing folder."""
    sent, rounded = folder / "sent.bin", folder / "rounded.bin"
    sent.write_bytes(values.tobytes())
    rounded.write_bytes(codec.round_trip(values, bound_k).tobytes())
    return Payload(values.nbytes, values.nbytes / codec.encode(values, bound_k).size, sent, rounded)


@dataclass(frozen=True)
class StreamResult:
    """One stream of which every octet arrived.

    Attributes:
        seconds: from the first octet sent to the last one received.
        raw: number of values that arrived as sent although the codec would change them.
        wire_octets: octets that the sender's wire carried, with every header.
        carrier_cpu_s: CPU time of the processes that carried the stream (NICs, or a tunnel's).
        machine_cpu_s: CPU time of the whole machine, other programs included.
        stolen_s: core time that a hypervisor gave to others meanwhile, although there was work.
    """

    octets: int
    seconds: float
    raw: int
    wrong: int
    wire_octets: int
    wire_frames: int
    carrier_cpu_s: float
    machine_cpu_s: float
    stolen_s: float

    @property
    def values(self) -> int:
        """Number of float32."""
        return self.octets // 4

    @property
    def goodput_bps(self) -> float:
        """Payload bits per second."""
        return 8 * self.octets / max(self.seconds, 1e-9)


def stream(
    bed: Testbed, octets: int, seed: int = 1, on_progress: Callable[[int], None] = lambda _octets: None
) -> StreamResult:
    """Send random gradients as :func:`run_stream` does, tagged; without NICs the values must arrive exact."""
    octets = octets // 4 * 4
    nic = bed.plan.settings.nic
    codec, bound_k = (get("none"), 1) if nic is None else (get(nic.codec), nic.bound_k)
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(max(min(octets // 4, BLOCK_VALUES), 1), np.float32) * np.float32(SIGMA)
    payload = write_payload(values, codec, bound_k, bed.make_scratch())
    return run_stream(bed, payload, octets, tagged=True, on_progress=on_progress)


def run_stream(
    bed: Testbed,
    payload: Payload,
    octets: int,
    *,
    tagged: bool,
    address: str | None = None,
    carriers: Sequence[int] = (),
    on_progress: Callable[[int], None] = lambda _octets: None,
) -> StreamResult:
    """Send a stream from n0 to n1 and compare every value that arrives.

    Args:
        octets: length of the stream; a multiple of four.
        tagged: send with the NICs' ToS, and expect the codec's round trip.
        address: address of n1 in a tunnel; None: its address on the data network.
        carriers: pids of the processes that carry the stream.
        on_progress: called with the octets received so far, first when both ends run.
    """
    nic = bed.plan.settings.nic or NicSettings()
    sends = {"sent": str(payload.sent), "octets": octets}
    marked: dict[str, Any] = {"port": nic.tagged_port(PORT) if tagged else PORT, "tos": nic.tos if tagged else 0}
    with (
        _end(bed, RECEIVER, receive=payload.judged(tagged=tagged), **marked) as receiver,
        _end(bed, SENDER, address, send=sends, **marked) as sender,
    ):
        on_progress(0)
        before, carrier_s, machine_s = bed.wire_counters()[SENDER], processes_cpu_s(carriers), machine_cpu_s()
        sender.go()
        received = receiver.result(HANG_S, lambda said: on_progress(said[1]))
        carrier_s, ended_s = processes_cpu_s(carriers) - carrier_s, machine_cpu_s()
        after = bed.wire_counters()[SENDER]
        start_s = sender.result(HANG_S)["start_s"]
    on_progress(received["received_octets"])
    if received["received_octets"] != octets:
        raise RunError(f"{received['received_octets']} of {octets} octets of the stream arrived")
    return StreamResult(
        octets=octets,
        seconds=received["end_s"] - start_s,
        raw=received["exact"],
        wrong=received["wrong"],
        wire_octets=after.tx_octets - before.tx_octets,
        wire_frames=after.tx_frames - before.tx_frames,
        carrier_cpu_s=carrier_s,
        machine_cpu_s=ended_s[0] - machine_s[0],
        stolen_s=ended_s[1] - machine_s[1],
    )


def round_trips_us(bed: Testbed, count: int) -> list[float]:
    """Return ``count`` round-trip times of one octet over TCP between n0 and n1, untagged, without Nagle's delay."""
    with (
        _end(bed, RECEIVER, pings=count, nodelay=True) as echo,
        _end(bed, SENDER, pings=count, nodelay=True) as pinger,
    ):
        pinger.go()
        times: list[float] = pinger.result(HANG_S)["rtt_us"]
        echo.result(HANG_S)
    return times


@contextlib.contextmanager
def _end(bed: Testbed, node_index: int, address: str | None = None, **options: Any) -> Iterator[End]:
    """Run an end that is ready: n1 listens everywhere, because a tunnel's address may not be there yet."""
    # Routes through a tunnel do not set the congestion control as the testbed's do.
    common = {"port": PORT, "tos": 0, "silence_s": SILENCE_S, "congestion_control": CONGESTION_CONTROL}
    connects = {"role": "connect", "address": address or bed.plan.nodes[RECEIVER].address, "waits": True}
    role = {"role": "listen", "address": ""} if node_index == RECEIVER else connects
    with bed.end(node_index, {**common, **role, **options}) as end:
        end.read(READY_TIMEOUT_S)
        yield end


def nic_counters(bed: Testbed) -> dict[str, int]:
    """Return the counters of n0's and n1's NICs, added up."""
    paths = [node.control_path for node in bed.plan.nodes[:2]]
    each = [control.request(path, "counters")["counters"] for path in paths if path is not None]
    return {name: sum(counters[name] for counters in each) for name in each[0]} if each else {}
