"""Who promises that a host's connection carries float32: its program by the socket, or the operator.

A policy marks packets: a router, nftables or a QoS class may give anybody's packets the tag. A program marks its
socket (``setsockopt(IP_TOS)``), and so promises float32. Only the sender's socket tells the two apart, so the NIC asks
the host's kernel for it::

    first segment behind a SYN ─► raise_question ─► questions ─► the caller asks (sock_diag) ─► answer ─► PROMISE

That is mostly the acknowledgement that completes the handshake. So the answer is there before the first payload, and no
payload waits for it; a payload that comes first crosses exact. The caller asks once per connection. SYNs ask nothing,
so a flood of them costs nothing. Where the operator promises (``EngineSettings.trust``), nobody is asked.
"""

from typing import Final

from netoffload.compiled.arrays import Int64Array
from netoffload.compiled.jit import inline_kernel
from netoffload.engine import flows
from netoffload.engine.state import NicState

UNASKED: Final = 0
ASKED: Final = 1
REFUSED: Final = 2
"""The socket does not bear the tag."""
NO_SOCKET: Final = 3
"""The kernel knows no such socket: the program is in another network namespace, or on another machine."""
BY_SOCKET: Final = 4
BY_OPERATOR: Final = 5

ANSWER_NO_SOCKET: Final = -1
"""There is no such socket in the host's namespace, or only one that listens."""
ANSWER_NONE: Final = -2
"""The kernel could not be asked: the connection's next payload raises the question again."""

QUESTIONS_MAX: Final = 63
"""More than a batch of frames from the host can raise."""
QUESTIONS_LEN: Final = 1 + QUESTIONS_MAX
"""How many questions are open, then the slots that they are about."""


@inline_kernel
def raise_question(nic: NicState, slot: int, is_tagged: bool) -> None:
    """Raise the question about a connection that could be compressed, unless somebody has done so."""
    flow, questions = nic.flows[slot], nic.questions
    if flow[flows.PROMISE] != UNASKED or not is_tagged or flow[flows.PEER_CODECS] == 0:
        return
    if nic.settings.trust:
        flow[flows.PROMISE] = BY_OPERATOR
    elif questions[0] < QUESTIONS_MAX:
        questions[0] += 1
        questions[questions[0]] = slot
        flow[flows.PROMISE] = ASKED


@inline_kernel
def count_questions(nic: NicState) -> int:
    """Return how many connections the caller must ask the host's kernel about before the host's next frame."""
    return nic.questions[0]


@inline_kernel
def slot_in_question(nic: NicState) -> int:
    """Return the slot that the latest question is about."""
    return nic.questions[nic.questions[0]]


@inline_kernel
def answer(nic: NicState, tos: int) -> None:
    """Answer the latest question by the ToS or traffic class of the connection's socket, or by an ``ANSWER_...``."""
    settings, flow = nic.settings, nic.flows[slot_in_question(nic)]
    nic.questions[0] -= 1
    is_tagged = tos & settings.tag_mask == settings.tag & settings.tag_mask
    flow[flows.PROMISE] = BY_SOCKET if is_tagged else REFUSED
    if tos == ANSWER_NO_SOCKET:
        flow[flows.PROMISE] = NO_SOCKET
    elif tos == ANSWER_NONE:
        flow[flows.PROMISE] = UNASKED


def reopen(table: Int64Array) -> None:
    """Raise anew, with the next payload, the questions that an earlier process left without an answer."""
    table[table[:, flows.PROMISE] == ASKED, flows.PROMISE] = UNASKED
