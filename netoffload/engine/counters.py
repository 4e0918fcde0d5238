"""What the engine counts. One enum is the whole list of events.

The counters are one int64 array indexed by :class:`Counter`, so that the compiled loop can add and the control thread
can read without a lock (each is written by one thread, and a reader may be one frame behind).
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Int64Array

Counters = Int64Array
"""int64, indexed by :class:`Counter`."""


class Counter(enum.IntEnum):
    """Index into the counters; ``tx`` is host to wire, ``rx`` is wire to host.

    ``drop_...`` are the reasons why a frame is dropped. ``bypass_...`` are the reasons why a segment is not compressed.
    ``fault_...`` counts damage done on purpose. ``kernel_...`` counts frames that the kernel carries past the process:
    the loop does not write these counters; their readers ask the kernel for them.
    """

    TX_HOST_FRAMES = 0
    TX_HOST_OCTETS = enum.auto()
    TX_OFFERS = enum.auto()
    TX_FALLBACKS = enum.auto()
    TX_PROBES = enum.auto()
    TX_PATH_LIMITS = enum.auto()
    TX_HELD = enum.auto()
    TX_LENT = enum.auto()
    TX_REJUDGED = enum.auto()
    TX_RESETS = enum.auto()
    TX_SEGMENTS = enum.auto()
    TX_RAW_OCTETS = enum.auto()
    TX_PAYLOAD_OCTETS = enum.auto()
    TX_BLOCKS = enum.auto()
    TX_CLASS_0 = enum.auto()
    TX_CLASS_8 = enum.auto()
    TX_CLASS_16 = enum.auto()
    TX_CLASS_32 = enum.auto()
    TX_CODEC_NS = enum.auto()
    TX_WIRE_FRAMES = enum.auto()
    TX_WIRE_OCTETS = enum.auto()
    TX_WIRE_WAITS = enum.auto()

    BYPASS_NOT_TCP = enum.auto()
    BYPASS_UNTAGGED = enum.auto()
    BYPASS_SYN = enum.auto()
    BYPASS_NO_SLOT = enum.auto()
    BYPASS_NO_PAYLOAD = enum.auto()
    BYPASS_SPECIAL = enum.auto()
    BYPASS_UNKNOWN_FLOW = enum.auto()
    BYPASS_PEER = enum.auto()
    BYPASS_BAD_SUM = enum.auto()
    BYPASS_UNPROMISED = enum.auto()
    BYPASS_UNDECIDED = enum.auto()
    BYPASS_NOT_FLOATS = enum.auto()
    BYPASS_EXACT = enum.auto()
    BYPASS_PROBATION = enum.auto()
    BYPASS_NO_GAIN = enum.auto()

    RX_WIRE_FRAMES = enum.auto()
    RX_WIRE_OCTETS = enum.auto()
    RX_OFFERS = enum.auto()
    RX_BLOCKS = enum.auto()
    RX_RAW_OCTETS = enum.auto()
    RX_PAYLOAD_OCTETS = enum.auto()
    RX_SEGMENTS = enum.auto()
    RX_CODEC_NS = enum.auto()
    RX_BYPASS = enum.auto()
    RX_ACKS_MOVED = enum.auto()
    RX_ERRORS_TRANSLATED = enum.auto()

    DROP_RUNT = enum.auto()
    DROP_BAD_HEADER = enum.auto()
    DROP_BAD_VERSION = enum.auto()
    DROP_BAD_CRC = enum.auto()
    DROP_BAD_MAC = enum.auto()
    DROP_UNKNOWN_FLOW = enum.auto()
    DROP_UNKNOWN_CODEC = enum.auto()
    DROP_BAD_LENGTHS = enum.auto()
    DROP_MALFORMED_PAYLOAD = enum.auto()
    DROP_WIRE_FULL = enum.auto()
    DROP_WIRE_DOWN = enum.auto()
    DROP_WIRE_REFUSED = enum.auto()
    DROP_HOST_DOWN = enum.auto()
    DROP_HOST_REFUSED = enum.auto()
    DROP_HOST_FULL = enum.auto()
    DROP_UNSPLIT = enum.auto()
    DROP_HOST_BLOCK = enum.auto()
    DROP_PEER_REFUSES = enum.auto()
    DROP_PATH_ERROR = enum.auto()
    DROP_BAD_ERROR = enum.auto()

    FAULT_LOST = enum.auto()
    FAULT_DUPLICATED = enum.auto()
    FAULT_REORDERED = enum.auto()
    FAULT_FLIPPED = enum.auto()
    FAULT_TRUNCATED = enum.auto()
    FAULT_DELAYED = enum.auto()

    TRACE_FRAMES = enum.auto()
    TRACE_MISSED = enum.auto()

    KERNEL_TX_FRAMES = enum.auto()
    KERNEL_TX_OCTETS = enum.auto()
    KERNEL_RX_FRAMES = enum.auto()
    KERNEL_RX_OCTETS = enum.auto()


MEANING: Final = {
    Counter.TX_HOST_FRAMES: "frames read from the host, a GSO frame counting once",
    Counter.TX_HOST_OCTETS: "octets of the frames read from the host",
    Counter.TX_OFFERS: "tagged SYNs and SYN/ACKs sent with this NIC's capability word",
    Counter.TX_FALLBACKS: "times a flow went on probation after retransmissions without progress",
    Counter.TX_PROBES: "segments compressed to find out whether blocks arrive again",
    Counter.TX_PATH_LIMITS: "times large blocks vanished, so that a flow sends smaller ones",
    Counter.TX_HELD: "segments that are held entirely, because the rest of a float is missing",
    Counter.TX_LENT: "segments that the NIC sent by itself, with octets of a float whose rest did not come",
    Counter.TX_REJUDGED: "times a flow of floats sent something else, so that it is exact and judged again",
    Counter.TX_RESETS: "connections that the NIC ended, because octets of theirs were lost with an earlier NIC",
    Counter.TX_SEGMENTS: "segments of the host that were compressed",
    Counter.TX_RAW_OCTETS: "octets of payloads that were compressed, before compression",
    Counter.TX_PAYLOAD_OCTETS: "octets of the same payloads after compression",
    Counter.TX_BLOCKS: "wire frames that carry an offload block",
    Counter.TX_CLASS_0: "floats that took no octet",
    Counter.TX_CLASS_8: "floats that took one octet",
    Counter.TX_CLASS_16: "floats that took two octets",
    Counter.TX_CLASS_32: "floats that took four octets",
    Counter.TX_CODEC_NS: "nanoseconds spent on compressing segments and making their blocks",
    Counter.TX_WIRE_FRAMES: "frames given to the wire, a GSO frame counting once",
    Counter.TX_WIRE_OCTETS: "octets of the frames given to the wire, a GSO frame's headers counting once",
    Counter.TX_WIRE_WAITS: "times the wire was full and the NIC waited",
    Counter.BYPASS_NOT_TCP: "not a whole TCP segment over IPv4 without options, or IPv6 without extension headers",
    Counter.BYPASS_UNTAGGED: "ToS or traffic class is not the tag, or the connection has none of its ports",
    Counter.BYPASS_SYN: "tagged SYN that cannot carry the capability word, or SYN/ACK to a peer that sent no word",
    Counter.BYPASS_NO_SLOT: "tagged SYN or SYN/ACK for which the flow table is full: its connection stays raw",
    Counter.BYPASS_NO_PAYLOAD: "tagged segment without payload",
    Counter.BYPASS_SPECIAL: "tagged segment with RST, URG, CWR, MD5 or AO",
    Counter.BYPASS_UNKNOWN_FLOW: "tagged segment of a flow whose SYN was not seen",
    Counter.BYPASS_PEER: "tagged segment to a peer that did not say that it decodes this NIC's codec",
    Counter.BYPASS_BAD_SUM: "segment of a known flow with a wrong TCP checksum",
    Counter.BYPASS_UNPROMISED: "tagged segment of a connection whose own socket does not bear the tag",
    Counter.BYPASS_UNDECIDED: "tagged segment of a flow that is still being judged, or whose socket is being asked",
    Counter.BYPASS_NOT_FLOATS: "tagged segment of a flow whose first kilobyte is not float32",
    Counter.BYPASS_EXACT: "tagged segment with floats that were, or must be, sent exact",
    Counter.BYPASS_PROBATION: "tagged segment of a flow on probation; its floats are rounded too",
    Counter.BYPASS_NO_GAIN: "tagged segment that its blocks would not make smaller; its floats are rounded too",
    Counter.RX_WIRE_FRAMES: "frames read from the wire, a GSO frame counting once",
    Counter.RX_WIRE_OCTETS: "octets of the frames read from the wire",
    Counter.RX_OFFERS: "SYNs and SYN/ACKs from which a peer's capability word was taken out",
    Counter.RX_BLOCKS: "offload blocks decoded",
    Counter.RX_RAW_OCTETS: "payload octets after decoding",
    Counter.RX_PAYLOAD_OCTETS: "payload octets before decoding",
    Counter.RX_SEGMENTS: "segments rebuilt for the host",
    Counter.RX_CODEC_NS: "nanoseconds spent on checking and decoding blocks",
    Counter.RX_BYPASS: "frames without a block, which crossed to the host",
    Counter.RX_ACKS_MOVED: "acknowledgements changed for the host, to the edge of a float or behind held octets",
    Counter.RX_ERRORS_TRANSLATED: "ICMP errors about blocks that became errors about TCP segments",
    Counter.DROP_RUNT: "frame from the wire shorter than its headers say",
    Counter.DROP_BAD_HEADER: "block in an IPv4 fragment, or with a wrong IPv4 checksum, TCP header or TCP flags",
    Counter.DROP_BAD_VERSION: "block of another version, or with a reserved bit set",
    Counter.DROP_BAD_CRC: "block with a wrong CRC32C, or with another nonce",
    Counter.DROP_BAD_MAC: "block without the MAC that this NIC's key makes",
    Counter.DROP_UNKNOWN_FLOW: "block of a connection whose handshake this NIC did not see",
    Counter.DROP_UNKNOWN_CODEC: "block with a codec or an error bound that this NIC does not know",
    Counter.DROP_BAD_LENGTHS: "block whose lengths contradict each other",
    Counter.DROP_MALFORMED_PAYLOAD: "block whose tags and length contradict each other",
    Counter.DROP_WIRE_FULL: "the wire's queue refused a frame",
    Counter.DROP_WIRE_DOWN: "the wire is down",
    Counter.DROP_WIRE_REFUSED: "the kernel refused a frame for the wire",
    Counter.DROP_HOST_DOWN: "the host's device is down",
    Counter.DROP_HOST_REFUSED: "the kernel refused a frame for the host",
    Counter.DROP_HOST_FULL: "the host's queue refused a frame",
    Counter.DROP_UNSPLIT: "frame that the fault stage cannot split or hold",
    Counter.DROP_HOST_BLOCK: "frame from the host that a NIC would take for blocks, by its UDP port or by IPComp",
    Counter.DROP_PEER_REFUSES: "ICMP error that says that the peer takes no blocks; its flow goes on probation",
    Counter.DROP_PATH_ERROR: "ICMP error that a block is too big; its flow sends smaller ones",
    Counter.DROP_BAD_ERROR: "ICMP error about a block that quotes nothing which only the path knows",
    Counter.FAULT_LOST: "frames lost on purpose",
    Counter.FAULT_DUPLICATED: "frames sent twice on purpose",
    Counter.FAULT_REORDERED: "frames sent behind a later one on purpose",
    Counter.FAULT_FLIPPED: "frames with one bit flipped on purpose",
    Counter.FAULT_TRUNCATED: "frames cut short on purpose",
    Counter.FAULT_DELAYED: "frames sent later on purpose",
    Counter.TRACE_FRAMES: "frames written to the trace",
    Counter.TRACE_MISSED: "frames that the trace had no room for",
    Counter.KERNEL_TX_FRAMES: "frames that the kernel carried past this process to the wire; each segment counts",
    Counter.KERNEL_TX_OCTETS: "octets of those frames behind the Ethernet header; a GSO frame's headers count once",
    Counter.KERNEL_RX_FRAMES: "frames that the kernel carried past this process to the host; each segment counts",
    Counter.KERNEL_RX_OCTETS: "octets of those frames behind the Ethernet header; a GSO frame's headers count once",
}
"""One line per counter; ``tests/engine`` checks that no counter is missing."""


def make_counters() -> Int64Array:
    """Return counters at zero."""
    return np.zeros(len(Counter), np.int64)


def as_dict(counters: Int64Array) -> dict[str, int]:
    """Return every counter by its lower-case name."""
    return {counter.name.lower(): int(counters[counter]) for counter in Counter}
