"""Ranks that compress by themselves: the same bits as NICs give, the account, and errors after damage on the wire."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from netoffload import codec
from netoffload.codec import CodecId
from netoffload.collectives import (
    Exchange,
    Half,
    Operation,
    aggregator_allreduce,
    allreduce_halves,
    alltoall,
    barrier,
    broadcast,
    gather,
    hierarchical_allreduce,
    reduce,
    reduce_scatter_halves,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    scatter,
)
from netoffload.collectives.inprocess import run_ranks
from netoffload.collectives.reference import reduce_scatter, ring_sum
from netoffload.collectives.schedule import consecutive, partition
from netoffload.collectives.transfer import octets_of
from netoffload.compiled.arrays import Float32Array, Uint8Array
from netoffload.compiled.jit import JIT_DISABLED
from netoffload.config import ENV_CONTROL, ENV_OFFLOAD, INLINE_BOUND_K, INLINE_CODEC, Offload
from netoffload.errors import CollectiveError, UsageError
from netoffload.transport import Calls, CommInfo, DataPlane, Lane, Settings, TcpExchange, plane, wait_all
from netoffload.transport.info import NicAccount
from netoffload.transport.plane import what_stays_raw, wire_up
from netoffload.transport.rendezvous.agreement import (
    UNTAGGED,
    Agreement,
    Marking,
    Offer,
    Precision,
    Quantiser,
    agree,
    own_offer,
)
from netoffload.transport.wiring import chunks
from netoffload.transport.wiring.chunks import CODED_FLOATS, HEADER_OCTETS
from netoffload.transport.wiring.coded_socket import CodedSocket
from netoffload.transport.wiring.hello import HELLO_OCTETS, Hello
from netoffload.transport.wiring.lanes import Listeners
from tests.transport.tcp_ranks import Watched, rounded, run_tcp

ROUNDED = Quantiser(CodecId.BOUNDED, 10)
BOUNDED, INCEPTIONN = Precision("bounded", 10), Precision("inceptionn", 10)
NIC = Marking(0x28)

EXACT = Precision("exact", 10)

Body = Callable[[Exchange, Float32Array], Float32Array]
"""A call of one rank on its vector -> what it left there."""


def vector(rank: int, count: int) -> Float32Array:
    values: Float32Array = np.random.default_rng([rank, count]).standard_normal(count, np.float32) * np.float32(0.05)
    values[::7] *= 30
    return values


def plane_over(
    exchange: TcpExchange,
    precision: Precision | None = EXACT,
    offload: Offload = Offload.INLINE,
    settings: Settings | None = None,
) -> DataPlane:
    account = NicAccount(None, exchange.tagged_connections)
    quantise = precision.quantiser() if precision else None
    return DataPlane(exchange, precision, quantise, [], account, settings or Settings(), offload=offload)


def _in_place(call: Callable[..., None], **options: Any) -> Body:
    def body(exchange: Exchange, values: Float32Array) -> Float32Array:
        call(exchange, values, tagged=True, **options)
        return values

    return body


def _halves(exchange: Exchange, values: Float32Array) -> Float32Array:
    spans = partition(values.size, exchange.size)
    own = spans[exchange.rank]
    ring_reduce_scatter(exchange, values, spans, tagged=True, chunk_floats=1000)
    gathered = np.zeros_like(values)
    gathered[own.start : own.stop] = values[own.start : own.stop]
    ring_allgather(exchange, gathered, spans, tagged=True, quantise=ROUNDED)
    return np.concatenate([values[own.start : own.stop], gathered])


def _moved(exchange: Exchange, values: Float32Array) -> Float32Array:
    size, is_root = exchange.size, exchange.rank == 1
    spans = consecutive([values.size] * size)
    everything = np.zeros(size * values.size, np.float32)
    whole, blocks = (everything, spans) if is_root else (None, None)
    gather(exchange, values, whole, blocks, root=1, tagged=True)
    back = np.zeros_like(values)
    scatter(exchange, whole, blocks, back, root=1, tagged=True)
    swapped = np.zeros_like(everything)
    alltoall(exchange, np.tile(back, size), spans, swapped, spans, tagged=True)
    return np.concatenate([back, swapped, everything])


def _reduced(exchange: Exchange, values: Float32Array) -> Float32Array:
    reduce(exchange, values, root=1, tagged=True, chunk_floats=1000)
    return values[: values.size * (exchange.rank == 1)]  # elsewhere it is overwritten


CALLS: dict[str, Body] = {
    "allreduce": _in_place(ring_allreduce, quantise=ROUNDED),
    "maximum, short chunks": _in_place(ring_allreduce, quantise=ROUNDED, operation=Operation.MAX, chunk_floats=100),
    "rings of rings": _in_place(hierarchical_allreduce, groups=[[0, 1], [2, 3]], quantise=ROUNDED),
    "rings under an aggregator": _in_place(hierarchical_allreduce, groups=[[0], [3, 1, 2]], top="wa", quantise=ROUNDED),
    "aggregator": _in_place(aggregator_allreduce),
    "broadcast": _in_place(broadcast, root=2, quantise=ROUNDED),
    "reduce": _reduced,
    "both halves": _halves,
    "moved": _moved,
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 13, 5000, *(() if JIT_DISABLED else (3 * CODED_FLOATS + 5,))])
def test_every_call_has_the_bits_that_nics_give(count: int) -> None:
    def run(exchange: Exchange) -> list[bytes]:
        return [call(exchange, vector(exchange.rank, count)).tobytes() for call in CALLS.values()]

    def body(exchange: TcpExchange) -> list[list[bytes]]:
        return [run(exchange), run(Watched(exchange, by_hand=True))]

    expected = run_ranks(4, run, codec=codec.get("bounded"), bound_k=10)
    for rank, both in enumerate(run_tcp(4, body, coding=ROUNDED)):
        for results in both:
            assert [name for name, got, due in zip(CALLS, results, expected[rank], strict=True) if got != due] == []


@pytest.mark.parametrize("count", [1, 5000, *(() if JIT_DISABLED else (3 * CODED_FLOATS + 5,))])
def test_exact_has_the_bits_of_an_uncompressed_ring(count: int) -> None:
    def run(exchange: Exchange) -> bytes:
        values = vector(exchange.rank, count)
        values[0] = (np.nan, -0.0, np.inf, 1e-40)[exchange.rank]
        ring_allreduce(exchange, values, tagged=True, quantise=Quantiser(CodecId.EXACT, 10))
        return values.tobytes()

    def body(exchange: TcpExchange) -> tuple[bytes, int]:
        watched = Watched(exchange)
        summed = run(watched)
        assert watched.driven == [not JIT_DISABLED] * 2  # meeting and ring
        return summed, exchange.coding()[0]

    results = run_tcp(4, body, coding=Quantiser(CodecId.EXACT, 10))
    assert [got for got, _ in results] == run_ranks(4, run)
    assert min(saved for _, saved in results) > 0.05 * 6 * count or count < 5000


def test_a_coded_socket_gives_kernels_one_type_of_octets(monkeypatch: pytest.MonkeyPatch) -> None:
    pack, given = chunks.pack, list[bool]()

    def noting(coding: chunks.Coding, source: Uint8Array, at: int, count: int) -> None:
        given.append(source.flags.writeable)
        pack(coding, source, at, count)

    monkeypatch.setattr(chunks, "pack", noting)
    values = np.full(16, 0.25, np.float32)
    pair = socket.socketpair()
    with CodedSocket.over(pair[0], ROUNDED, 1) as out, CodedSocket.over(pair[1], ROUNDED, 0) as into:
        for data in (values.tobytes(), values.data):  # octets that may not be written, and others
            assert out.send(data) == values.nbytes
            got = bytearray(values.nbytes)
            assert into.recv_into(got) == values.nbytes
            assert got == values.tobytes()
    assert given == [True, True]


def test_messages_are_coded_and_keep_their_order() -> None:
    counts = [3, 2 * CODED_FLOATS + 1, 0, 1000]

    def body(exchange: TcpExchange) -> int:
        right, left = (exchange.rank + 1) % 3, (exchange.rank - 1) % 3
        into = [np.zeros(count, np.float32) for count in counts]
        coming = [exchange.watch.receive(left, tag, octets_of(values)) for tag, values in enumerate(into)]
        mine = [vector(exchange.rank, count) for count in counts]
        going = [exchange.watch.send(right, tag, octets_of(values)) for tag, values in enumerate(mine)]
        wait_all([*reversed(coming), *going])
        for values in into:
            np.testing.assert_array_equal(values, rounded(vector(left, values.size), ROUNDED))
        barrier(exchange)
        return sum(one.outcome.saved_octets for one in going)

    assert min(run_tcp(3, body, coding=ROUNDED)) > 4 * CODED_FLOATS


def test_a_call_says_who_carried_it_and_what_it_became() -> None:
    settings = Settings(require=True).with_environment()  # which coding ranks satisfy

    def body(exchange: TcpExchange) -> tuple[CommInfo, CommInfo]:
        calls, values = Calls(plane_over(exchange, BOUNDED, settings=settings)), vector(exchange.rank, 10_000)
        calls.run(lambda plane: ring_allreduce(plane.exchange, values, tagged=True, quantise=ROUNDED), [Lane.TAGGED])
        once = calls.last_info
        calls.run(lambda plane: ring_allreduce(plane.exchange, values, tagged=False), [Lane.UNTAGGED])
        assert calls.last_info.payload_octets == calls.last_info.raw_octets > 0
        return once, calls.totals

    for once, totals in run_tcp(2, body, coding=ROUNDED):
        assert once.offload is totals.offload is Offload.INLINE
        assert once.raw_octets == 40_000
        assert once.ratio == once.raw_octets / once.payload_octets > 2
        assert once.codec_s > 0
        assert totals.raw_octets - totals.payload_octets == once.raw_octets - once.payload_octets


@contextlib.contextmanager
def proxy(listeners: Listeners, damage_at: int) -> Iterator[int]:
    """Stand before a rank's listener, and flip a bit of what coded lanes bring it; yields the port."""
    target = ("127.0.0.1", listeners.ports[False])

    def pump(source: socket.socket, sink: socket.socket, *, is_damaging: bool) -> None:
        got = b""
        with contextlib.suppress(OSError):
            while octets := source.recv(1 << 16):
                whole = bytearray(got + octets)
                if is_damaging and len(got) <= 2 * HELLO_OCTETS + damage_at < len(whole):
                    hello = Hello.from_octets(whole[:HELLO_OCTETS])
                    if hello is not None and hello.lane is Lane.TAGGED:
                        whole[2 * HELLO_OCTETS + damage_at] ^= 0x10
                sink.sendall(whole[len(got) :])
                got = bytes(whole)
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        conns: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    conns.append(server.accept()[0])
                    conns.append(socket.create_connection(target))
                    for one, other in ((conns[-2], conns[-1]), (conns[-1], conns[-2])):
                        threading.Thread(
                            target=pump, args=(one, other), kwargs={"is_damaging": one is conns[-2]}, daemon=True
                        ).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)  # which ends the thread that accepts
            for conn in conns:
                conn.close()


