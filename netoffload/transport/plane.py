"""A data plane: the connections of one group of ranks, and what the ranks agreed on; and how it is set up.

All ranks gather their offers, each of which names two listening ports. Every rank connects with its neighbours
(``messages.links``) on the control lane, and they begin to watch each other. Then all ranks meet, which is their first
call. A rank that leaves this meeting knows that all ranks are connected. So all ranks fail together: a rank that fails
tells its neighbours, and the error names a rank that dies or stops meanwhile.

Communicators of the same ranks share connections. A process keeps the watches of its groups of ranks in a table, where
a set-up looks its group up. If all ranks have the same watch, the new communicator becomes another context of it: no
rank listens or connects anew. Else all ranks make a new watch. Rank 0 numbers the contexts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import reprlib
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, TypeVar, cast

import numpy as np

from netoffload import log
from netoffload.collectives import Half, Operation, ShortAllreduce, allreduce_halves, barrier, is_short, ring_allreduce
from netoffload.collectives.exchange import Quantise, Scratch, Vector
from netoffload.collectives.hierarchy import Groups, default_groups, groups_by_network
from netoffload.collectives.ring import CHUNK_FLOATS, chunk_for
from netoffload.compiled.arrays import Float32Array, Uint16Array
from netoffload.config import ENV_ADDRESS, ENV_CONTROL, Offload, chosen_offload, parse_size_octets
from netoffload.errors import CollectiveError, MalformedError, NetOffloadError, UsageError
from netoffload.transport.info import NicAccount
from netoffload.transport.messages.links import Links
from netoffload.transport.messages.watch import FIRST_CONTEXT, Watch
from netoffload.transport.rendezvous import Rendezvous
from netoffload.transport.rendezvous.agreement import (
    Agreement,
    Marking,
    Offer,
    Precision,
    Quantiser,
    agree,
    own_address,
    own_offer,
    requested_precision,
)
from netoffload.transport.rounds.driver import numba_found, prepare
from netoffload.transport.rounds.exchange import LATE_S_DEFAULT, TIMEOUT_S_DEFAULT, TcpExchange
from netoffload.transport.wiring import nearby
from netoffload.transport.wiring.lanes import TAGGED_LANES, Lane, Listeners

Plane = TypeVar("Plane", bound="DataPlane")

ENV_CHUNK = "NETOFFLOAD_CHUNK"  # environment variable with the size of a chunk: `256KiB`

ENV_REQUIRE = "NETOFFLOAD_REQUIRE"
"""Environment variable; 1: a call raises an error if a tagged connection was not compressed."""


def is_required() -> bool:
    """Return whether the environment requires compression."""
    answer = os.environ.get(ENV_REQUIRE, "")
    if answer not in ("", "0", "1"):
        raise UsageError(f"${ENV_REQUIRE} is {answer!r}: write 1 to require compression, or 0")
    return answer == "1"


def refuse_off(offload: Offload) -> None:
    """Raise UsageError if compression is off, although somebody requires it."""
    if offload is Offload.OFF:
        raise UsageError(
            f"require=True or ${ENV_REQUIRE} asks for compression, and offload is off: give offload auto, nic or inline"
        )


CHUNK_OCTETS_MAX = 2**30

LIMIT_S_MAX = 1e6
"""A limit that is longer, or infinite, is this one, 11 days: poll(2) takes milliseconds up to 2**31."""

LONG_OCTETS = 256 * 1024

RATE_MAX_BPS = 10e9
"""Faster paths carry weights as they are. One core codes and decodes 44 Gb/s of bf16 with AVX-512, 18 without AVX; the
same core feeds the sockets (docs/lab/codecs.md)."""

RATIO_MIN = 1.05  # what shrinks less stays as it is

MOVES_KEPT = 64  # movements after which the ranks try again whether coding pays

SHORT_KEPT = 32  # lengths of short vectors for which memory is kept, some 100 KB each at most


def pays(rate_bps: float, ratio: float = RATIO_MIN) -> bool:
    """Return whether data that must keep every bit is coded by ``exact`` on a path, if it gets smaller by ``ratio``."""
    return rate_bps <= RATE_MAX_BPS and ratio >= RATIO_MIN


@dataclass(frozen=True)
class Settings:
    """What a communicator was made with; ``CompComm`` describes the fields."""

    codec: str | None = None
    bound_k: int | None = None
    timeout_s: float = TIMEOUT_S_DEFAULT
    late_s: float = LATE_S_DEFAULT
    chunk_octets: int | None = None
    require: bool = False
    per_call: bool = False
    offload: Offload | None = None
    only_moves: bool = False
    """Whether only :meth:`DataPlane.move` is compressed, and only if ranks are on several hosts."""

    def __post_init__(self) -> None:
        """Refuse what cannot be before a rank waits for the others; limits are at most :data:`LIMIT_S_MAX`."""
        requested_precision(self.codec, self.bound_k)
        for name in ("timeout_s", "late_s"):
            limit_s: object = getattr(self, name)
            if not isinstance(limit_s, int | float) or not limit_s > 0:
                raise UsageError(f"{name} is {limit_s!r}: give a number of seconds above 0")
            object.__setattr__(self, name, min(limit_s, LIMIT_S_MAX))
        chunk: object = self.chunk_octets
        if chunk is not None and not isinstance(chunk, SupportsIndex):
            raise UsageError(f"chunk_octets is {chunk!r}: give a whole number of octets")

    def with_environment(self) -> Settings:
        """Return the settings, completed from the environment's variables."""
        chunk = self.chunk_octets
        if chunk is None and (text := os.environ.get(ENV_CHUNK)):
            try:
                chunk = parse_size_octets(text)
            except UsageError as error:
                raise UsageError(f"${ENV_CHUNK}: {error}") from error
        if chunk is not None and chunk < 4:
            raise UsageError(f"a chunk of {chunk} octets is less than one float32: give at least 4")
        if chunk is not None and chunk > CHUNK_OCTETS_MAX:
            raise UsageError(f"a chunk of {chunk} octets is too long: give at most {CHUNK_OCTETS_MAX}")
        offload, require = chosen_offload(self.offload), self.require or is_required()
        if self.require:
            refuse_off(offload)
        per_call = self.per_call or require
        return replace(self, chunk_octets=chunk, require=require, per_call=per_call, offload=offload)


