"""What hook, optimizer and periodic averaging share: a rank's connections, and its memory of one model's layers."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from netoffload.collectives import allgather_payloads
from netoffload.config import Offload
from netoffload.errors import NetOffloadError, UsageError
from netoffload.methods import Bucket, Member, Memory, Selection, SelectiveReducer, parse
from netoffload.methods.floats import RingReducer, ring_octets
from netoffload.methods.scales import auto_rms
from netoffload.torch.first_gradient import FirstGradient
from netoffload.torch.layers import Layers
from netoffload.torch.options import Options
from netoffload.torch.ranks import connect
from netoffload.torch.staging import Staged, StagedSparse
from netoffload.transport import Calls, CommInfo, DataPlane, Lane, Request
from netoffload.transport.info import with_nic

T = TypeVar("T")

FORMAT: Final = 1
"""Format number of what :meth:`CompressionState.state_dict` returns."""

_SAVED: Final = {"rank", "size", "sizes", "step", "cut", "exact", "method", "memory"}

LANES: Final = (Lane.TAGGED, Lane.UNTAGGED)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a state did so far, seen from this rank."""

    steps: int  # number of training steps, those before a resume included
    ring_octets: int  # that a rank of an uncompressed ring sends for this process's gradients, as float32
    sent_octets: int  # that this process or its NIC sent, without headers
    scales: dict[str, float]  # by parameter, the factor of its values in the latest step that compressed them
    vanished: int  # number of buckets whose sum was rounded to nothing although a gradient was not 0
    info: CommInfo
    """Octets and times. The NIC's part is that of the connections since the latest ``close``."""

    @property
    def ratio(self) -> float:
        """Octets of an uncompressed ring per octet sent; 1.0 if nothing was sent."""
        return self.ring_octets / self.sent_octets if self.sent_octets else 1.0