@pytest.mark.parametrize("damage_at", [0, 13, 40, 3000])
@pytest.mark.parametrize("by_hand", [False, True])
def test_what_the_wire_damages_is_an_error_on_all_ranks(damage_at: int, by_hand: bool) -> None:
    size, count = 3, 20_000
    listeners = [Listeners(size, "127.0.0.1") for _ in range(size)]
    offers = [Offer(address="127.0.0.1", ports=one.ports) for one in listeners]

    def be(rank: int, port: int) -> str:
        seen = [Offer(address="127.0.0.1", ports={False: port, True: port}, token=offers[0].token), *offers[1:]]
        exchange = wire_up(rank, offers if rank == 0 else seen, listeners[rank], 0, 10.0, 20.0, ROUNDED)
        try:
            for _ in range(3):  # a rank that has all may have ended the first
                ring_allreduce(Watched(exchange, by_hand=by_hand), vector(rank, count), tagged=True, quantise=ROUNDED)
        except CollectiveError as error:
            return str(error)
        finally:
            exchange.close()
        return "no error"

    with proxy(listeners[0], damage_at) as port, ThreadPoolExecutor(size) as threads:
        texts = set(threads.map(be, range(size), [port] * size))
    where = "header" if damage_at < HEADER_OCTETS else "payload"
    assert texts == {f"a chunk from rank 2 is damaged: the CRC32C of its {where} is wrong"}


