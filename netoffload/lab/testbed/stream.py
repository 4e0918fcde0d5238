"""A tagged stream from one node to another, of which every value is compared with the codec's round trip.

Both ends draw the same values from the same seed, so nothing has to be kept. The receiver compares what it reads with
:meth:`Codec.round_trip` of the sent values, bit for bit, a chunk at a time. :func:`stream` starts the two ends on n0
and n1; each end is this module run as a program (``python -m netoffload.lab.testbed.stream``).
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from netoffload import control
from netoffload.codec import Codec, get
from netoffload.errors import TestbedError
from netoffload.lab.testbed.build import Testbed
from netoffload.lab.testbed.forks import interpreter_argv
from netoffload.nic_options import NicSettings

IMPORTS: Final = ("netoffload.codec", "netoffload.lab.testbed")
"""What a server of forks must have imported for the two ends to be forks of it."""
PORT: Final = 5028
CHUNK_VALUES: Final = 1 << 20
SIGMA: Final = 2e-3
"""Standard deviation of the values, about that of the papers' gradients."""
SILENCE_S: Final = 60.0
"""Seconds without an octet after which the connection counts as dead."""


@dataclass(frozen=True)
class StreamResult:
    """What arrived.

    Attributes:
        values: number of float32 received.
        raw: number of values that arrived as sent although the codec would change them; the NIC had not yet judged
            that the flow is float32.
        wrong: number of values that are neither the codec's round trip nor what was sent.
        elapsed_s: from the first octet to the last.
    """

    values: int
    raw: int
    wrong: int
    elapsed_s: float


def stream(
    bed: Testbed, octets: int, seed: int = 1, on_progress: Callable[[int], None] = lambda _octets: None
) -> StreamResult:
    """Send ``octets`` octets of float32 from n0 to n1 on a tagged connection and compare every value.

    Args:
        bed: a testbed with NICs.
        octets: length of the stream; rounded down to whole values.
        seed: decides the values.
        on_progress: called with the octets received so far.

    Raises:
        TestbedError: an end failed, or the stream stood still for :data:`SILENCE_S`.
    """
    plain = bed.plan.settings.nic is None
    nic = bed.plan.settings.nic or NicSettings()
    codec, bound_k = ("none", 1) if plain else (nic.codec, nic.bound_k)
    command = [*interpreter_argv(IMPORTS), "-m", __name__]
    arguments = [bed.plan.nodes[1].address, str(nic.tagged_port(PORT)), str(nic.tos)]
    arguments += [str(octets // 4), str(seed), codec, str(bound_k)]
    with contextlib.ExitStack() as stack:
        receiver = bed.popen(
            1, [*command, "receive", *arguments], start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        stack.callback(_end, receiver)
        sender = None
        for line in receiver.stdout or ():
            said = json.loads(line)
            if "listening" in said:
                sender = bed.popen(0, [*command, "send", *arguments], start_new_session=True)
                stack.callback(_end, sender)
            elif "octets" in said:
                on_progress(said["octets"])
            else:
                return StreamResult(**said)
        raise TestbedError("the stream did not arrive: see what its two ends said above")


def nic_counters(bed: Testbed) -> dict[str, int]:
    """Return the counters of n0's and n1's NICs, added up.

    Raises:
        ControlError: a NIC does not answer.
    """
    paths = [node.control_path for node in bed.plan.nodes[:2]]
    each = [control.request(path, "counters")["counters"] for path in paths if path is not None]
    return {name: sum(counters[name] for counters in each) for name in each[0]} if each else {}


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def chunks(values: int, seed: int) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Yield the stream's values, float32, at most :data:`CHUNK_VALUES` at a time."""
    random = np.random.default_rng(seed)
    for first in range(0, values, CHUNK_VALUES):
        yield random.standard_normal(min(CHUNK_VALUES, values - first), np.float32) * np.float32(SIGMA)


def _send(address: tuple[str, int], tos: int, values: int, seed: int) -> None:
    with socket.socket() as conn:
        conn.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        conn.settimeout(SILENCE_S)
        conn.connect(address)
        for chunk in chunks(values, seed):
            conn.sendall(chunk.data)
        conn.shutdown(socket.SHUT_WR)
        conn.recv(1)  # waits until the receiver has everything


def _receive(address: tuple[str, int], tos: int, values: int, seed: int, codec: Codec, bound_k: int) -> StreamResult:
    got = raw = wrong = 0
    with socket.create_server(address) as listener:
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        _say(listening=True)
        listener.settimeout(SILENCE_S)
        conn, _ = listener.accept()
    started = time.monotonic()
    with conn:
        conn.settimeout(SILENCE_S)
        for sent in chunks(values, seed):
            arrived = np.empty_like(sent)
            _fill(conn, arrived.view(np.uint8).data)
            bits, wanted = arrived.view(np.uint32), codec.round_trip(sent, bound_k).view(np.uint32)
            differs = bits != wanted
            same_as_sent = differs & (bits == sent.view(np.uint32))
            raw += int(same_as_sent.sum())
            wrong += int(differs.sum() - same_as_sent.sum())
            got += sent.size
            _say(octets=4 * got)
        elapsed_s = time.monotonic() - started
        if conn.recv(1):
            raise TestbedError("the stream is longer than what was sent")
    return StreamResult(values=got, raw=raw, wrong=wrong, elapsed_s=elapsed_s)


def _fill(conn: socket.socket, room: memoryview) -> None:
    while room:
        count = conn.recv_into(room)
        if count == 0:
            raise TestbedError(f"the stream ended {len(room)} octets early")
        room = room[count:]


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def main(role: str, address: str, port: str, tos: str, values: str, seed: str, codec: str, bound_k: str) -> None:
    """Be one end of the stream."""
    place = address, int(port)
    if role == "send":
        _send(place, int(tos), int(values), int(seed))
    else:
        _say(**asdict(_receive(place, int(tos), int(values), int(seed), get(codec), int(bound_k))))


if __name__ == "__main__":
    main(*sys.argv[1:])