@dataclass
class DataPlane:
    """What a call works with."""

    exchange: TcpExchange
    precision: Precision | None  # what tagged data is rounded by; None: nothing
    quantise: Quantise | None  # the function that rounds so
    addresses: Sequence[str]  # the address of each rank's data interface
    account: NicAccount  # asks this rank's NIC what it did
    settings: Settings  # the communicator's settings
    rounded_hops: Sequence[bool] = ()
    """Per rank, whether what it sends to its right neighbour is rounded on the way; empty: nowhere."""
    offload: Offload = Offload.NIC  # who compresses, as all ranks agreed; never `AUTO`
    rate_bps: float = 0.0
    """Rate of the latest long call. (The kernel's estimate per connection is the rate of short bursts: on a path of
    50 Mb/s it was gigabits.)"""
    _moves: int = 0  # number of movements that could be coded
    _is_coded: bool = False  # whether they are
    work: Scratch = field(default_factory=Scratch)  # memory for calls, kept between them
    _short: dict[tuple[int, bool, Operation, str], ShortAllreduce] = field(default_factory=dict)

    def chunk_floats(self) -> int:
        """Return the floats added and forwarded at a time: as set, else from the path's rate and round-trip time."""
        if self.settings.chunk_octets is not None:
            return self.settings.chunk_octets // 4
        return chunk_for(self.rate_bps, self.exchange.round_trip_s()) if self.rate_bps else CHUNK_FLOATS

    def learn_rate(self, octets: int, seconds: float) -> None:
        """Note that a call sent ``octets`` in ``seconds``, without the time that it waited for late ranks."""
        # Short calls say nothing about the path.
        if octets >= LONG_OCTETS and seconds > 0:
            self.rate_bps = octets * 8 / seconds

    def short_allreduce(self, count: int, operation: Operation, *, tagged: bool) -> ShortAllreduce:
        """Return what reduces ``count`` floats, kept between calls; arguments as for ``ring_allreduce``."""
        key = count, tagged, operation, self.exchange.calling
        found = self._short.get(key)
        if found is None:
            if len(self._short) >= SHORT_KEPT:
                self._short.clear()
            found = self._short[key] = ShortAllreduce(
                self.exchange,
                count,
                tagged=tagged,
                operation=operation,
                quantise=self.quantise if tagged else None,
                rounded_hops=self.rounded_hops if tagged else (),
            )
        return found

    @property
    def keeps_bits(self) -> bool:
        """Whether tagged data arrives bit for bit, so that 16-bit floats may travel as they are."""
        return self.precision is None or self.precision.keeps_bits

    def allreduce_halves(
        self, halves: Uint16Array, half: Half, operation: Operation = Operation.SUM, *, tagged: bool, divisor: int = 1
    ) -> None:
        """Do :func:`~netoffload.collectives.halves.allreduce_halves`; short vectors travel as float32.

        They are tagged only if a codec is known: who does not know it may sit before a NIC that rounds.
        """
        tagged = tagged and self.precision is not None
        if not is_short(halves.size, self.exchange.size):
            allreduce_halves(self.exchange, halves, half, tagged=tagged, operation=operation, divisor=divisor)
            return
        wide = half.widened(halves)
        self.short_allreduce(wide.size, operation, tagged=tagged)(wide, wide)
        with np.errstate(invalid="ignore"):
            halves[:] = half.narrowed(wide / np.float32(divisor))

    def move(self, octets: int, move: Callable[[bool], None]) -> None:
        """Call ``move(tagged)``, which moves data that must keep every bit; collective, ``octets`` as on all ranks.

        It is tagged, and coded, where that :func:`pays`. One call in :data:`MOVES_KEPT` is coded and measured, and the
        ranks agree about the next ones.
        """
        if self.offload is not Offload.INLINE or not self.keeps_bits or octets < LONG_OCTETS:
            move(False)
            return
        self._moves += 1
        if self._moves % MOVES_KEPT != 1:
            move(self._is_coded)
            return
        exchange, watch = self.exchange, self.exchange.stopwatch
        sent, saved, start_s = exchange.sent_octets((Lane.TAGGED,)), exchange.coding()[0], watch.now_s() - watch.late_s
        move(True)
        raw = exchange.sent_octets((Lane.TAGGED,)) - sent
        coded, took_s = raw - exchange.coding()[0] + saved, watch.now_s() - watch.late_s - start_s
        # A rank that only receives, or whose whole time was waiting for others, knows nothing about the path.
        found = np.array([raw > 0 and took_s > 0 and pays(coded * 8 / took_s, raw / coded)], np.float32)
        self.short_allreduce(1, Operation.MAX, tagged=False)(found, found)
        self._is_coded = bool(found[0])

    def allreduce(
        self,
        values: Vector,
        operation: Operation,
        *,
        tagged: bool,
        source: Float32Array | None = None,
        have_met: bool = False,
    ) -> None:
        """Replace ``values`` by the reduction of every rank's ``source``; None: of ``values``.

        Short float32 is gathered, all else takes a ring; arguments as for ``ring_allreduce``.
        """
        if values.dtype.char == "f" and is_short(values.size, self.exchange.size):
            floats = cast("Float32Array", values)
            self.short_allreduce(values.size, operation, tagged=tagged)(floats if source is None else source, floats)
            return
        if source is not None and values.ctypes.data != source.ctypes.data:
            np.copyto(values, source)
        quantise, chunk_floats = self.quantise if tagged else None, self.chunk_floats()
        ring_allreduce(
            self.exchange,
            values,
            tagged=tagged,
            operation=operation,
            quantise=quantise,
            chunk_floats=chunk_floats,
            have_met=have_met,
        )

    def groups(self) -> Groups:
        """Return the ranks grouped by network (/24), or, on one network, in groups of about sqrt(p) ranks."""
        by_network = groups_by_network(self.addresses)
        return by_network if len(by_network) > 1 else default_groups(self.exchange.size)