class CompressionState:
    """How one model's gradients travel, and what this rank remembers of them.

    The ranks connect when the first gradient comes; that is collective. Pickling keeps the memory and the options, but
    neither the group nor the connections.

    Args:
        group: the ranks; None: the default group, or all ranks that the launcher started.
        named_parameters: ``model.named_parameters()``; needed by ``exact_names``, ``exact_last``, ``start_step=0``.
        options: fields of :class:`~netoffload.torch.options.Options`, but not the backend's ``min_octets``.
    """

    _calls: Calls[DataPlane] | None = None
    _weights: Calls[DataPlane] | None = None
    _reducer: SelectiveReducer | None = None
    _cut: list[Bucket]
    _step: int = 0
    _octets: int = 0
    _before: CommInfo = CommInfo()  # what the connections did that are closed
    _ring_octets_before: int = 0  # of their gradients
    _resumed_after: int | None = None
    """The step after which a state was saved that a caller has loaded."""
    first: FirstGradient | None = None
    """What this state waits for; None: it came, or nothing is to be compressed."""
    _divisor: int | None = None  # divides sums; None: the number of ranks does
    _exact: frozenset[int] = frozenset()
    _restored: Memory | None = None  # the loaded state, until all layers are known

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        **options: Any,
    ) -> None:
        if "min_octets" in options:
            raise UsageError("min_octets is an option of the backend: exact_below leaves small parameters exact here")
        self._begin(group, Layers(named_parameters), Options(**options))
        if self.options.compressor is not None or self.options.settings().offload is not Offload.OFF:
            self.first = FirstGradient(require=self.options.require)
        if self.options.needs_names and not self.layers.are_named:
            raise UsageError("exact_names, exact_last and start_step=0 need named_parameters=model.named_parameters()")

    def start(
        self, tensor: torch.Tensor, parameters: Sequence[torch.Tensor], *, is_last: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket of gradients; collective, with the same bucket on all ranks.

        ``tensor`` has the gradients of ``parameters`` one after the other, and becomes their mean: the Future's value.
        ``is_last``: no other bucket of this step follows.
        """
        staged = StagedSparse(tensor) if tensor.is_sparse else Staged(tensor)
        request = self.submit(staged, self.layers.bucket(parameters), is_last=is_last)
        ended: torch.futures.Future[None] = torch.futures.Future(devices=staged.devices)  # type: ignore[arg-type]
        request.add_done_callback(lambda _: ended.set_result(None))

        def mean(_: torch.futures.Future[None]) -> torch.Tensor:
            if request.error is not None:
                raise request.error
            return staged.put_back()

        return ended.then(mean)

    def submit(self, staged: Staged | StagedSparse, layers: Bucket, *, is_last: bool) -> Request:
        """Begin to average a staged tensor, and leave the mean there; arguments as for :meth:`start`.

        Sparse tensors and float64 travel exact.
        """
        calls, is_exact, pieces = self.connected(), self._step < self.options.start_step, self._pieces(layers)
        self.count(staged.octets, is_last=is_last)
        # Without names the first step shows which layers there are; until its last bucket all buckets travel exact.
        is_known = is_last or self.layers.are_named or self._restored is not None
        reducer = self.reducer() if is_known or self._reducer is not None else None

        def average(plane: DataPlane) -> None:
            if isinstance(staged, StagedSparse):
                staged.average(allgather_payloads(plane.exchange, staged.payload()))
                return
            values, size = staged.values(), self._divisor or plane.exchange.size
            if reducer is not None and values.dtype == np.float32:
                reducer.reduce(values, layers, exact=is_exact, pieces=pieces, divisor=size, half=staged.half)
                return
            RingReducer(parse("inc", batch=1), Member(plane.exchange)).average(values, layers, staged.half, size)

        return calls.start(average, LANES)

    def count(self, octets: int, *, is_last: bool) -> None:
        """Count a bucket of gradients of ``octets`` as float32; the last one of a step counts the step."""
        self._octets += octets
        self._step += is_last
        self.expect_no_gradient()

    def expect_no_gradient(self) -> None:
        """Wait for no first gradient any more: one has come, or the state carries only weights."""
        if self.first is not None:
            self.first.came()
            self.first = None

    def connected(self) -> Calls[DataPlane]:
        """Return the connections; the first call makes them, and is collective."""
        if self._calls is None:
            exact_steps = min(self._step, self.options.start_step)  # a rank that loaded no state counts from 0
            more = {"exact_steps_so_far": exact_steps, "resumed_after_step": self._resumed_after}
            options = {**self.options.compared(), **self.declared, **more}
            self._calls = connect(self.group, self.options.settings(), options)
        return self._calls

    def weights(self) -> Calls[DataPlane]:
        """Return the connections of what must keep every bit; the first call makes them, and is collective."""
        if self._weights is None:
            self._weights = connect(self.group, self.options.for_weights(), {"offload": str(self.options.offload)})
        return self._weights

    def run(self, call: Callable[[DataPlane], T]) -> T:
        """Carry out a caller's function after the calls under way, and return what it returns."""
        results: list[T] = []
        self.connected().run(lambda plane: results.append(call(plane)), LANES)
        return results[0]

    def reducer(self) -> SelectiveReducer:
        """Return the reducer that sums gradients; all layers must be known."""
        if self._reducer is None:
            plane, options, layout = self.connected().plane, self.options, self.layers.layout
            codec = plane.precision.codec if plane.precision else ""
            spec = options.spec() if plane.precision or options.compressor else parse("inc", batch=1)
            feeds, owners = options.error_feedback, self.layers.owners
            member = Member(plane.exchange, plane.quantise, layout, options.seed, feeds, owners=owners)
            restored, here = self._restored, [plane.exchange.rank, plane.exchange.size]
            if restored is not None and [restored["rank"], restored["size"]] != here:
                raise UsageError(
                    f"the state is rank {restored['rank']}'s of {restored['size']}, this is rank {here[0]} of "
                    f"{here[1]}: load the state that this rank saved, or begin without it if there are more or fewer "
                    "ranks"
                )
            self._kind = options.compressor or ("a codec" if plane.precision else "no codec")
            self._kind += " and error feedback" * feeds
            if restored is not None and (was := restored.get("method", self._kind)) != self._kind:
                raise UsageError(f"the state was saved with {was}, this run has {self._kind}: give it the same options")
            self.layers.is_closed = True
            self._exact = self.layers.exact(options) if restored is None else frozenset(restored["exact"])
            selection = Selection(self._exact, options.scale, auto_rms(spec, codec), plane.keeps_bits)
            self._reducer = SelectiveReducer(spec, member, selection)
            if restored is not None:
                self._reducer.remember(restored["memory"])
                self._restored = None
        return self._reducer

    def report(self) -> Report:
        """Return what this state did so far; ask the NIC, if there is one."""
        calls, reducer, names = self._calls, self._reducer, self.layers.names
        scales = {} if reducer is None else {names[layer]: scale for layer, scale in reducer.scales().items()}
        vanished = 0 if reducer is None else reducer.vanished
        ring, info = self._ring_octets_before, self._before
        if calls is not None:
            ring += ring_octets(self._octets, calls.plane.exchange.size)
            here = with_nic(calls.totals, calls.plane.account.read(), None)
            info = dataclasses.replace(info + here, nic=here.nic, nic_counters=here.nic_counters)
        return Report(self._step, ring, info.payload_octets, scales, vanished, info)

    def state_dict(self) -> Memory:
        """Return what this rank remembers, for :meth:`load_state_dict`; call it between two steps.

        It holds residuals, scales, steps of random streams, and how buckets are cut. Load it on the same rank of an
        equal number of ranks. If it was saved after the second step or later, the resumed run gives the bits of an
        uninterrupted one.
        """
        if self._restored is not None:
            return self._restored
        if self._reducer is None or self._calls is None:
            return {}
        exchange = self._calls.plane.exchange
        return {
            "format": FORMAT,
            "rank": exchange.rank,
            "size": exchange.size,
            "sizes": list(self.layers.layout.sizes),
            "step": self._step,
            "cut": list(self._cut),
            "exact": sorted(self._exact),
            "method": self._kind,
            "memory": self._reducer.memory(),
        }

    def load_state_dict(self, state: Memory) -> None:
        """Take over what :meth:`state_dict` returned.

        That of a state to which no gradient had come lets this one begin anew. UsageError if another model did. The
        next gradient raises one if another rank or another method did, or if only some ranks loaded theirs.
        """
        self._take_over(state)
        self._resumed_after = self._step if state else None

    def _take_over(self, state: Memory) -> None:
        if not state:
            self._reducer = self._restored = None
            self._step, self._cut = 0, []
            return
        if state.get("format") != FORMAT:
            raise UsageError(f"the state has format {state.get('format')}; this program reads {FORMAT}")
        if missing := sorted(_SAVED - state.keys()) or sorted({"inner"} - state["memory"].keys()):
            raise UsageError(f"the state has no {', '.join(missing)}: it was not made by state_dict(), or is cut")
        self.layers.expect(state["sizes"])
        self._reducer, self._restored = None, state
        self._step, self._cut = state["step"], [tuple(bucket) for bucket in state["cut"]]

    def close(self) -> None:
        """Close the connections; the next gradient connects again."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None
        if (calls := self._calls) is not None:
            if held := self.state_dict():
                self._take_over(held)
            reading = None
            with contextlib.suppress(NetOffloadError):  # a NIC that has ended
                reading = calls.plane.account.read()
            self._calls = None
            calls.close()
            self._before += with_nic(calls.totals, reading, None)
            self._ring_octets_before += ring_octets(self._octets, calls.plane.exchange.size)
            self._octets = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled."""
        return {
            "options": vars(self.options),
            "names": self.layers.names * self.layers.are_named,
            "memory": self.state_dict(),
        }

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Take over what was pickled, with the default group; parameters get their saved names as they come."""
        self._begin(None, Layers(None, pickled["names"]), Options(**pickled["options"]))
        self.load_state_dict(pickled["memory"])

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressionState:
        """Return a state of the copied parameters with the same memory and group, not connected."""
        copied = type(self).__new__(type(self))
        copied._begin(self.group, copy.deepcopy(self.layers, memo), self.options)
        copied.load_state_dict(copy.deepcopy(self.state_dict(), memo))
        return copied

    def _begin(self, group: dist.ProcessGroup | None, layers: Layers, options: Options) -> None:
        self.group, self.layers, self.options = group, layers, options
        self._cut = []
        self.declared: dict[str, Any] = {}
        """What a door adds to the options that ranks compare when they connect, as JSON values."""

    def _pieces(self, layers: Bucket) -> list[Bucket]:
        """Return the buckets in which these layers are summed: those of earlier steps, if together they fill this one.

        After a resume DDP begins with other buckets than the interrupted run had. A float's place in its bucket decides
        the order in which the ranks' values are added, and so its bits.
        """
        inside = [bucket for bucket in self._cut if set(bucket) <= set(layers)]
        if sum(map(len, inside)) == len(layers):
            return inside
        self._cut = [bucket for bucket in self._cut if set(bucket).isdisjoint(layers)] + [layers]
        return [layers]