def test_who_compresses_is_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_CONTROL, raising=False)
    asked_nothing = Precision(INLINE_CODEC, INLINE_BOUND_K)
    assert agree([own_offer(Offload.INLINE, None)] * 2) == Agreement(asked_nothing, UNTAGGED, Offload.INLINE)
    assert agree([own_offer(Offload.INLINE, INCEPTIONN)] * 2).precision == INCEPTIONN
    assert agree([own_offer(Offload.OFF, INCEPTIONN)] * 2) == Agreement(None, UNTAGGED, Offload.OFF)
    assert own_offer(Offload.NIC, INCEPTIONN) == Offer(precision=INCEPTIONN)
    with pytest.raises(CollectiveError, match="ranks round differently: rank 0 packed with bound 10, rank 1 incep"):
        agree([own_offer(Offload.INLINE, None), own_offer(Offload.INLINE, INCEPTIONN)])
    with pytest.raises(CollectiveError, match="differ in who compresses: rank 0 says inline, rank 1 nic; set"):
        agree([own_offer(Offload.INLINE, None), own_offer(Offload.NIC, None)])


def test_auto_takes_nics_only_if_every_rank_has_the_same() -> None:
    def offer(marking: Marking | None, precision: Precision | None, coding: Precision = BOUNDED) -> Offer:
        return Offer(marking=marking, precision=precision, offload=Offload.AUTO, coding=coding)

    inline = Agreement(BOUNDED, UNTAGGED, Offload.INLINE)
    assert agree([offer(NIC, INCEPTIONN)] * 2) == Agreement(INCEPTIONN, NIC, Offload.NIC)
    assert agree([offer(None, None)] * 2) == inline
    assert agree([offer(NIC, INCEPTIONN), offer(None, None)]) == inline
    assert agree([offer(NIC, INCEPTIONN), offer(NIC, Precision("inceptionn", 8))]) == inline
    assert agree([offer(NIC, INCEPTIONN), offer(Marking(0x48), INCEPTIONN)]) == inline


