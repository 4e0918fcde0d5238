"""A tagged stream from n0 to n1, of which every value is compared with the codec's round trip (``stream_end``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from netoffload import control
from netoffload.codec import Codec, get
from netoffload.errors import RunError
from netoffload.lab.testbed.build import Testbed
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.compiled.arrays import Float32Array

PORT: Final = 5028
BLOCK_VALUES: Final = 1 << 22
"""Values that a stream repeats."""
SIGMA: Final = 2e-3
"""Standard deviation of the values, about that of the papers' gradients."""
SILENCE_S: Final = 60
"""Seconds without an octet after which the connection counts as dead."""
HANG_S: Final = 600.0
"""Time limit for an end that says nothing; one that runs speaks five times a second."""


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
    """What arrived.

    Attributes:
        raw: number of values that arrived as sent although the codec would change them; the NIC had not yet judged
            that the flow is float32.
        elapsed_s: from the open connection to the stream's end.
    """

    values: int
    raw: int
    wrong: int
    elapsed_s: float


def stream(
    bed: Testbed, octets: int, seed: int = 1, on_progress: Callable[[int], None] = lambda _octets: None
) -> StreamResult:
    """Send ``octets`` octets of float32 (whole values) from n0 to n1 on a tagged connection and compare every value.

    Args:
        bed: a testbed; without NICs the values must arrive exact.
        octets: length of the stream; rounded down to whole values.
        on_progress: called with the octets received so far, first when both ends run.
    """
    octets = octets // 4 * 4
    nic = bed.plan.settings.nic or NicSettings()
    codec, bound_k = (get("none"), 1) if bed.plan.settings.nic is None else (get(nic.codec), nic.bound_k)
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(max(min(octets // 4, BLOCK_VALUES), 1), np.float32) * np.float32(SIGMA)
    payload = write_payload(values, codec, bound_k, bed.make_scratch())
    common: dict[str, Any] = {"address": bed.plan.nodes[1].address, "port": nic.tagged_port(PORT), "tos": nic.tos}
    common["silence_s"] = SILENCE_S
    listens = {**common, "role": "listen", "receive": payload.judged()}
    connects = {**common, "role": "connect", "send": {"sent": str(payload.sent), "octets": octets}}
    with bed.end(1, listens) as receiver:
        receiver.read(HANG_S)
        with bed.end(0, connects):
            on_progress(0)
            found = receiver.result(HANG_S, lambda said: on_progress(said[1]))
    on_progress(found["received_octets"])
    if found["received_octets"] != octets:
        raise RunError(f"{found['received_octets']} of {octets} octets of the stream arrived")
    return StreamResult(found["values"], found["exact"], found["wrong"], found["elapsed_s"])


def nic_counters(bed: Testbed) -> dict[str, int]:
    """Return the counters of n0's and n1's NICs, added up."""
    paths = [node.control_path for node in bed.plan.nodes[:2]]
    each = [control.request(path, "counters")["counters"] for path in paths if path is not None]
    return {name: sum(counters[name] for counters in each) for name in each[0]} if each else {}
