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

from __future__ import annotations

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
from netoffload.lab.training.parallel import SplitReplica
from netoffload.lab.training.replica import Replica
from netoffload.methods import Bucket, GradientReducer, Member, Memory, Sent, method_for
from netoffload.methods.buckets import cut
from netoffload.methods.registry import PQASGD_ITEMS
from netoffload.torch import CompressionState, DistributedOptimizer, Periodic
from netoffload.torch.staging import Staged, StagedSparse
from netoffload.torch.state import LANES
from netoffload.transport import Calls, CommInfo, DataPlane, Request, Settings
from netoffload.transport.dataplane import TcpExchange
from netoffload.transport.info import NicAccount

AnyCalls = Calls[Any]
"""The calls of a rank over a data plane of any kind."""

WHOLE_OCTETS: Final = 1 << 62
"""Size of a bucket that holds every model."""


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


class Door:
    """No exchange after backward, and the base of the others."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, calls: AnyCalls | None = None, sent: Sent | None = None
    ) -> None:
        """Leave all to the optimizer."""
        self._optimizer, self._calls, self._sent = optimizer, calls, sent or Sent()

    @property
    def sent(self) -> Sent:
        """What this rank has sent."""
        return self._sent

    @property
    def waited_s(self) -> float:
        """Seconds of backward in which gradients were waited for, so far."""
        return 0.0

    @property
    def hidden_s(self) -> float:
        """Seconds in which buckets of gradients travelled during backward, so far."""
        return 0.0

    @property
    def sum_s(self) -> float:
        """Seconds that this rank has spent on adding gradients so far."""
        return self._calls.plane.exchange.stopwatch.reduce_s if self._calls else 0.0

    def step(self) -> None:
        """Make the next weights from the gradient that backward left; all ranks call it together."""
        self._optimizer.step()

    def finish(self) -> None:
        """Make all replicas equal after the last iteration; all ranks call it together."""

    def memory(self) -> Memory:
        """Return what this rank remembers. A run that passes it to :meth:`remember` goes on bit for bit."""
        return {}

    def remember(self, memory: Memory) -> None:
        """Take over what :meth:`memory` returned."""


class RunState(CompressionState):
    """How a run's gradients or changes of weights travel, over connections that the run has already."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls, **options: Any) -> None:
        """Remember nothing yet."""
        options |= {"seed": settings.seed, "batch": settings.batch, "error_feedback": settings.error_feedback}
        super().__init__(named_parameters=replica.travelling.items(), scale=None, start_step=0, **options)
        self._calls, self._replica = calls, replica

    @property
    def sent(self) -> Sent:
        """What this rank has sent."""
        return self.reducer().sent

    def submit(self, staged: Staged | StagedSparse, layers: Bucket, *, is_last: bool) -> Request:
        """See :meth:`CompressionState.submit`."""
        assert isinstance(staged, Staged), "the flat gradient is dense"
        self._replica.observe(self.layers.layout.offsets[layers[0]], staged.values())
        return self._submit(staged, layers, is_last=is_last)

    def _submit(self, staged: Staged, layers: Bucket, *, is_last: bool) -> Request:
        return super().submit(staged, layers, is_last=is_last)


class ServedState(RunState):
    """The state of a worker of a server, which no user's state has: the last rank adds the workers' payloads."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls) -> None:
        """Remember nothing yet."""
        super().__init__(settings, replica, calls, offload="off")
        plane = calls.plane
        member = Member(plane.exchange, None, self.layers.layout, settings.seed, settings.error_feedback)
        method = method_for(settings.spec, member)
        assert isinstance(method, GradientReducer)
        self._method, self._workers = method, settings.nodes

    @property
    def sent(self) -> Sent:
        """See :attr:`RunState.sent`."""
        return self._method.sent

    def _submit(self, staged: Staged, layers: Bucket, *, is_last: bool) -> Request:
        def average(_: DataPlane) -> None:
            values = staged.values()
            np.divide(self._method.reduce(values, layers), np.float32(self._workers), out=values)

        return self.connected().start(average, LANES)

    def state_dict(self) -> Memory:
        """See :meth:`CompressionState.state_dict`."""
        return self._method.memory()

    def load_state_dict(self, state: Memory) -> None:
        """See :meth:`CompressionState.load_state_dict`."""
        self._method.remember(state)


class TimedOptimizer(DistributedOptimizer):
    """A ``DistributedOptimizer`` that times its buckets.

    Attributes:
        waited_s: seconds in which backward waited for means, so far.
        hidden_s: seconds in which buckets travelled before that, so far.
    """

    waited_s = hidden_s = 0.0
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
        self.hidden_s += max(ended_s, took_s - waited_s)


class GradientDoor(Door):
    """Gradients become means during backward.

    Attributes:
        state: how they travel.
    """

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls) -> None:
        """Watch the replica's gradients."""
        self.state = state = _gradient_state(settings, replica, calls)
        octets = int(settings.bucket_mb * 1e6) or WHOLE_OCTETS
        self._timed = TimedOptimizer(replica.optimizer, state, bucket_octets=octets)
        super().__init__(self._timed, calls)
        self._replica, self._is_overlapping = replica, settings.bucket_mb > 0
        self._share_counters()

    @property
    def sent(self) -> Sent:
        """See :attr:`Door.sent`."""
        return self.state.sent

    @property
    def waited_s(self) -> float:
        """See :attr:`Door.waited_s`."""
        return self._timed.waited_s

    @property
    def hidden_s(self) -> float:
        """See :attr:`Door.hidden_s`."""
        return self._timed.hidden_s if self._is_overlapping else 0.0

    def step(self) -> None:
        """See :meth:`Door.step`."""
        stayed = self.state.layers.layout.count
        if stayed < self._replica.gradient.size:
            self._replica.observe(stayed, self._replica.gradient[stayed:])
        super().step()

    def memory(self) -> Memory:
        """See :meth:`Door.memory`."""
        return self.state.state_dict()

    def remember(self, memory: Memory) -> None:
        """See :meth:`Door.remember`."""
        self.state.load_state_dict(memory)
        self._share_counters()

    def _share_counters(self) -> None:
        """Count the activations of a split model with its gradients; refuse what cannot be reduced."""
        sent = self.sent
        if isinstance(self._replica, SplitReplica):
            self._replica.activations.sent = sent


