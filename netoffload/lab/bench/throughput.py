"""One stream, or one ping-pong, between two nodes: started, checked, and accounted for.

::

    n0  send ── TCP ──► (NIC) ── wire ── bridge ── wire ── (NIC) ──► receive  n1
        │ "go"            │        │                                   │ every octet compared
        start_s        CPU time   octets, frames                    end_s

Goodput is payload over the time from the first octet sent to the last one received and found right. The programs
(``endpoint``) are up and connected before the counters are read, so that only the stream is counted.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from netoffload.errors import RunError
from netoffload.lab.bench.cpu_time import machine_cpu_s, processes_cpu_s
from netoffload.lab.testbed.journal import read_run
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.codec import Codec
    from netoffload.compiled.arrays import Float32Array
    from netoffload.lab.testbed.build import Testbed

PORT: Final = 49_778
READY_TIMEOUT_S: Final = 60.0
"""Time to start Python and NumPy on a busy machine, and for a tunnel to come up."""
STREAM_TIMEOUT_S: Final = 600.0
"""Time limit for a program that hangs; normally the programs end by themselves after half a minute of silence."""
RAW_SHARE_MAX: Final = 0.01
"""Largest share of floats of a tagged stream that may arrive uncompressed; with more, the stream is an error."""
SENDER, RECEIVER = 0, 1
"""The nodes' indices."""

_ENDPOINT = Path(__file__).with_name("endpoint.py")


@dataclass(frozen=True)
class Payload:
    """What streams carry: one block of float32, sent over and over.

    Attributes:
        block_octets: length of the block.
        ratio: octets of the block over octets of the codec's payload.
        sent: file with the block.
        rounded: file with the codec's round trip of the block.
    """

    block_octets: int
    ratio: float
    sent: Path
    rounded: Path


def write_payload(values: Float32Array, codec: Codec, bound_k: int, folder: Path) -> Payload:
    """Write a block and the codec's round trip of it into ``folder``.

    Args:
        values: float32[n], n > 0.
        codec: codec of the NICs.
        bound_k: error bound 2^-bound_k of the codec.
        folder: an existing folder.
    """
    sent, rounded = folder / "sent.bin", folder / "rounded.bin"
    sent.write_bytes(values.tobytes())
    rounded.write_bytes(codec.round_trip(values, bound_k).tobytes())
    return Payload(values.nbytes, values.nbytes / codec.encode(values, bound_k).size, sent, rounded)


@dataclass(frozen=True)
class StreamResult:
    """One stream that arrived as it must.

    Attributes:
        octets: octets of payload.
        seconds: from the first octet sent to the last one received.
        wire_octets: octets that the sender's wire carried, with every header.
        wire_frames: frames that the sender's wire carried.
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
        bed: a running testbed of at least two nodes.
        payload: what to send.
        octets: length of the stream; a multiple of four.
        tagged: send with the NICs' ToS, and expect the codec's round trip.
        address: address of n1 in a tunnel; None: its address on the data network.
        carriers: pids of the processes that carry the stream.

    Raises:
        RunError: the stream did not arrive, arrived wrong, or was tagged and arrived uncompressed.
    """
    address = address or bed.plan.nodes[RECEIVER].address
    nic = bed.plan.settings.nic or NicSettings()
    port = nic.tagged_port(PORT) if tagged else PORT
    common = [str(port), str(nic.tos if tagged else 0), str(octets), str(payload.sent)]
    expected = payload.rounded if tagged else payload.sent
    with (
        _program(bed, RECEIVER, ["receive", *common, str(expected)]) as receiver,
        _program(bed, SENDER, ["send", address, *common]) as sender,
    ):
        wire, carrier_s, before_s = bed.wire_counters()[SENDER], processes_cpu_s(carriers), machine_cpu_s()
        sender.go()
        received = receiver.read(STREAM_TIMEOUT_S)
        carrier_s, after_s = processes_cpu_s(carriers) - carrier_s, machine_cpu_s()
        after = bed.wire_counters()[SENDER]
        start_s = sender.read(STREAM_TIMEOUT_S)["start_s"]
    if received["raw_floats"] > RAW_SHARE_MAX * octets / 4:
        raise RunError(f"{received['raw_floats']} of {octets // 4} float32 of a tagged stream were not compressed")
    return StreamResult(
        octets=octets,
        seconds=received["end_s"] - start_s,
        wire_octets=after.tx_octets - wire.tx_octets,
        wire_frames=after.tx_frames - wire.tx_frames,
        carrier_cpu_s=carrier_s,
        machine_cpu_s=after_s[0] - before_s[0],
        stolen_s=after_s[1] - before_s[1],
        raw_floats=received["raw_floats"],
    )


def round_trips_us(bed: Testbed, count: int) -> list[float]:
    """Return ``count`` round-trip times of one octet over TCP between n0 and n1, untagged, without Nagle's delay.

    Raises:
        RunError: the programs cannot connect.
    """
    common = [str(PORT), str(count)]
    address = bed.plan.nodes[RECEIVER].address
    with _program(bed, RECEIVER, ["echo", *common]), _program(bed, SENDER, ["ping", address, *common]) as pinger:
        pinger.go()
        times: list[float] = pinger.read(STREAM_TIMEOUT_S)["rtt_us"]
    return times


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one sample, interpolated linearly."""
    return float(np.percentile(np.asarray(samples), percent))


class _Endpoint:
    """A running endpoint program."""

    def __init__(self, process: subprocess.Popen[bytes], role: str) -> None:
        self.process = process
        self._role = role

    def read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next line of the program.

        Raises:
            RunError: the program ended or is silent.
        """
        assert self.process.stdout is not None
        # The pipe is unbuffered and the program writes one line at a time, so select() sees every line.
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise RunError(f"the {self._role} program was silent for {timeout_s:.0f} s")
        line = self.process.stdout.readline()
        if line:
            said: dict[str, Any] = json.loads(line)
            return said
        assert self.process.stderr is not None
        words = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        raise RunError(words[-1] if words else f"the {self._role} program ended without a result")

    def go(self) -> None:
        """Let a sender start."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: read() will say why
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()


@contextlib.contextmanager
def _program(bed: Testbed, node_index: int, words: list[str]) -> Iterator[_Endpoint]:
    """Start an endpoint program, wait until it is ready, and end it in any case."""
    pipe = subprocess.PIPE
    argv = [sys.executable, "-I", str(_ENDPOINT), *words]
    process = bed.popen(node_index, argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0)
    with process:
        try:
            endpoint = _Endpoint(process, words[0])
            endpoint.read(READY_TIMEOUT_S)
            yield endpoint
        finally:
            process.kill()
