"""Every frame that crosses a side of the NIC, as a pcapng file (draft-ietf-opsawg-pcapng), without holding up the loop.

The loop writes complete Enhanced Packet Blocks into a ring of words; a Python thread copies the ring to the file. If
the ring has no room for a frame, the frame is counted (``TRACE_MISSED``) and not written: a slow disk costs frames in
the trace, never throughput. If the file takes no more octets, it ends behind its last whole block, with a line on
stderr; later frames count as missed. Each direction has its own ring, with one writer and one reader. So the file has
blocks of one direction after blocks of the other, each with its time in nanoseconds (``reordercap`` sorts them).

The virtio-net header is left out, and a GSO frame is written whole: on the host's side up to 64 KiB of one segment.
Checksums that are left to the interface are not filled in, as in every capture on a machine with offloads.
"""

import contextlib
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self

import numpy as np

from netoffload import log
from netoffload.compiled import syscalls
from netoffload.compiled.arrays import Int64Array, Uint32Array
from netoffload.compiled.jit import kernel
from netoffload.engine.counters import Counter
from netoffload.errors import DeviceError
from netoffload.wire import vnet

SIDES: Final = {"host": 1, "wire": 2, "both": 3}
HOST_SIDE: Final = 1
WIRE_SIDE: Final = 2

RING_WORDS: Final = 1 << 23
"""32 MiB: 27 ms at 10 Gb/s, three times as long as the file's thread sleeps. Unused pages take no memory."""
DRAIN_INTERVAL_S: Final = 0.01
SNAP_LEN_OCTETS: Final = 256 * 1024

INBOUND: Final = 1
"""epb_flags: the NIC read this frame."""
OUTBOUND: Final = 2
"""epb_flags: the NIC wrote this frame."""

_EPB_TYPE: Final = 6
_EPB_HEAD_WORDS: Final = 7
_EPB_WORDS: Final = _EPB_HEAD_WORDS + 3 + 1
"""Words of a block around the frame: head, the option epb_flags with its end, the length again."""
_OPTION_FLAGS: Final = 4 << 16 | 2
_LINKTYPE_ETHERNET: Final = 1
_MAGIC: Final = 0x1A2B3C4D
_NANOSECONDS: Final = 9

# Fields of a ring's state; the loop writes _HEAD, _TAKEN and _REFUSED, the file's thread the others.
_HEAD: Final = 0
_TAKEN: Final = 1
_REFUSED: Final = 2
_TAIL: Final = 3
_LOST: Final = 4
_CLOSED: Final = 5
_STATE_FIELDS: Final = 6


class TraceRing(NamedTuple):
    """Blocks on their way to the file.

    Attributes:
        words: uint32[n]; word i of the stream is ``words[i % n]``.
        state: int64[6]: words written, frames taken, frames refused; words copied to the file, frames taken that are
            not in the file, 1 if the file takes no more. Two threads write, so these are not in the NIC's counters.
    """

    words: Uint32Array
    state: Int64Array


def make_ring(words: int = RING_WORDS) -> TraceRing:
    """Return an empty ring."""
    return TraceRing(np.zeros(words, np.uint32), np.zeros(_STATE_FIELDS, np.int64))


@kernel
def record(ring: TraceRing, interface: int, way: int, address: int, length: int, time_ns: int) -> None:
    """Write one frame into the ring, or count that there was no room.

    ``interface`` is 0 for the host's side and 1 for the wire's. A virtio-net header stands before the frame.
    """
    words, size = ring.words, ring.words.size
    octets = length - vnet.VNET_LEN
    data_words = (octets + 3) // 4
    head = ring.state[_HEAD]
    if octets < 0 or ring.state[_CLOSED] or head - ring.state[_TAIL] + _EPB_WORDS + data_words > size:
        ring.state[_REFUSED] += 1
        return
    block_len = 4 * (_EPB_WORDS + data_words)
    words[head % size] = _EPB_TYPE
    words[(head + 1) % size] = block_len
    words[(head + 2) % size] = interface
    words[(head + 3) % size] = time_ns >> 32
    words[(head + 4) % size] = time_ns & 0xFFFFFFFF
    words[(head + 5) % size] = octets
    words[(head + 6) % size] = octets
    at = head + _EPB_HEAD_WORDS
    words[(at + data_words - 1) % size] = 0  # pads the frame to whole words
    first = min(octets, 4 * (size - at % size))
    syscalls.memcpy(words.ctypes.data + 4 * (at % size), address + vnet.VNET_LEN, first)
    syscalls.memcpy(words.ctypes.data, address + vnet.VNET_LEN + first, octets - first)
    at += data_words
    words[at % size] = _OPTION_FLAGS
    words[(at + 1) % size] = way
    words[(at + 2) % size] = 0
    words[(at + 3) % size] = block_len
    ring.state[_TAKEN] += 1
    ring.state[_HEAD] = at + 4