@dataclass(eq=False)
class Shared:
    """A group's watch, and what its ranks agreed on when they made it."""

    watch: Watch
    offers: list[Offer]  # the offers of all ranks
    own: Offer  # how this rank offered to compress; with other offers the ranks might agree on something else
    # The numbers of later contexts.
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_CONTEXT + 1))

    @property
    def name(self) -> str:
        """A name that is the same on all ranks."""
        return nearby.name_of(self.offers[0].token)


_lock = threading.Lock()
_table: dict[Hashable, Shared] = {}  # the groups of this process, by `_key_of`


def _key_of(group: Hashable | None, rank: int, *requested: Hashable) -> Hashable | None:
    """Return the key of a group: set-ups with the same key may share a watch; None: this one shares none."""
    if group is None:
        return None
    # The process id, so that a forked child shares none of its parent's connections.
    return group, rank, *requested, os.getpid(), os.environ.get(ENV_ADDRESS), os.environ.get(ENV_CONTROL)


@contextlib.contextmanager
def _held(key: Hashable | None, own: Offer) -> Iterator[Shared | None]:
    """Keep a group's watch alive while all ranks find out whether they have the same one; None if there is none."""
    with _lock:
        found = _table.get(key)
        if found is not None and (found.own != own or not found.watch.hold()):
            found = None
    try:
        yield found
    finally:
        if found is not None:
            found.watch.release()