def test_who_compresses_is_auto_unless_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_OFFLOAD, raising=False)
    assert Settings().with_environment().offload is Offload.AUTO
    monkeypatch.setenv(ENV_OFFLOAD, "off")
    assert Settings().with_environment().offload is Offload.OFF
    assert Settings(offload=Offload.NIC).with_environment().offload is Offload.NIC
    monkeypatch.setenv(ENV_OFFLOAD, "nick")
    with pytest.raises(
        UsageError, match=r"\$NETOFFLOAD_OFFLOAD: offload 'nick' is unknown: choose from nic, inline, a"
    ):
        Settings().with_environment()


@pytest.mark.parametrize(
    ("offload", "markings", "precision", "said"),
    [
        (Offload.NIC, (None, None), None, "no rank knows a NIC, so nothing is compressed: "),
        (Offload.NIC, (NIC, None, None), INCEPTIONN, "rank 1, 2 knows no NIC, so what it sends and receives is not "),
        (Offload.NIC, (None, None), INCEPTIONN, ""),  # the caller knows what the NICs do
        (Offload.NIC, (NIC, NIC), INCEPTIONN, ""),
        (Offload.NIC, (None,), None, ""),
        (Offload.INLINE, (None, None), BOUNDED, ""),
        (Offload.OFF, (None, None), None, ""),
    ],
)
def test_what_stays_raw_is_said(
    offload: Offload, markings: Sequence[Marking | None], precision: Precision | None, said: str
) -> None:
    warning = what_stays_raw(Agreement(precision, UNTAGGED, offload), [Offer(marking=one) for one in markings])
    assert warning.startswith(said)
    assert bool(warning) is bool(said)


