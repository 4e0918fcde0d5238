"""Whether blocks of a lossless codec make a stream shorter, and where its words begin.

Such a codec gives back every bit of any octets. So a raw and a coded copy of an octet are the same: TCP may put a
stream together from both, however it cuts them. Nobody need promise floats, nothing is judged, rounded or held, and
only the octets saved decide::

    look ── a sample pays ──► blocks ── a segment did not pay ──► look
      │                                                            ▲
      └── no sample pays ───► raw, for LOOK_STEP octets ───────────┘

A look codes a sample from the middle of a segment four times, as words that begin at each of four octets. The *phase*
is the one that takes the fewest octets. It is an offset in the stream, so a segment begins and ends with up to three
octets of no word, which its blocks carry raw. The codec itself chooses between words of 32 and 16 bits. The first look
that fails costs one segment; the step to the next one doubles, until a segment pays.
"""

from typing import Final

from netoffload.codec.kernels import encode_fit, is_lossless
from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import inline_kernel, kernel
from netoffload.engine import flows, forms
from netoffload.engine.flows import Flow
from netoffload.engine.segment import Segment, advance, is_before

PHASES: Final = 4

SAMPLE_WORDS: Final = 256
"""Four groups of the codec."""
SAMPLE_WORDS_MIN: Final = 64
LOOK_MIN: Final = 4 * SAMPLE_WORDS_MIN + PHASES - 1
"""Octets of a segment that say something about the stream; headers alone may cost shorter ones their gain."""

LEAST_SHARE: Final = 16
"""Blocks pay if they save more than one octet of so many: a block's own headers take one of thirty or forty."""

_ANY_BOUND: Final = 1
"""A lossless codec has no bound."""

STEP_MIN: Final = 1 << 14
STEP_MAX: Final = 1 << 20
"""A look takes a microsecond, as copying some 10 KB does. A file's floats may begin anywhere."""


@inline_kernel
def may_pay(
    codec_id: int, frame: Uint8Array, segment: Segment, flow: Flow, classes: Int64Array, scratch: Uint8Array
) -> bool:
    """Whether blocks may make a segment shorter, after a look at it if one is due.

    ``classes``, int64[4], gets counts that nobody wants; ``scratch`` is uint8[8 * SAMPLE_WORDS].
    """
    if flow[flows.PAYS]:
        return True
    is_early = flow[flows.LOOK_STEP] > 0 and is_before(segment.seq, flow[flows.LOOK_SEQ])
    if is_early or segment.payload_len < LOOK_MIN:
        return False
    words = min((segment.payload_len - PHASES + 1) // 4, SAMPLE_WORDS)
    skip = (segment.payload_len - 4 * words - PHASES + 1) // 2
    phase = _find_phase(codec_id, frame, segment.payload_at + skip, words, classes, scratch)
    if phase == PHASES:
        look_later(flow, segment)
        return False
    flow[flows.PHASE] = forms.cut_of(flow, advance(segment.seq, skip + phase))
    flow[flows.PAYS] = 1
    return True


@kernel
def _find_phase(
    codec_id: int, octets: Uint8Array, at: int, words: int, classes: Int64Array, scratch: Uint8Array
) -> int:
    """Return how many octets behind ``at`` the words begin that the codec makes shortest; ``PHASES``: none pay."""
    best, least = PHASES, 4 * words - 4 * words // LEAST_SHARE
    for phase in range(PHASES):
        _, coded = encode_fit(codec_id, octets, at + phase, words, _ANY_BOUND, scratch, 0, 8 * SAMPLE_WORDS, classes)
        if coded < least:
            best, least = phase, coded
    return best


@inline_kernel
def head_of(codec_id: int, segment: Segment, flow: Flow) -> int:
    """Return how many octets of a segment are before its first word; 0 with a codec that rounds."""
    return flow[flows.PHASE] - forms.cut_of(flow, segment.seq) & 3 if is_lossless(codec_id) else 0


@inline_kernel
def note_blocks(flow: Flow, segment: Segment, raw_len: int, wire_len: int) -> None:
    """Note the octets of the frames that a segment became, ``wire_len`` in place of ``raw_len``."""
    if raw_len - wire_len > raw_len // LEAST_SHARE:
        flow[flows.LOOK_STEP] = 0
    else:
        look_later(flow, segment)


@inline_kernel
def look_later(flow: Flow, segment: Segment) -> None:
    """Note that a segment did not pay; the next ones stay raw for a while, unless it is too short to say anything."""
    if segment.payload_len >= LOOK_MIN:
        flow[flows.PAYS] = 0
        flow[flows.LOOK_SEQ] = advance(segment.seq, segment.payload_len + flow[flows.LOOK_STEP])
        flow[flows.LOOK_STEP] = min(max(2 * flow[flows.LOOK_STEP], STEP_MIN), STEP_MAX)
