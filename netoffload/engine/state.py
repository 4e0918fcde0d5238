"""What one NIC remembers, and its settings: arrays, made once, that every function of the engine may be given."""

from typing import NamedTuple

from netoffload.compiled.arrays import Int64Array, Uint8Array, Uint64Array


class EngineSettings(NamedTuple):
    """The engine's settings; only the MTU may change while it runs.

    Attributes:
        codec_id: codec of the blocks that this NIC makes; a peer that lacks it gets a codec with the same values.
        bound_k: their error bound is 2**-bound_k.
        mtu: int64[1], the wire's MTU at present, octets.
        per_segment: 1 for one frame per MSS, 0 for coalesced packing.
        in_udp: 1 for blocks in UDP to peers that take it, 0 for IPComp always.
        bundles: 1 if the kernel cuts bundles of UDP datagrams apart.
        tag: ToS or traffic class of tagged segments, its two ECN bits 0.
        tag_mask: the bits that must equal the tag's; 0: every segment is tagged.
        ports: int64[n, 2], first and last port of ranges; a tagged connection has a port in one of them. Empty: any.
        trust: 1 if the operator promises that tagged connections carry float32, 0 if their sockets must (``promises``).
        ways: the flags in the capability word (``wire.capability``).
        mac_key: signs and checks blocks, int64[3] of ``authentication``.
    """

    codec_id: int
    bound_k: int
    mtu: Int64Array
    per_segment: int
    in_udp: int
    bundles: int
    tag: int
    tag_mask: int
    ports: Int64Array
    trust: int
    ways: int
    mac_key: Int64Array


class NicState(NamedTuple):
    """All that one NIC remembers, and the room that its calls work in.

    Attributes:
        flows: int64[ROWS, FIELDS] of ``flows``, a row per connection.
        counters: int64, indexed by ``Counter``.
        lock: a pthread mutex around ``flows``, uint64[MUTEX_WORDS].
        random: int64[1 + RANDOM_WORDS] of ``transmit``: how many words are used, then random words of 32 bits.
        agenda: when to send lent octets, int64[AGENDA_FIELDS] of ``lent``.
        questions: the slots whose sockets the caller is to ask, int64[QUESTIONS_LEN] of ``promises``.
        spans: int64[MAX_WIRE_FRAMES, 2]: start and length of each wire frame that a call has written. For a bundle
            (``encapsulation.is_bundle``), start and length of each of its pieces.
        classes: int64[4], the floats of the segment that is being encoded, by the octets that they take. The counters
            get them only if the segment leaves as blocks.
        cursor: which block of a frame from the wire is next, int64[CURSOR_FIELDS].
        headers: the headers of that frame, uint8[HEADERS_LEN].
        pending: the segment that is being rebuilt, int64[PENDING_FIELDS].
        rebuilt: uint8[REBUILT_ROWS, at least HOST_SEGMENT_LEN], segments for the host.
        rebuilt_lens: their lengths, int64[REBUILT_ROWS].
        rebuilt_rows: int64[2]: the first complete row, and how many are complete; the row behind is being rebuilt.
    """

    settings: EngineSettings
    flows: Int64Array
    counters: Int64Array
    lock: Uint64Array
    random: Int64Array
    agenda: Int64Array
    questions: Int64Array
    spans: Int64Array
    classes: Int64Array
    cursor: Int64Array
    headers: Uint8Array
    pending: Int64Array
    rebuilt: Uint8Array
    rebuilt_lens: Int64Array
    rebuilt_rows: Int64Array
