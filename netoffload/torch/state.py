"""What the doors share: one rank's connections, and what it remembers of the layers of one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from netoffload.errors import UsageError
from netoffload.methods import Bucket, Member, Memory, Selection, SelectiveReducer, parse
from netoffload.methods.floats import RingReducer, ring_octets
from netoffload.methods.selective import auto_rms
from netoffload.torch.layers import Layers
from netoffload.torch.options import Options
from netoffload.torch.ranks import connect
from netoffload.torch.staging import Staged
from netoffload.transport import Calls, CommInfo, DataPlane, Lane, Request
from netoffload.transport.info import with_nic

T = TypeVar("T")

FORMAT: Final = 1
"""Of what :meth:`CompressionState.state_dict` returns."""

LANES: Final = (Lane.TAGGED, Lane.UNTAGGED)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a state did so far, seen from this rank.

    Attributes:
        steps: of training.
        ring_octets: what a rank of a plain ring sends for the gradients of these steps, as float32.
        sent_octets: what this rank or its NIC sent, headers excluded.
        scales: by parameter, what its values were multiplied by in the latest step that compressed them.
        info: octets and times of the connections.
    """

    steps: int
    ring_octets: int
    sent_octets: int
    scales: dict[str, float]
    info: CommInfo

    @property
    def ratio(self) -> float:
        """Octets of a plain ring for each octet sent; 1.0 if nothing was sent."""
        return self.ring_octets / self.sent_octets if self.sent_octets else 1.0