def _keep(key: Hashable | None, shared: Shared) -> None:
    if key is None:
        return
    with _lock:
        for stale in [each for each, one in _table.items() if not one.watch.is_alive]:
            del _table[stale]
        _table[key] = shared


@numba_found()
def set_up(rendezvous: Rendezvous, host: str, settings: Settings, kind: type[Plane]) -> Plane:
    """Agree with all ranks and connect; collective. A rank that has failed still takes part in every gather.

    ``host`` is the name or address under which the other ranks' hosts know this one. Raise UsageError if a setting of
    this rank is wrong, CollectiveError if a rank could not set up or ranks differ.
    """
    prepare()  # before the other ranks wait for this one: it may compile for a minute
    own = Offer()
    failure: NetOffloadError | OSError | None = None
    try:
        settings = settings.with_environment()
        assert settings.offload is not None
        own = own_offer(settings.offload, requested_precision(settings.codec, settings.bound_k))
    except NetOffloadError as error:
        failure = error
    requested = settings.timeout_s, settings.offload, settings.codec, settings.bound_k, settings.only_moves
    key = _key_of(rendezvous.group, rendezvous.rank, *requested)
    with _held(key, own) as found, contextlib.ExitStack() as stack:
        hosts, names = _hosts_and_names(rendezvous([host, found and found.name]))
        shared = found if len(set(names)) == 1 else None
        offer, listeners = Offer(), None
        try:
            if failure is not None:
                raise failure
            if shared is None:
                address = own_address(lambda _: hosts, host)
                listeners = Listeners(rendezvous.size, address, own.marking or Marking())
                stack.callback(listeners.close)
                offer = replace(own, address=address, ports=listeners.ports, requires=settings.require)
            else:
                known = shared.offers[rendezvous.rank]
                number = next(shared.numbers)
                offer = replace(known, precision=own.precision, requires=settings.require, context=number)
        except (NetOffloadError, OSError) as error:
            offer, failure = Offer(failure=str(error)), error
        offers = [Offer.from_json(value) for value in rendezvous(offer.to_json())]
        agreed = _agree_together(rendezvous, offers, failure)
        if settings.only_moves and len({one.address for one in offers}) == 1:
            agreed = Agreement(None, agreed.marking, Offload.OFF)  # no link is slower than a codec
        if shared is not None:
            exchange = enter(shared.watch, offers[0].context, settings.timeout_s, settings.late_s)
        else:
            assert listeners is not None
            stack.pop_all()
            limits = settings.timeout_s, settings.late_s
            lanes = (Lane.TAGGED,) if settings.only_moves else TAGGED_LANES
            exchange = wire_up(rendezvous.rank, offers, listeners, agreed.marking.tos, *limits, agreed.coding, lanes)
            _keep(key, Shared(exchange.watch.shared, offers, own))
    try:
        return _plane_of(kind, exchange, agreed, offers, settings)
    except BaseException as error:  # the other ranks have their planes, and would wait for this one in their first call
        exchange.abort(error)
        raise


