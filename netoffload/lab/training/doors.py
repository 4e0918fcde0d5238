"""Doors: how a worker's gradient becomes its next weights, by what torch users get (``netoffload.torch``).

=====================================  ==================================================================
method                                 door
=====================================  ==================================================================
sums of gradients                      ``DistributedOptimizer``: every gradient is the mean when backward
                                       ends
the same with a server                 likewise; a worker's sum comes from the server, which no user has
psgd, rsgd, pqasgd                     ``Periodic``
wa; a server's or aggregator's side    none: the method's ``step``, with a mean for the update
no exchange                            the optimizer alone: one worker, ``--parallel model``, torch's DDP
=====================================  ==================================================================

The doors get the connections that a run has already: TCP between processes, or queues between threads of one process.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import torch

from netoffload.collectives import Exchange, Quantise
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.replica import Replica
from netoffload.methods import Bucket, GradientReducer, Member, Memory, Sent, method_for
from netoffload.methods.buckets import cut
from netoffload.methods.registry import PQASGD_ITEMS
from netoffload.torch import CompressionState, DistributedOptimizer, Periodic
from netoffload.torch.staging import Staged, StagedSparse
from netoffload.torch.state import LANES
from netoffload.transport import Calls, CommInfo, DataPlane, Request, Settings
from netoffload.transport.info import NicAccount
from netoffload.transport.rounds.exchange import TcpExchange

AnyCalls = Calls[Any]  # the calls of a rank over a data plane of any kind

WHOLE_OCTETS: Final = 1 << 62  # size of a bucket that holds every model


class ThreadCalls(Calls[DataPlane]):
    """The calls of a rank that is a thread: nothing to account for but their time."""

    def __init__(self, exchange: Exchange, quantise: Quantise | None) -> None:
        """Join the ranks of ``exchange``; ``quantise`` rounds as the codec of its tagged channels does."""
        tcp = cast(TcpExchange, exchange)  # only what every exchange has is used
        super().__init__(DataPlane(tcp, None, quantise, (), NicAccount(None, tuple), Settings()))

    def run(self, call: Callable[[DataPlane], None], lanes: Any, calling: str = "") -> None:
        """See :meth:`Calls.run`."""
        self.start(call, lanes, calling).wait()

    def start(self, call: Callable[[DataPlane], None], lanes: Any, calling: str = "") -> Request:
        """See :meth:`Calls.start`."""
        return self._queue.start(lambda: self._carry_out(call, lanes, calling))

    def _carry_out(self, call: Callable[[DataPlane], None], lanes: Any, calling: str) -> None:
        started_s = time.perf_counter()
        call(self.plane)
        self.totals += CommInfo(1, seconds=time.perf_counter() - started_s)


class _RunState(CompressionState):
    """How a run's gradients or changes of weights travel, over connections that the run has already."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls, **options: Any) -> None:
        options |= {"seed": settings.seed, "batch": settings.batch, "error_feedback": settings.error_feedback}
        super().__init__(named_parameters=replica.travelling.items(), scale=None, start_step=0, **options)
        self._calls, self._replica = calls, replica

    @property
    def sent(self) -> Sent:
        """What this rank has sent."""
        return self.reducer().sent

    def submit(self, staged: Staged | StagedSparse, layers: Bucket, *, is_last: bool) -> Request:
        assert isinstance(staged, Staged), "the flat gradient is dense"
        self._replica.observe(self.layers.layout.offsets[layers[0]], staged.values())
        return self._submit(staged, layers, is_last=is_last)

    def _submit(self, staged: Staged, layers: Bucket, *, is_last: bool) -> Request:
        return super().submit(staged, layers, is_last=is_last)