class CompressionState:
    """How one model's gradients travel, and what this rank remembers of them.

    Nothing is connected before the first gradient comes; that is collective. Pickling keeps what is remembered, not the
    group nor the connections.

    Args:
        group: the ranks; None: the default group, or all ranks that the launcher started.
        named_parameters: ``model.named_parameters()``; needed by ``exact_names`` and ``exact_last``.
        options: fields of :class:`~netoffload.torch.options.Options`.

    Raises:
        UsageError: an option that cannot be.
    """

    _calls: Calls[DataPlane] | None = None
    _reducer: SelectiveReducer | None = None
    _cut: list[Bucket]
    _step: int = 0
    _octets: int = 0
    _exact: frozenset[int] = frozenset()
    _restored: Memory | None = None
    """What was loaded, until all layers are known."""

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
        **options: Any,
    ) -> None:
        """Remember nothing yet."""
        self._begin(group, Layers(named_parameters), Options(**options))
        if self.options.needs_names and not self.layers.are_named:
            raise UsageError("exact_names and exact_last need named_parameters=model.named_parameters()")

    def start(
        self, tensor: torch.Tensor, parameters: Sequence[torch.Tensor], *, is_last: bool
    ) -> torch.futures.Future[torch.Tensor]:
        """Begin to average a bucket of gradients; collective, with the same bucket on all ranks.

        Args:
            tensor: the gradients of ``parameters``, one behind the other; becomes their mean.
            parameters: of the model.
            is_last: no other bucket of this step follows.

        Returns:
            A Future of ``tensor``.

        Raises:
            UsageError: a type that cannot be summed.
            CollectiveError: the ranks could not connect.
        """
        staged = Staged(tensor)
        request = self.submit(staged, self.layers.bucket(parameters), is_last=is_last)
        ended: torch.futures.Future[None] = torch.futures.Future(devices=staged.devices)  # type: ignore[arg-type]
        request.add_done_callback(lambda _: ended.set_result(None))

        def mean(_: torch.futures.Future[None]) -> torch.Tensor:
            if request.error is not None:
                raise request.error
            return staged.put_back()

        return ended.then(mean)

    def submit(self, staged: Staged, layers: Bucket, *, is_last: bool) -> Request:
        """Do the same for a tensor that is staged already, and leave it there; arguments as of :meth:`start`."""
        calls, is_exact, pieces = self.connected(), self._step < self.options.start_step, self._pieces(layers)
        self.count(staged.octets, is_last=is_last)
        is_known = is_last or self.layers.are_named or self._restored is not None
        reducer = self.reducer() if is_known or self._reducer is not None else None

        def average(plane: DataPlane) -> None:
            values = staged.values()
            if reducer is None:
                RingReducer(parse("inc", batch=1), Member(plane.exchange)).reduce(values)
            else:
                reducer.reduce(values, layers, exact=is_exact, pieces=pieces)
            np.divide(values, np.float32(plane.exchange.size), out=values)

        return calls.start(average, LANES)

    def count(self, octets: int, *, is_last: bool) -> None:
        """Take note of a bucket of gradients, ``octets`` as float32, of a step."""
        self._octets += octets
        self._step += is_last

    def connected(self) -> Calls[DataPlane]:
        """Return the connections; collective at the first call.

        Raises:
            CollectiveError: some rank did not come, or ranks differ in what they were asked for.
        """
        if self._calls is None:
            self._calls = connect(self.group, self.options.settings())
        return self._calls

    def run(self, call: Callable[[DataPlane], T]) -> T:
        """Carry out a call of one's own behind those under way, and return what it returns.

        Raises:
            CollectiveError: what went wrong with it.
        """
        results: list[T] = []
        self.connected().run(lambda plane: results.append(call(plane)), LANES)
        return results[0]

    def reducer(self) -> SelectiveReducer:
        """Return what sums gradients; all layers are known.

        Raises:
            UsageError: what :meth:`load_state_dict` took over belongs to another rank.
        """
        if self._reducer is None:
            plane, options, layout = self.connected().plane, self.options, self.layers.layout
            codec = plane.precision.codec if plane.precision else ""
            spec = options.spec() if plane.precision or options.compressor else parse("inc", batch=1)
            member = Member(plane.exchange, plane.quantise, layout, options.seed, options.error_feedback)
            restored, here = self._restored, [plane.exchange.rank, plane.exchange.size]
            if restored is not None and [restored["rank"], restored["size"]] != here:
                raise UsageError(
                    f"the state is rank {restored['rank']}'s of {restored['size']}, this is rank {here[0]} of "
                    f"{here[1]}: load what this rank saved"
                )
            self._exact = self.layers.exact(options) if restored is None else frozenset(restored["exact"])
            selection = Selection(self._exact, options.scale, auto_rms(spec, codec))
            self._reducer = SelectiveReducer(spec, member, selection)
            if restored is not None:
                self._reducer.remember(restored["memory"])
                self._restored = None
        return self._reducer

    def report(self) -> Report:
        """Return what this state did so far; asks the NIC, if there is one.

        Raises:
            ControlError: the NIC does not answer.
        """
        calls, reducer, names = self._calls, self._reducer, self.layers.names
        scales = {} if reducer is None else {names[layer]: scale for layer, scale in reducer.scales().items()}
        if calls is None:
            return Report(self._step, 0, 0, scales, CommInfo())
        info = with_nic(calls.totals, calls.plane.account.read(), None)
        ring = ring_octets(self._octets, calls.plane.exchange.size)
        return Report(self._step, ring, info.payload_octets, scales, info)

    def state_dict(self) -> Memory:
        """Return what is remembered, for :meth:`load_state_dict` on the same rank of as many; between two steps.

        It holds residuals, scales, steps of random streams, and how buckets are cut. A run that takes it over from the
        second step on gives the bits that the uninterrupted one gives.
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
            "memory": self._reducer.memory(),
        }

    def load_state_dict(self, state: Memory) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            UsageError: another format, or another model.
        """
        if not state:
            return
        if state.get("format") != FORMAT:
            raise UsageError(f"the state has format {state.get('format')}; this program reads {FORMAT}")
        self.layers.expect(state["sizes"])
        self._reducer, self._restored = None, state
        self._step, self._cut = state["step"], [tuple(bucket) for bucket in state["cut"]]

    def close(self) -> None:
        """Close the connections; the next gradient would connect again."""
        if (calls := self._calls) is not None:
            self.load_state_dict(self.state_dict())
            self._calls = None
            calls.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled."""
        options = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        return {"options": options, "names": self.layers.names * self.layers.are_named, "memory": self.state_dict()}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        """Take over what was pickled; the group is the default one, parameters get their names as they come."""
        self._begin(None, Layers(None, pickled["names"]), Options(**pickled["options"]))
        self.load_state_dict(pickled["memory"])

    def _begin(self, group: dist.ProcessGroup | None, layers: Layers, options: Options) -> None:
        self.group, self.layers, self.options = group, layers, options
        self._cut = []

    def _pieces(self, layers: Bucket) -> list[Bucket]:
        """Return the buckets in which these layers are summed: those of the steps before, if they fill this one.

        After a resume DDP begins with other buckets than those with which the run went on before. A float's place in
        its bucket decides in which order the ranks' values are added.
        """
        inside = [bucket for bucket in self._cut if set(bucket) <= set(layers)]
        if sum(map(len, inside)) == len(layers):
            return inside
        self._cut = [bucket for bucket in self._cut if set(bucket).isdisjoint(layers)] + [layers]
        return [layers]
