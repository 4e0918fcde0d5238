"""Carries whole rounds out in compiled code, and turns their results into times, octets and errors.

The compiled functions (``ring_loop``, ``meeting_loop``) hold no interpreter lock; a call takes it when it begins, when
it ends, and once per slice. A slice of the main thread is short, because Python handles signals between slices: Ctrl-C
ends a blocking call. Other threads handle no signals, and to take the lock from a computing thread costs up to its
switch interval (5 ms), so their slices are long.

A round holds ``lock``. Another thread closes sockets only under this lock, or the round could write to a new file that
got the same descriptor. The round's own thread may close them between slices, in a signal handler. So every slice asks
for the descriptors again; a closed socket has -1.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, cast

import numpy as np

from netoffload.collectives.exchange import FLOAT_OCTETS, Channel, Gathering, Quantise, RingRound, Stopwatch
from netoffload.compiled.arrays import Float32Array
from netoffload.compiled.jit import JIT_DISABLED, compiled_for
from netoffload.errors import CollectiveError, PeerLostError
from netoffload.transport.messages.watch import Context
from netoffload.transport.rendezvous.agreement import Quantiser
from netoffload.transport.rounds import loop_port, meeting_loop, ring_loop
from netoffload.transport.rounds.loop_port import Port
from netoffload.transport.rounds.meeting_loop import GatheringPlan
from netoffload.transport.rounds.ring_loop import RingPlan
from netoffload.transport.wiring.chunks import CODED_FLOATS, count_received, make_coding, pack, unpack
from netoffload.transport.wiring.coded_socket import CodedSocket

MAIN_SLICE_NS: Final = 100_000_000  # longest time that Ctrl-C has to wait; a shorter slice would cost more calls

OTHER_SLICE_NS: Final = 2_000_000_000  # with this slice, a switch interval of 5 ms costs a four-hundredth of the time

_NS: Final = 1e9

_NUMBA: Final = sys.modules["numba"]  # what `compiled` has imported

_ZEROS: Final = np.zeros(loop_port.PATIENCE, np.int64).data

CLOSED = "it closed its connection"  # reason given for an end of the stream, for which the kernel has no error text

Step = Callable[[int, int], int]


class TcpChannel:
    """One connection; see :class:`~netoffload.collectives.exchange.Channel`."""

    def __init__(self, conn: socket.socket, peer: int, watch: Context) -> None:
        self.peer = peer
        self.conn = conn
        self.coded = conn if isinstance(conn, CodedSocket) else None
        """The connection if both ranks code on it, else None."""
        self.sent_octets = 0
        self._watch = watch

    def send_some(self, data: memoryview) -> int:
        """Hand a prefix of ``data`` to the kernel."""
        try:
            count = self.conn.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._watch.explain(self.peer, error.strerror or str(error)) from error
        self.sent_octets += count
        return count

    def receive_some(self, into: memoryview) -> int:
        """Take the octets that the kernel has."""
        try:
            count = self.conn.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._watch.explain(self.peer, error.strerror or str(error)) from error
        if count == 0:
            raise self._watch.explain(self.peer, CLOSED)
        return count

    def ending(self) -> CollectiveError | None:
        """Return why the exchange ended or the peer left; None if neither happened."""
        return self._watch.ending(self.peer)


Sides = tuple[TcpChannel, TcpChannel]


@contextlib.contextmanager
def numba_found() -> Iterator[None]:
    """Let Numba find itself: it imports itself when it loads a kernel, and a program may have hidden it meanwhile."""
    # The tests of mpi4py do so, by `sys.modules["numba"] = None`.
    hidden = {"numba": sys.modules.get("numba", _NUMBA)}
    sys.modules["numba"] = _NUMBA
    try:
        yield
    finally:
        sys.modules.update(hidden)


@numba_found()
def prepare() -> None:
    """Compile what rounds run, or load it from the cache, so that no call makes a peer wait for it."""
    if JIT_DISABLED:
        return
    nothing = np.empty(0, np.float32)
    no_steps = np.zeros((1, 2), np.int64)
    plan = RingPlan(nothing, nothing.view(np.uint32), nothing, no_steps, 0, 0, loop_port.NOT_ROUNDED, 0)
    port = loop_port.make_port()
    ring_loop.run_ring(-1, -1, 0, 0, plan, port)
    octets, coding = np.empty(0, np.uint8), make_coding(0, 0)
    ring_loop.run_coded_ring(-1, -1, 0, 0, plan, coding, coding, port)
    pack(coding, np.zeros(4, np.uint8), 0, 1)
    count_received(coding, 0, 0)
    unpack(coding, coding.decoded.view(np.uint8), 0)
    nobody = np.empty((0, 2), np.int64)
    words = nothing.view(np.uint32)
    gathering = GatheringPlan(
        octets, octets, 0, nothing, words, nothing, nobody, octets, 0, 0, loop_port.NOT_ROUNDED, 0
    )
    meeting_loop.run_gathering(nobody, 0, 0, gathering, port)


def standstill(peers: Sequence[int], limit_s: float, may_be_late: bool) -> PeerLostError:
    """Return the error for living peers that did nothing for the time limit."""
    names = ", ".join(str(peer) for peer in sorted(set(peers)))
    if may_be_late:
        return PeerLostError(
            f"rank {names} lives but did not come to this call within the timeout of {limit_s:g} s (late_s)"
        )
    return PeerLostError(f"rank {names} lives but neither sent nor took anything for the timeout of {limit_s:g} s")


class Driver:
    """Carries out the rounds of one communicator, one at a time, and holds ``lock`` meanwhile."""

    def __init__(
        self, stopwatch: Stopwatch, watch: Context, timeout_s: float, late_s: float, lock: threading.RLock
    ) -> None:
        self._lock = lock
        self._stopwatch = stopwatch
        self._watch = watch
        self._timeout_s = timeout_s
        self._late_s = max(late_s, timeout_s)
        self._port = loop_port.make_port()
        self._words = self._port.state.data
        """The same memory as a memoryview: Python reads and writes a single number of it in half the time."""

    def go_round(self, ring: RingRound) -> bool:
        """Carry out a ring; see :meth:`~netoffload.collectives.exchange.Exchange.drive`."""
        if (pairs := _tcp_pairs([(ring.outward, ring.inward)])) is None:
            return False
        ((outward, inward),), port = pairs, self._port
        if (run := _begin_ring(ring, outward, inward, port)) is None:
            return False

        def step(slice_ns: int, limit_ns: int) -> int:
            try:
                return run(outward.conn.fileno(), inward.conn.fileno(), slice_ns, limit_ns)
            finally:
                outward.sent_octets += int(port.state[loop_port.SENT_OCTETS])
                port.state[loop_port.SENT_OCTETS] = 0

        limit_s = self._late_s if ring.is_crossing else self._timeout_s
        with self._lock:
            self._run(step, lambda: (outward, inward), limit_s, may_be_late=False)
        return True

    def gather(self, gathering: Gathering) -> bool:
        """Carry out a meeting, with or without vectors; see ``Exchange.drive``."""
        prepared = gathering.prepared
        if prepared is None:
            prepared = gathering.prepared = _prepare_gathering(gathering, self._port)
        if prepared is False:
            return False
        self._words[: loop_port.PATIENCE] = _ZEROS
        with self._lock:
            try:
                self._run(prepared.step, prepared.sides, self._late_s, may_be_late=True)
            finally:
                gathering.done = self._words[loop_port.RECEIVING]
                for channel, octets in prepared.sent[: gathering.done]:
                    channel.sent_octets += octets
        return True

    def _run(self, step: Step, sides: Callable[[], Sides], limit_s: float, *, may_be_late: bool) -> None:
        """Call ``step`` until the round is done; ``sides`` returns the channels that it uses now: outward, inward."""
        state = self._port.state
        is_main = threading.get_ident() == threading.main_thread().ident
        slice_ns, limit_ns = MAIN_SLICE_NS if is_main else OTHER_SLICE_NS, int(limit_s * _NS)
        while True:
            result = step(slice_ns, limit_ns)
            self._count_times(may_be_late)
            if result == loop_port.DONE:
                return
            if result == loop_port.BROKEN:
                number = int(state[loop_port.ERROR])
                peer = sides()[int(state[loop_port.SIDE])].peer
                raise self._watch.explain(peer, os.strerror(number) if number else CLOSED)
            if result == loop_port.DAMAGED:
                coded = sides()[loop_port.IN].coded
                assert coded is not None
                raise coded.damage()
            failure = self._watch.verdict() if result == loop_port.SILENT else self._watch.failure
            if failure is not None:
                raise failure
            if result == loop_port.SILENT:
                wanted = int(state[loop_port.WANTED])
                peers = [channel.peer for side, channel in enumerate(sides()) if wanted >> side & 1]
                raise standstill(peers, limit_s, may_be_late)

    def _count_times(self, may_be_late: bool) -> None:
        watch, words = self._stopwatch, self._words
        slept_s = words[loop_port.ASLEEP_NS] / _NS
        watch.wire_s += slept_s
        if may_be_late:
            watch.late_s += slept_s
        watch.reduce_s += words[loop_port.REDUCE_NS] / _NS
        watch.codec_s += words[loop_port.CODEC_NS] / _NS
        words[loop_port.ASLEEP_NS] = words[loop_port.REDUCE_NS] = words[loop_port.CODEC_NS] = 0


Run = Callable[[int, int, int, int], int]
"""Drives a ring; takes descriptors out and in, slice and limit of silence in ns, returns a ``loop_port`` result."""


def _begin_ring(ring: RingRound, outward: TcpChannel, inward: TcpChannel, port: Port) -> Run | None:
    """Begin a ring; None if only Python can do it."""
    codec, flags, going, coming = _codec(ring.quantise), ring.values.flags, outward.coded, inward.coded
    if codec is None or ring.values.dtype.char != "f" or not (flags.aligned and flags.writeable):
        return None
    values, staged = cast("Float32Array", np.asarray(ring.values)), cast("Float32Array", ring.staged)
    if going is not None and coming is not None:
        is_alike = ring.quantise is None or codec == (going.coding.codec_id, going.coding.bound_k)
        if coming.has_rest or not is_alike:
            return None
        staged = staged[:CODED_FLOATS]
    walk = np.array([(span.start, span.stop) for span in ring.walk], np.int64) * FLOAT_OCTETS
    plan = RingPlan(values, values.view(np.uint32), staged, walk, ring.reducing, int(ring.operation), *codec)
    ring_loop.begin(plan, port)
    if going is None or coming is None:
        return lambda *at: ring_loop.run_ring(at[0], at[1], at[2], at[3], plan, port)
    codings = going.coding, coming.coding
    return lambda *at: ring_loop.run_coded_ring(at[0], at[1], at[2], at[3], plan, *codings, port)


class _PreparedGathering:
    """The parts of a gathering that stay the same from call to call."""

    def __init__(self, plan: GatheringPlan, pairs: list[Sides], octets: list[int], port: Port) -> None:
        self._plan = plan
        self._pairs = pairs
        self._port = port
        self.sent = [(ahead, count) for (ahead, _), count in zip(pairs, octets, strict=True)]
        """Per round, the channel that sends and the octets that it sends."""
        self._table = np.empty((len(pairs), 2), np.int64)
        self._descriptors = self._table.data
        self._sockets = [(index, ahead.conn, behind.conn) for index, (ahead, behind) in enumerate(pairs)]
        self._go = compiled_for(meeting_loop.run_gathering, self._table, 0, 0, plan, port)

    def step(self, slice_ns: int, limit_ns: int) -> int:
        descriptors = self._descriptors
        for index, ahead, behind in self._sockets:
            descriptors[index, 0], descriptors[index, 1] = ahead.fileno(), behind.fileno()
        return self._go(self._table, slice_ns, limit_ns, self._plan, self._port)

    def sides(self) -> Sides:
        return self._pairs[int(self._port.state[loop_port.RECEIVING])]


def _prepare_gathering(gathering: Gathering, port: Port) -> _PreparedGathering | Literal[False]:
    """Return a gathering as compiled code takes it; False if only Python can do it."""
    pairs, codec, values = _tcp_pairs(gathering.pairs), _codec(gathering.quantise), gathering.values.reshape(-1)
    if pairs is None or codec is None:
        return False
    plan = GatheringPlan(
        gathering.outgoing,
        gathering.incoming,
        len(gathering.word),
        values,
        values.view(np.uint32),
        gathering.result,
        np.array([(span.start, span.stop) for span in gathering.spans], np.int64).reshape(-1, 2),
        np.array(gathering.rounded_hops, np.uint8),
        gathering.rank,
        int(gathering.operation),
        *codec,
    )
    return _PreparedGathering(plan, pairs, [gathering.octets_in(number) for number in range(len(pairs))], port)


def _tcp_pairs(pairs: Sequence[tuple[Channel, Channel]]) -> list[Sides] | None:
    """Return channels that compiled code can use; None if only Python can."""
    tcp = [(out, in_) for out, in_ in pairs if isinstance(out, TcpChannel) and isinstance(in_, TcpChannel)]
    return None if JIT_DISABLED or len(tcp) < len(pairs) else tcp


def _codec(quantise: Quantise | None) -> tuple[int, int] | None:
    """Return codec and bound of a rounding, in the form of plans; None if only Python can round so."""
    if quantise is None:
        return loop_port.NOT_ROUNDED, 0
    return (int(quantise.codec_id), quantise.bound_k) if isinstance(quantise, Quantiser) else None