@pytest.mark.parametrize("name", ["off", "exact"])
@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_halves_have_the_bits_of_a_rounded_ring_and_half_the_octets(size: int, half: Half, name: str) -> None:
    count, tagged = 100_001, name == "exact"
    vectors = [half.narrowed(vector(rank, count)) for rank in range(size)]
    expected = half.narrowed(ring_sum([half.widened(one) for one in vectors]))

    def body(exchange: TcpExchange) -> tuple[int, int]:
        watched = Watched(exchange)
        for one in (watched, Watched(exchange, by_hand=True)):
            halves = vectors[exchange.rank].copy()
            allreduce_halves(one, halves, half, tagged=tagged)
            assert halves.tobytes() == expected.tobytes()
        assert watched.driven == [not JIT_DISABLED] * (size + 1)  # the meeting, the steps, and the way back
        spans = partition(count, size)
        own = reduce_scatter_halves(exchange, vectors[exchange.rank], spans, half, tagged=tagged)
        ring = reduce_scatter([half.widened(one) for one in vectors], spans)[exchange.rank]
        assert own.tobytes() == ring.tobytes()
        return exchange.sent_octets([Lane.TAGGED if tagged else Lane.UNTAGGED]), exchange.coding()[0]

    for sent, saved in run_tcp(size, body, coding=Quantiser(CodecId.EXACT, 10) if tagged else None):
        assert sent <= 0.51 * 5 * 4 * (size - 1) / size * count  # two allreduces and a reduce-scatter, as float32
        assert not tagged or half is Half.FLOAT16 or saved > 0.2 * sent


WEIGHTS = np.random.default_rng(3).normal(0, 0.02, 100_000).astype(np.float32)
NOISE = np.random.default_rng(4).integers(0, 2**32, 100_000, np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("values", "limit_bps", "coded"), [(WEIGHTS, np.inf, True), (NOISE, np.inf, False), (WEIGHTS, 0.0, False)]
)
def test_what_moves_is_coded_if_the_path_is_slow_and_the_data_shrinks_as_all_ranks_agree(
    values: Float32Array, limit_bps: float, coded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "RATE_MAX_BPS", limit_bps)
    monkeypatch.setattr(plane, "MOVES_KEPT", 4)

    def body(exchange: TcpExchange) -> list[bool]:
        own, ways = plane_over(exchange), list[bool]()
        for count in (values.size, *[values.size] * 6, 1000):
            moved = values[:count].copy() if exchange.rank == 1 else np.zeros(count, np.float32)

            def move(tagged: bool, moved: Float32Array = moved) -> None:
                ways.append(tagged)
                broadcast(exchange, moved, root=1, tagged=tagged)

            own.move(moved.nbytes, move)
            assert moved.tobytes() == values[:count].tobytes()
        return ways

    once_in_four = [True, *[coded] * 3, True, *[coded] * 2]
    assert run_tcp(3, body, coding=EXACT.quantiser()) == [[*once_in_four, False]] * 3  # a short one stays as it is


def test_ranks_that_only_waited_say_nothing_about_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "RATE_MAX_BPS", np.inf)

    def body(exchange: TcpExchange) -> list[bool]:
        own, ways = plane_over(exchange), list[bool]()

        def move(tagged: bool) -> None:
            ways.append(tagged)
            broadcast(exchange, WEIGHTS.copy(), root=0, tagged=tagged)
            exchange.stopwatch.late_s += 3600.0

        for _ in range(2):
            own.move(WEIGHTS.nbytes, move)
        return ways

    assert run_tcp(2, body, coding=EXACT.quantiser()) == [[True, False]] * 2


def test_data_moves_as_it_is_without_a_codec_that_keeps_its_bits() -> None:
    def body(exchange: TcpExchange) -> list[bool]:
        ways: list[bool] = []
        for precision, offload in ((BOUNDED, Offload.INLINE), (EXACT, Offload.NIC), (None, Offload.OFF)):
            plane_over(exchange, precision, offload).move(1 << 30, ways.append)
        return ways

    assert run_tcp(2, body) == [[False] * 3] * 2
