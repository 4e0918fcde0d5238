"""FSDP2 with compressed gradients: one line after ``fully_shard``.

::

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    state = compress(model, codec="packed", bound=10)

FSDP2 lets a module bring its own collectives (``set_custom_reduce_scatter``, ``set_custom_all_gather``)::

    backward ── gradients of a module, rank 0's rows first ── reduce-scatter, compressed ─► this rank's rows of the mean
    forward, backward ── this rank's rows of the parameters ── all-gather, exact ─► the parameters, equal on every rank

Each module's gradients are a bucket. Its layers are the parts of the parameters: what one rank gets of one of them. So
scales, exact layers and residuals are those of the other doors (:class:`~netoffload.torch.state.CompressionState`), and
all names are known from the start.

With error feedback a rank keeps the residuals of the whole model, not only of its shard: it compresses what it sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter  # documented, but not exported

from netoffload import log
from netoffload.compressors import Layout
from netoffload.errors import UsageError
from netoffload.methods import Bucket, Member, Memory, parse
from netoffload.methods.scattered import RingScatter
from netoffload.torch.backend_reductions import move_to_all
from netoffload.torch.backend_words import Words
from netoffload.torch.backend_work import CallWork
from netoffload.torch.layers import Layers
from netoffload.torch.staging import Staged
from netoffload.torch.state import LANES, CompressionState, Report
from netoffload.transport import CommInfo, DataPlane

DOOR: Final = "fsdp"


def compress(module: nn.Module, **options: Any) -> ShardedState:
    """Let gradients of all FSDP modules in ``module`` travel compressed, and their parameters exact.

    Call it after ``fully_shard``, and before the first backward pass. ``options`` are fields of
    :class:`~netoffload.torch.options.Options`. With a replicate dimension (HSDP) they hold for the shard dimension;
    torch sums over the other one.
    """
    names = {parameter: name for name, parameter in module.named_parameters()}
    sharded: dict[Any, tuple[str, FSDPModule]] = {}
    for name, one in module.named_modules():
        if isinstance(one, FSDPModule):
            sharded.setdefault(one._get_fsdp_state(), (name, one))  # modules sharded together have one state
    # Torch has no public list of what a module reduces together, nor of its order.
    groups = [(name, one, each) for state, (name, one) in sharded.items() for each in state._fsdp_param_groups]
    meshes = {tuple(dist.get_process_group_ranks(each._reduce_scatter_process_group)): each for _, _, each in groups}
    if len(meshes) != 1:
        found = (
            "no module here has sharded parameters" if not meshes else "modules here are sharded over several meshes"
        )
        raise UsageError(f"{found}: call compress after fully_shard, and for the modules of each mesh by themselves")
    (group,) = (each._reduce_scatter_process_group for each in meshes.values())
    parts = [
        [
            (
                names[each.sharded_param],
                torch.empty(each.sharded_param.shape, device="meta", requires_grad=True),
                each.padded_sharded_param_size.numel(),
            )
            for each in param_group.fsdp_params
            if each.sharded_param.requires_grad
        ]
        for _, _, param_group in groups
    ]
    state, first = ShardedState(group, Shards(parts, group.size()), **options), 0
    gather = Gather(state)
    for (name, one, _), of_unit in zip(groups, parts, strict=True):
        layers = tuple(range(first, first + group.size() * len(of_unit)))
        first += len(layers)
        one.set_custom_reduce_scatter(Scatter(state, Unit(name, layers, sum(length for _, _, length in of_unit))))
        one.set_custom_all_gather(gather)
    return state


@dataclasses.dataclass(frozen=True)
class Unit:
    """The parameters that one FSDP module gathers and reduces together."""

    name: str  # of the module
    layers: Bucket  # rank 0's part of each parameter, then rank 1's, ...
    row_values: int  # length of a rank's parts together


class Shards(Layers):
    """The parts of all parameters; a part has the name of its parameter, of which it may be a padded rest.

    ``units`` has, by module, each parameter's name, a stand-in without memory, and the length of a part.
    """

    def __init__(self, units: Sequence[Sequence[tuple[str, Tensor, int]]], ranks: int) -> None:
        parts = [(rank, part) for unit in units for rank in range(ranks) for part in unit]
        super().__init__([(name, parameter) for _, (name, parameter, _) in parts])
        self._lengths = tuple(length for _, (_, _, length) in parts)
        self.owners = tuple(rank for rank, _ in parts)

    @property
    def layout(self) -> Layout:
        """Lengths of all parts."""
        return Layout(self._lengths)

    def expect(self, sizes: Sequence[int]) -> None:
        """Raise UsageError if a saved state has parts of other sizes."""
        if tuple(sizes) != self._lengths:
            raise UsageError("the state belongs to another model, or to another number of ranks: begin without it")


class ShardedState(CompressionState):
    """How the gradients of one model travel that FSDP2 has sharded; :func:`compress` makes it.

    A step is a backward pass that reduces. ``report()`` counts gradients only; :attr:`gathered` has the parameters.
    """

    def __init__(self, group: ProcessGroup, shards: Shards, **options: Any) -> None:
        super().__init__(group, named_parameters=(), **options)
        self.layers, self.ranks = shards, dist.get_process_group_ranks(group)
        self.declared.update(door=DOOR)
        if self.first is not None:
            self.first.reason = "FSDP2 reduced nothing: it shards over one rank, or no backward pass has gradient sync"
        self._came: set[Unit] = set()
        self._odd: set[Unit] = set()

    @property
    def gathered(self) -> CommInfo:
        """What the all-gathers of parameters did; they keep every bit."""
        return CommInfo() if self._weights is None else self._weights.totals

    def report(self) -> Report:
        """See :meth:`CompressionState.report`; ``ring_octets`` are those of a reduce-scatter, scales this rank's."""
        self._end_step()
        report, rank = super().report(), dist.get_rank(self.group)
        scales = {} if self._reducer is None else self._reducer.scales()
        mine = {self.layers.names[one]: scale for one, scale in scales.items() if self.layers.owners[one] == rank}
        return dataclasses.replace(report, ring_octets=report.ring_octets // 2, scales=mine)

    def state_dict(self) -> Memory:
        """See :meth:`CompressionState.state_dict`; save it beside what ``torch.distributed.checkpoint`` saves."""
        self._end_step()
        return super().state_dict()

    def reduce_scatter(self, unit: Unit, output: Tensor, values: Tensor, divisor: int) -> None:
        """Leave in ``output`` this rank's part of a unit's gradients, summed over all ranks and divided; collective."""
        if unit in self._came:
            self._end_step()
        self._came.add(unit)
        staged = Staged(values)
        if staged.values().dtype != np.float32 or values.numel() != len(self.ranks) * unit.row_values:
            self._note_odd(unit, values)
            self._scatter_exact(staged, divisor)
        else:
            self._divisor = divisor
            CallWork(self.submit(staged, unit.layers, is_last=False), [output], self.ranks).wait()
        start = dist.get_rank(self.group) * output.numel()
        output.copy_(torch.from_numpy(staged.values()[start : start + output.numel()]).view_as(output))

    def _end_step(self) -> None:
        if self._came:
            self._came.clear()
            self.count(0, is_last=True)

    def _pieces(self, layers: Bucket) -> list[Bucket]:
        return []  # a unit is never cut

    def _scatter_exact(self, staged: Staged, divisor: int) -> None:
        """Reduce and scatter equal parts of a vector whose layers are not known, or that is float64."""
        self.count(staged.octets, is_last=False)
        values, ranks = staged.values(), range(len(self.ranks))

        def scatter(plane: DataPlane) -> None:
            layout = Layout((values.size // len(ranks),) * len(ranks))
            member = Member(plane.exchange, layout=layout, owners=tuple(ranks))
            RingScatter(parse("inc", batch=1), member).average(values, tuple(ranks), staged.half, divisor)

        CallWork(self.connected().start(scatter, LANES), [], self.ranks).wait()

    def _note_odd(self, unit: Unit, values: Tensor) -> None:
        """Say once that a unit travels exact, and why; float64 always does."""
        if values.dtype is torch.float64 or unit in self._odd:
            return
        self._odd.add(unit)
        log.say(
            "uncompressed",
            f"parameters of {unit.name or 'the root module'} have no gradient, so the others' travel exact: call "
            "set_reduce_scatter_unused_params(True) on the module, or freeze these parameters before compress",
            level="warning",
        )


class Scatter(ReduceScatter):
    """A unit's reduce-scatter."""

    def __init__(self, state: ShardedState, unit: Unit) -> None:
        self._state, self._unit = state, unit

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for the gradients, or for this rank's part."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """Reduce and scatter; ``input_tensor`` is overwritten."""
        if op not in (ReduceOp.SUM, ReduceOp.AVG):
            raise UsageError(f"there is no compressed {op}: call set_force_sum_reduction_for_comms(True) on the module")
        divisor = group.size() if op == ReduceOp.AVG else 1
        self._state.reduce_scatter(self._unit, output_tensor, input_tensor, divisor)


class Gather(AllGather):
    """An all-gather of parameters."""

    allocate = Scatter.allocate

    def __init__(self, state: ShardedState) -> None:
        self._state = state

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather; tensors on a GPU, and those of a smaller group (``reshard_after_forward=2``), torch's own way."""
        ranks = self._state.ranks
        if not output_tensor.is_cpu or dist.get_process_group_ranks(group) != ranks:
            theirs: dist.Work | None = dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
            return theirs
        words, mine = Words(list(output_tensor.view(len(ranks), -1).unbind())), Words([input_tensor])

        def gather(plane: DataPlane) -> None:
            span = words.spans[plane.exchange.rank]
            words.values[span.start : span.stop] = mine.load()
            move_to_all(plane, words.values, words.spans)
            words.store()

        work = CallWork(self._state.weights().start(gather, LANES), [output_tensor], ranks)
        if async_op:
            return work
        work.wait()
        return None