class _ServedState(_RunState):
    """The state of a worker of a server, which no user's state has: the last rank adds the workers' payloads."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls) -> None:
        super().__init__(settings, replica, calls, offload="off")
        plane = calls.plane
        member = Member(plane.exchange, None, self.layers.layout, settings.seed, settings.error_feedback)
        method = method_for(settings.spec, member)
        assert isinstance(method, GradientReducer)
        self._method, self._workers = method, settings.nodes

    @property
    def sent(self) -> Sent:
        return self._method.sent

    def _submit(self, staged: Staged, layers: Bucket, *, is_last: bool) -> Request:
        def average(_: DataPlane) -> None:
            values = staged.values()
            np.divide(self._method.reduce(values, layers), np.float32(self._workers), out=values)

        return self.connected().start(average, LANES)

    def state_dict(self) -> Memory:
        return self._method.memory()

    def load_state_dict(self, state: Memory) -> None:
        self._method.remember(state)


class TimedOptimizer(DistributedOptimizer):
    """A ``DistributedOptimizer`` that times its buckets."""

    waited_s = 0.0  # in which backward waited for means, so far
    hidden_s = 0.0  # in which buckets travelled before that, so far; 0 if all travel as one
    has_buckets = True
    _busy_s = 0.0

    def synchronize(self) -> None:
        """See :meth:`DistributedOptimizer.synchronize`."""
        calls, started_s = self.compression.connected(), time.perf_counter()
        ended_s = calls.totals.seconds - self._busy_s
        super().synchronize()
        took_s, self._busy_s = calls.totals.seconds - self._busy_s, calls.totals.seconds
        waited_s = time.perf_counter() - started_s
        self.waited_s += waited_s
        # What ended before the wait was hidden, and of the bucket under way what the wait does not explain.
        self.hidden_s += max(ended_s, took_s - waited_s) if self.has_buckets else 0.0


@dataclasses.dataclass
class Door:
    """What the loop asks of a door; all ranks call each function together."""

    step: Callable[[], object]
    sent_so_far: Callable[[], Sent] = Sent
    finish: Callable[[], None] = lambda: None  # makes all replicas equal after the last iteration
    memory: Callable[[], Memory] = dict  # what this rank remembers
    remember: Callable[[Memory], None] = lambda _memory: None  # a run that calls it with memory goes on bit for bit
    timed: TimedOptimizer | None = None  # times the buckets of gradients; None: nothing travels during backward
    exchange: Exchange | None = None  # the connections; None: the run has none of its own

    @property
    def times(self) -> tuple[float, float, float]:
        """Seconds so far: of waiting for means in backward, of buckets that travelled before that, of adding."""
        waited_s, hidden_s = (self.timed.waited_s, self.timed.hidden_s) if self.timed else (0.0, 0.0)
        return waited_s, hidden_s, self.exchange.stopwatch.reduce_s if self.exchange else 0.0


def _gradient_state(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> _RunState:
    if settings.spec.has_server:
        return _ServedState(settings, replica, calls)
    return _RunState(settings, replica, calls, compressor=settings.method)


def door_for(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> Door:
    """Return this rank's door; the last ranks are aggregators or the server, if there are any."""
    exchange, spec = calls.plane.exchange, settings.spec
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.method} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    if not replica.travelling:
        replica.count_in(sent := Sent())
        return Door(replica.optimizer.step, lambda: sent)
    if spec.sums_gradients and exchange.rank < settings.nodes:
        return _averaging_gradients(settings, replica, calls)
    if spec.has_server:
        return _by_method(settings, replica, calls)
    return _averaging_weights(settings, replica, calls)


def _averaging_gradients(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> Door:
    """Return the door of gradients that become means during backward."""
    state = _gradient_state(settings, replica, calls)
    # Without buckets one bucket holds all: it leaves when backward ends, so nothing is hidden.
    octets = int(settings.bucket_mb * 1e6)
    optimizer = TimedOptimizer(replica.optimizer, state, bucket_octets=octets or WHOLE_OCTETS)
    optimizer.has_buckets = octets > 0
    stayed = state.layers.layout.count

    def step() -> None:
        if stayed < replica.gradient.size:
            replica.observe(stayed, replica.gradient[stayed:])
        optimizer.step()

    def remember(memory: Memory) -> None:
        state.load_state_dict(memory)
        replica.count_in(state.sent)

    replica.count_in(state.sent)  # a split model's activations count with its gradients
    return Door(step, lambda: state.sent, lambda: None, state.state_dict, remember, optimizer, calls.plane.exchange)


def _averaging_weights(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> Door:
    """Return the door of weights that are averaged after some iterations."""
    items = [item for item in settings.method.partition(":")[2].split(",") if item and not item.startswith("p=")]
    if settings.spec.compressor is not None and settings.sharing == "shared" and not items:
        items = ["rule=n", *PQASGD_ITEMS]
    periodic = Periodic(
        replica.module,
        replica.optimizer,
        every=settings.spec.period,
        method=f"{settings.spec.short}:{','.join(items)}",
        state=_RunState(settings, replica, calls, offload="off"),
    )

    def step() -> None:
        replica.observe(0, replica.gradient)
        periodic.step()

    memory, remember = periodic.state_dict, periodic.load_state_dict
    return Door(step, lambda: periodic.sent, periodic.finish, memory, remember, exchange=calls.plane.exchange)


def _by_method(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> Door:
    """Return the door of a method that no door of torch takes: every side of ``wa``, and servers."""
    sizes, plane = replica.layer_sizes, calls.plane
    buckets = cut(sizes, settings.bucket_mb * 1e6)
    member = Member(plane.exchange, plane.quantise, Layout(sizes), settings.seed, buckets=buckets)
    method = method_for(settings.spec, member)

    def update(total: Float32Array) -> None:
        np.divide(total, np.float32(settings.nodes), out=replica.gradient)
        replica.optimizer.step()

    def step() -> None:
        replica.observe(0, replica.gradient)
        method.step(replica.gradient, replica.parameters, update)

    memory, remember = method.memory, method.remember
    return Door(step, lambda: method.sent, memory=memory, remember=remember, exchange=plane.exchange)


def warm_up_exchange(settings: TrainSettings, replica: Replica, calls: AnyCalls, rounds: int) -> None:
    """Exchange zeros as a run's door will exchange values; the model's parameters stay as they are."""
    spec, exchange = settings.spec, calls.plane.exchange
    zeros = torch.from_numpy(replica.gradient)
    parameters = list(replica.travelling.values())
    if spec.sums_gradients and exchange.rank < settings.nodes:
        state = _gradient_state(settings, replica, calls)
        for _ in range(rounds if parameters else 0):
            travelling = zeros[: sum(one.numel() for one in parameters)].zero_()
            state.start(travelling, parameters, is_last=True).wait()
        return
    method = method_for(spec, Member(exchange, calls.plane.quantise, Layout(replica.layer_sizes), settings.seed))
    for _ in range(rounds):
        replica.gradient.fill(0)
        method.step(replica.gradient, replica.gradient, lambda _: None)
    method.finish(replica.gradient)