def wire_up(
    rank: int,
    offers: Sequence[Offer],
    listeners: Listeners,
    tos: int = Marking.tos,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    late_s: float = LATE_S_DEFAULT,
    coding: Quantiser | None = None,
    coded_lanes: Collection[Lane] = TAGGED_LANES,
) -> TcpExchange:
    """Connect this rank with the others; collective. The exchange closes ``listeners``. If a connection fails, all
    ranks raise.
    """
    for peer, offer in enumerate(offers):
        if len(offers) > 1 and not (offer.address and offer.ports):
            listeners.close()
            raise MalformedError(f"rank {peer} offered no address: install the same version everywhere")
    try:
        watch = Watch(Links(rank, offers, listeners, tos, timeout_s, coding, coded_lanes), timeout_s)
    except OSError as error:
        listeners.close()
        raise CollectiveError(f"rank {rank} cannot connect: {error.strerror}; raise `ulimit -n`") from error
    return enter(watch, FIRST_CONTEXT, timeout_s, late_s)


def enter(watch: Watch, number: int, timeout_s: float, late_s: float) -> TcpExchange:
    """Add a context to a watch, start the watch if it is new, and return the context's exchange; collective."""
    exchange = TcpExchange(watch.attach(number), timeout_s, late_s)
    try:
        watch.start()
        barrier(exchange)
    except BaseException as error:
        exchange.abort(error)
        raise
    return exchange


def _agree_together(
    rendezvous: Rendezvous, offers: Sequence[Offer], failure: NetOffloadError | OSError | None
) -> Agreement:
    """Return what the ranks agree on; where they do not, no rank ends before all have read the offers."""
    try:
        if failure is not None and not isinstance(failure, OSError):
            raise failure  # its message is clearer than that of agree(), which the other ranks raise
        agreed = agree(offers)
        raw = what_stays_raw(agreed, offers)
        if raw and any(offer.requires for offer in offers):
            raise CollectiveError(f"compression is required, but {raw}")
    except NetOffloadError:
        with contextlib.suppress(NetOffloadError):
            rendezvous(None)  # the store may end with a rank
        raise
    if rendezvous.rank == 0 and raw:
        warn_once(raw)
    return agreed


def _hosts_and_names(gathered: Sequence[Any]) -> tuple[list[str], list[str | None]]:
    """Return what the first gather brought: each rank's host, and the name of the connections that it could share."""
    for rank, value in enumerate(gathered):
        is_pair = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
        if not is_pair or not isinstance(value[1], str | None):
            raise MalformedError(
                f"rank {rank} sent {reprlib.repr(value)} where a host belongs: install the same version everywhere"
            )
    return [host for host, _ in gathered], [name for _, name in gathered]


def _plane_of(
    kind: type[Plane], exchange: TcpExchange, agreed: Agreement, offers: Sequence[Offer], settings: Settings
) -> Plane:
    quantise = agreed.quantiser
    if quantise is not None:
        quantise(np.zeros(8, dtype=np.float32))  # compiles here rather than in the first timed call
    account = NicAccount(None, exchange.tagged_connections)
    if agreed.offload is Offload.NIC:
        account = NicAccount.of_environment(exchange.tagged_connections)
    addresses, hops = [offer.address for offer in offers], agreed.rounded_hops(offers)
    return kind(exchange, agreed.precision, quantise, addresses, account, settings, hops, agreed.offload)


def what_stays_raw(agreed: Agreement, offers: Sequence[Offer]) -> str:
    """Return a line about ranks that rely on NICs and know none; empty: there are none, or they know how NICs round."""
    without = [rank for rank, offer in enumerate(offers) if offer.marking is None]
    if agreed.offload is not Offload.NIC or not without or len(offers) == 1:
        return ""
    remedy = f"${ENV_CONTROL} names a NIC's socket; with offload auto the ranks compress by themselves"
    if len(without) < len(offers):
        ranks = ", ".join(map(str, without))
        return f"rank {ranks} knows no NIC, so what it sends and receives is not compressed: {remedy}"
    return f"no rank knows a NIC, so nothing is compressed: {remedy}" if agreed.precision is None else ""


@functools.cache
def warn_once(warning: str) -> None:
    """Log a warning, however many communicators it holds for."""
    log.say("uncompressed", warning, level="warning")