def with_traced(counters: Int64Array, rings: Sequence[TraceRing]) -> Int64Array:
    """Return a copy of a NIC's counters with the frames that these rings took and missed."""
    summed = counters.copy()
    for ring in rings:
        lost = ring.state[_LOST]
        summed[Counter.TRACE_FRAMES] += ring.state[_TAKEN] - lost
        summed[Counter.TRACE_MISSED] += ring.state[_REFUSED] + lost
    return summed


class TraceFile:
    """A pcapng file that a thread fills from rings; a context manager that empties the rings and ends the thread."""

    def __init__(self, path: Path, names: Sequence[str], rings: Sequence[TraceRing]) -> None:
        self._path = path
        self._rings = rings
        self._written_len = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._drain_forever, name="trace", daemon=True)
        try:
            self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__
            self._write(memoryview(_section_header() + b"".join(_interface(name) for name in names)))
        except OSError as error:
            raise DeviceError(f"trace file {path} cannot be written: {error.strerror}") from error

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the rest of the rings and close the file."""
        self._stopped.set()
        self._thread.join()
        self._file.close()

    def _drain_forever(self) -> None:
        while not self._stopped.wait(DRAIN_INTERVAL_S):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        """Copy the rings to the file, or discard them if the file takes no more."""
        for ring in self._rings:
            head, tail = int(ring.state[_HEAD]), int(ring.state[_TAIL])
            if not ring.state[_CLOSED]:
                tail = self._carry(ring, tail, head)
            if ring.state[_CLOSED]:
                ring.state[_LOST] += sum(1 for _ in _block_ends(ring, tail, head))
                ring.state[_TAIL] = head

    def _carry(self, ring: TraceRing, tail: int, head: int) -> int:
        """Write a ring's words from ``tail`` to ``head``, both ends of blocks; return the end of the last whole one."""
        size, at, before = ring.words.size, tail, self._written_len
        try:
            while at < head:
                end = min(head, at + size - at % size)
                self._write(ring.words[at % size : at % size + end - at].view(np.uint8).data)
                at = end
        except OSError as error:
            for each in self._rings:
                each.state[_CLOSED] = 1
            written = tail + (self._written_len - before) // 4
            whole = max((end for end in _block_ends(ring, tail, head) if end <= written), default=tail)
            with contextlib.suppress(OSError):  # a pipe cannot be truncated
                self._file.truncate(before + 4 * (whole - tail))
            ends = f"trace {self._path} ends here: {error.strerror}; further frames count as trace_missed"
            log.say("trace_ended", ends, level="warning", trace=self._path)
            return whole
        ring.state[_TAIL] = head
        return head

    def _write(self, octets: memoryview) -> None:
        while octets:
            written = self._file.write(octets) or 0
            self._written_len += written
            octets = octets[written:]


def _block_ends(ring: TraceRing, tail: int, head: int) -> Iterator[int]:
    """Yield where each block between ``tail`` and ``head`` ends, in words of the stream."""
    while tail < head:
        tail += int(ring.words[(tail + 1) % ring.words.size]) // 4
        yield tail


def wall_clock_offset_ns() -> int:
    """Return the difference between nanoseconds since 1970 and the loop's monotonic time."""
    return time.time_ns() - time.monotonic_ns()


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("=I", 12 + len(body))
    return struct.pack("=I", kind) + length + body + length


def _section_header() -> bytes:
    return _block(0x0A0D0D0A, struct.pack("=IHHq", _MAGIC, 1, 0, -1))


def _interface(name: str) -> bytes:
    octets = name.encode()
    options = struct.pack("=HH", 2, len(octets)) + octets.ljust((len(octets) + 3) // 4 * 4, b"\0")
    options += struct.pack("=HHB3x", 9, 1, _NANOSECONDS) + struct.pack("=HH", 0, 0)
    return _block(1, struct.pack("=HHI", _LINKTYPE_ETHERNET, 0, SNAP_LEN_OCTETS) + options)
