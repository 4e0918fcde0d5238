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

    meaning: str

    def __new__(cls, meaning: str) -> Counter:
        """Number the counters in the order in which they stand."""
        counter = int.__new__(cls, len(cls.__members__))
        counter._value_ = len(cls.__members__)
        counter.meaning = meaning
        return counter

    TX_HOST_FRAMES = "frames read from the host, a GSO frame counting once"
    TX_HOST_OCTETS = "octets of the frames read from the host"
    TX_OFFERS = "tagged SYNs and SYN/ACKs sent with this NIC's capability word"
    TX_FALLBACKS = "times a flow went on probation after retransmissions without progress"
    TX_PROBES = "segments compressed to find out whether blocks arrive again"
    TX_PATH_LIMITS = "times large blocks vanished, so that a flow sends smaller ones"
    TX_HELD = "segments that are held entirely, because the rest of a float is missing"
    TX_LENT = "segments that the NIC sent by itself, with octets of a float whose rest did not come"
    TX_REJUDGED = "times a flow of floats sent something else, so that it is exact and judged again"
    TX_RESETS = "connections that the NIC ended, because octets of theirs were lost with an earlier NIC"
    TX_SEGMENTS = "segments of the host that were compressed"
    TX_RAW_OCTETS = "octets of payloads that were compressed, before compression"
    TX_PAYLOAD_OCTETS = "octets of the same payloads after compression"
    TX_BLOCKS = "wire frames that carry an offload block"
    TX_CLASS_0 = "floats that took no octet"
    TX_CLASS_8 = "floats that took one octet"
    TX_CLASS_16 = "floats that took two octets"
    TX_CLASS_32 = "floats that took four octets"
    TX_CODEC_NS = "nanoseconds spent on compressing segments and making their blocks"
    TX_WIRE_FRAMES = "frames given to the wire, a GSO frame counting once"
    TX_WIRE_OCTETS = "octets of the frames given to the wire, a GSO frame's headers counting once"
    TX_WIRE_WAITS = "times the wire was full and the NIC waited"

    BYPASS_NOT_TCP = "not a whole TCP segment over IPv4 without options, or IPv6 without extension headers"
    BYPASS_UNTAGGED = "ToS or traffic class is not the tag, or the connection has none of its ports"
    BYPASS_SYN = "tagged SYN that cannot carry the capability word, or SYN/ACK to a peer that sent no word"
    BYPASS_NO_SLOT = "tagged SYN or SYN/ACK for which the flow table is full: its connection stays raw"
    BYPASS_NO_PAYLOAD = "tagged segment without payload"
    BYPASS_SPECIAL = "tagged segment with RST, URG, CWR, MD5 or AO"
    BYPASS_UNKNOWN_FLOW = "tagged segment of a flow whose SYN was not seen"
    BYPASS_PEER = "tagged segment to a peer that did not say that it decodes this NIC's codec"
    BYPASS_BAD_SUM = "segment of a known flow with a wrong TCP checksum"
    BYPASS_UNPROMISED = "tagged segment of a connection whose own socket does not bear the tag"
    BYPASS_UNDECIDED = "tagged segment of a flow that is still being judged, or whose socket is being asked"
    BYPASS_NOT_FLOATS = "tagged segment of a flow whose first kilobyte is not float32"
    BYPASS_EXACT = "tagged segment with floats that were, or must be, sent exact, or of a flow that is judged again"
    BYPASS_PROBATION = "tagged segment of a flow on probation; its floats are rounded too"
    BYPASS_NO_GAIN = (
        "tagged segment that blocks would not make smaller; its floats are rounded too, if the codec rounds"
    )

    RX_WIRE_FRAMES = "frames read from the wire, a GSO frame counting once"
    RX_WIRE_OCTETS = "octets of the frames read from the wire"
    RX_OFFERS = "SYNs and SYN/ACKs from which a peer's capability word was taken out"
    RX_BLOCKS = "offload blocks decoded"
    RX_RAW_OCTETS = "payload octets after decoding"
    RX_PAYLOAD_OCTETS = "payload octets before decoding"
    RX_SEGMENTS = "segments rebuilt for the host"
    RX_CODEC_NS = "nanoseconds spent on checking and decoding blocks"
    RX_BYPASS = "frames without a block, which crossed to the host"
    RX_ACKS_MOVED = "acknowledgements changed for the host, to the edge of a float or behind held octets"
    RX_ERRORS_TRANSLATED = "ICMP errors about blocks that became errors about TCP segments"

    DROP_RUNT = "frame from the wire shorter than its headers say"
    DROP_BAD_HEADER = "block in an IPv4 fragment, or with a wrong IPv4 checksum, TCP header or TCP flags"
    DROP_BAD_VERSION = "block of another version, or with a reserved bit set"
    DROP_BAD_CRC = "block with a wrong CRC32C, or with another nonce"
    DROP_BAD_MAC = "block without the MAC that this NIC's key makes"
    DROP_UNKNOWN_FLOW = "block of a connection whose handshake this NIC did not see"
    DROP_UNKNOWN_CODEC = "block with a codec or an error bound that this NIC does not know"
    DROP_BAD_LENGTHS = "block whose lengths contradict each other"
    DROP_MALFORMED_PAYLOAD = "block whose tags and length contradict each other"
    DROP_WIRE_FULL = "the wire's queue refused a frame"
    DROP_WIRE_DOWN = "the wire is down"
    DROP_WIRE_REFUSED = "the kernel refused a frame for the wire"
    DROP_HOST_DOWN = "the host's device is down"
    DROP_HOST_REFUSED = "the kernel refused a frame for the host"
    DROP_HOST_FULL = "the host's queue refused a frame"
    DROP_UNSPLIT = "frame that the fault stage cannot split or hold"
    DROP_HOST_BLOCK = "frame from the host that a NIC would take for blocks, by its UDP port or by IPComp"
    DROP_PEER_REFUSES = "ICMP error that says that the peer takes no blocks; its flow goes on probation"
    DROP_PATH_ERROR = "ICMP error that a block is too big; its flow sends smaller ones"
    DROP_BAD_ERROR = "ICMP error about a block that quotes nothing which only the path knows"

    FAULT_LOST = "frames lost on purpose"
    FAULT_DUPLICATED = "frames sent twice on purpose"
    FAULT_REORDERED = "frames sent behind a later one on purpose"
    FAULT_FLIPPED = "frames with one bit flipped on purpose"
    FAULT_TRUNCATED = "frames cut short on purpose"
    FAULT_DELAYED = "frames sent later on purpose"

    TRACE_FRAMES = "frames written to the trace"
    TRACE_MISSED = "frames that the trace had no room for"

    KERNEL_TX_FRAMES = "frames that the kernel carried past this process to the wire; each segment counts"
    KERNEL_TX_OCTETS = "octets of those frames behind the Ethernet header; a GSO frame's headers count once"
    KERNEL_RX_FRAMES = "frames that the kernel carried past this process to the host; each segment counts"
    KERNEL_RX_OCTETS = "octets of those frames behind the Ethernet header; a GSO frame's headers count once"


MEANINGS: Final = {counter.name.lower(): counter.meaning for counter in Counter}
"""What each counter counts, by its lower-case name."""


def make_counters() -> Int64Array:
    """Return counters at zero."""
    return np.zeros(len(Counter), np.int64)


def as_dict(counters: Int64Array) -> dict[str, int]:
    """Return every counter by its lower-case name."""
    return {counter.name.lower(): int(counters[counter]) for counter in Counter}