def _gradient_state(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> RunState:
    if settings.spec.has_server:
        return ServedState(settings, replica, calls)
    return RunState(settings, replica, calls, compressor=settings.method)


class PeriodicDoor(Door):
    """Weights are averaged after some iterations."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls) -> None:
        """Begin with the replica's weights."""
        super().__init__(replica.optimizer, calls)
        self._replica = replica
        items = [item for item in settings.method.partition(":")[2].split(",") if item and not item.startswith("p=")]
        if settings.spec.compressor is not None and settings.sharing == "shared" and not items:
            items = ["rule=n", *PQASGD_ITEMS]
        self._periodic = Periodic(
            replica.module,
            replica.optimizer,
            every=settings.spec.period,
            method=f"{settings.spec.short}:{','.join(items)}",
            state=RunState(settings, replica, calls, offload="off"),
        )

    @property
    def sent(self) -> Sent:
        """See :attr:`Door.sent`."""
        return self._periodic.sent

    def step(self) -> None:
        """See :meth:`Door.step`."""
        self._replica.observe(0, self._replica.gradient)
        self._periodic.step()

    def finish(self) -> None:
        """See :meth:`Door.finish`."""
        self._periodic.finish()

    def memory(self) -> Memory:
        """See :meth:`Door.memory`."""
        return self._periodic.state_dict()

    def remember(self, memory: Memory) -> None:
        """See :meth:`Door.remember`."""
        self._periodic.load_state_dict(memory)


class MethodDoor(Door):
    """A rank's side of a method that no door of torch takes: every one of ``wa``, and servers."""

    def __init__(self, settings: TrainSettings, replica: Replica, calls: AnyCalls) -> None:
        """Nothing is sent yet."""
        sizes, plane = replica.layer_sizes, calls.plane
        buckets = cut(sizes, settings.bucket_mb * 1e6)
        member = Member(plane.exchange, plane.quantise, Layout(sizes), settings.seed, buckets=buckets)
        self._method = method_for(settings.spec, member)
        super().__init__(replica.optimizer, calls, self._method.sent)
        self._replica, self._workers = replica, settings.nodes

    def step(self) -> None:
        """See :meth:`Door.step`."""
        replica = self._replica
        replica.observe(0, replica.gradient)
        self._method.step(replica.gradient, replica.parameters, self._update)

    def memory(self) -> Memory:
        """See :meth:`Door.memory`."""
        return self._method.memory()

    def remember(self, memory: Memory) -> None:
        """See :meth:`Door.remember`."""
        self._method.remember(memory)

    def _update(self, total: Float32Array) -> None:
        np.divide(total, np.float32(self._workers), out=self._replica.gradient)
        self._optimizer.step()


def door_for(settings: TrainSettings, replica: Replica, calls: AnyCalls) -> Door:
    """Return this rank's door; the last ranks are aggregators or the server, if there are any.

    Raises:
        UsageError: the number of ranks is wrong, or a tagged ring has no codec to round by.
    """
    exchange, spec = calls.plane.exchange, settings.spec
    if exchange.size != settings.ranks:
        raise UsageError(
            f"{settings.method} with {settings.nodes} workers needs {settings.ranks} ranks, not {exchange.size}"
        )
    if not replica.travelling:
        return Door(replica.optimizer, calls, replica.activations.sent if isinstance(replica, SplitReplica) else None)
    if spec.sums_gradients and exchange.rank < settings.nodes:
        return GradientDoor(settings, replica, calls)
    return (MethodDoor if spec.has_server else PeriodicDoor)(settings, replica, calls)


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
