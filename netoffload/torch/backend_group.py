"""A process group: the calls of ``torch.distributed``, over a data plane.

Torch's Python functions call these methods by name. So does its C++ code (DDP's reducer), for those methods that
Python may override. Both pass lists of tensors and an object with options. A call's arguments are checked in the
caller's thread. Calls are carried out in the order in which they came: in the caller's thread if torch waits for the
call anyway, else in the background.

Ranks in arguments and errors are counted within the group.
"""
# mypy: disable-error-code="override, assignment, misc"
# torch's stubs describe overloads, which C++ selects by type. Only the first form of each calls Python classes.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Store  # type: ignore[attr-defined]  # Store is not declared public

from netoffload import collectives
from netoffload.collectives import Operation, ring_allgather
from netoffload.collectives.transfer import octets_of
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import CollectiveError, UsageError
from netoffload.torch.backend_reductions import (
    Reduction,
    all_reduce,
    bitwise_all_reduce,
    bitwise_reduce_scatter,
    reduce_scatter,
)
from netoffload.torch.backend_scale import ScaledSum
from netoffload.torch.backend_words import Numbers, Words
from netoffload.torch.backend_work import CallWork, explain, explained
from netoffload.torch.options import Options
from netoffload.torch_plugin import NAME
from netoffload.transport import Calls, CommInfo, DataPlane, Lane, Request

Body = Callable[[DataPlane], None]


class NetOffloadGroup(ProcessGroup):
    """The ranks of a group, connected.

    Args:
        store: the store that the ranks share; :meth:`get_group_store` returns it.
        exact: the calls of the exact data plane; :meth:`shutdown` closes them.
        compressed: the calls of the compressed one, for long float32 sums; None: there is none. Closed likewise.
        options: which vectors are compressed, and in what scale.
        ranks: the group's ranks, counted in the world.
    """

    def __init__(
        self,
        store: Store,
        exact: Calls[DataPlane],
        compressed: Calls[DataPlane] | None,
        options: Options,
        ranks: Sequence[int],
    ) -> None:
        """Take over the connections."""
        exchange = exact.plane.exchange
        super().__init__(exchange.rank, exchange.size)  # type: ignore[call-arg]  # the form for subclasses
        self._store = store
        self._exact = exact
        self._compressed = compressed
        self._min_octets = options.min_octets
        self._scaled_sum = ScaledSum(options.scale)
        self._name = self._description = ""
        self._ranks = tuple(ranks)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name in ``init_process_group``."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return this group's name in torch's registry; torch's own class would ask a C++ backend."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return the description that the group was made with."""
        return self._description

    def get_group_store(self) -> Store:
        """Return the store that the ranks share."""
        return self._store

    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def compressed_totals(self) -> CommInfo:
        """Return what all compressed calls did: their number, octets before and after; empty without a second plane."""
        return CommInfo() if self._compressed is None else self._compressed.totals

    def shutdown(self) -> None:
        """Close the connections; calls that have not begun fail."""
        for calls in (self._exact, self._compressed):
            if calls is not None:
                calls.close()

    abort = shutdown

    # Reductions.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> CallWork:
        """Replace tensors on all ranks by their reduction; several are reduced as one vector."""
        with self._arguments():
            reduction = Reduction.of(ReduceOp.SUM if opts is None else opts.reduceOp, tensors[0].dtype)
            call = self._allreduce_call(tensors, reduction)
        return self._carry_out(call, tensors, opts)

    allreduce_coalesced = allreduce

    def _allreduce_call(self, tensors: list[Tensor], reduction: Reduction) -> Body:
        if (ufunc := reduction.bitwise) is not None:
            words = Words(tensors)

            def combine(plane: DataPlane) -> None:
                bitwise_all_reduce(plane, words.load(), ufunc)
                words.store()

            return combine
        numbers = Numbers(tensors)
        compressed = self._compressed if self._admits(numbers, reduction) else None

        def add(plane: DataPlane) -> None:
            values = numbers.values
            if compressed is None:
                all_reduce(plane, values, reduction)
            else:
                floats = cast("Float32Array", values)
                compressed.run(lambda other: self._scaled_sum(other, floats, reduction), (Lane.TAGGED,))
            numbers.store()

        return add

    def reduce(self, tensors: list[Tensor], opts: Any) -> CallWork:
        """Do :meth:`allreduce` for one rank; the tensors of other ranks stay as they are."""
        with self._arguments():
            is_root = self._check_root(opts.rootRank)
        return self.allreduce(tensors if is_root else [tensor.clone() for tensor in tensors], opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> CallWork:
        """Leave on rank r the reduction of the r-th tensor of all ranks' lists."""
        calls = [self._reduce_scatter_call(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._carry_out(_one_by_one(calls), outputs, opts)

    def _reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> CallWork:
        """Do :meth:`reduce_scatter` with one tensor, which is cut into one part per rank."""
        return self._reduce_scatter_singles([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base = _reduce_scatter_single

    def _reduce_scatter_singles(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Do the same with several tensors."""
        with self._arguments():
            lists = [self._parts(source) for source in inputs]
        return self.reduce_scatter(outputs, lists, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = _reduce_scatter_singles

    def _reduce_scatter_call(self, output: Tensor, inputs: list[Tensor], opts: Any) -> Body:
        with self._arguments():
            reduction = Reduction.of(ReduceOp.SUM if opts is None else opts.reduceOp, output.dtype)
            self._check_parts("inputs", inputs, output)
            if (ufunc := reduction.bitwise) is not None:
                words, own = Words([tensor.clone() for tensor in inputs]), Words([output])

                def combine(plane: DataPlane) -> None:
                    bitwise_reduce_scatter(plane, words.load(), words.spans, ufunc)
                    span = words.spans[plane.exchange.rank]
                    np.copyto(own.values, words.values[span.start : span.stop])
                    own.store()

                return combine
            numbers = Numbers(inputs, is_kept=True)

        def add(plane: DataPlane) -> None:
            reduce_scatter(plane, numbers.values, numbers.spans, reduction)
            span = numbers.spans[plane.exchange.rank]
            numbers.store_part(output, span.start, span.stop)

        return add

    # Movements.

    def broadcast(self, tensors: list[Tensor], opts: Any) -> CallWork:
        """Replace tensors on all ranks by those of one."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            words = Words(tensors)

        def call(plane: DataPlane) -> None:
            values = words.load() if is_root else words.values
            collectives.broadcast(plane.exchange, values, root=root, tagged=False)
            if not is_root:
                words.store()

        return self._carry_out(call, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Send every rank's tensor to all ranks; tensors of different ranks may differ in size."""
        calls = [self._allgather_call(*pair) for pair in zip(outputs, inputs, strict=True)]
        return self._carry_out(_one_by_one(calls), [one for row in outputs for one in row], opts)

    allgather_coalesced = allgather

    def _allgather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> CallWork:
        """Do :meth:`allgather` into one tensor, one part after the other."""
        return self._allgather_singles([output], [source], opts)

    all_gather_single = _allgather_base = _allgather_single

    def _allgather_singles(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Do the same into several tensors."""
        with self._arguments():
            lists = [self._parts(output) for output in outputs]
        return self.allgather(lists, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced = _allgather_singles

    def _allgather_call(self, outputs: list[Tensor], source: Tensor) -> Body:
        with self._arguments():
            self._check_parts("outputs", outputs, source)
            words, own = Words(outputs), Words([source])

        def call(plane: DataPlane) -> None:
            span = words.spans[plane.exchange.rank]
            np.copyto(words.values[span.start : span.stop], own.load())
            ring_allgather(plane.exchange, words.values, words.spans, tagged=False)
            words.store()

        return call

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> CallWork:
        """Collect every rank's tensor on the root; the other ranks pass no outputs."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            own, words = Words(inputs), Words(outputs[0]) if is_root else None
            if is_root:
                self._check_parts("outputs", outputs[0], inputs[0])

        def call(plane: DataPlane) -> None:
            blocks, spans = (None, None) if words is None else (words.values, words.spans)
            collectives.gather(plane.exchange, own.load(), blocks, spans, root=root, tagged=False)
            if words is not None:
                words.store()

        return self._carry_out(call, outputs[0] if is_root else [], opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> CallWork:
        """Send every rank its tensor of the root's list; the other ranks pass no inputs."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            own, words = Words(outputs), Words(inputs[0]) if is_root else None
            if is_root:
                self._check_parts("inputs", inputs[0], outputs[0])

        def call(plane: DataPlane) -> None:
            blocks, spans = (None, None) if words is None else (words.load(), words.spans)
            collectives.scatter(plane.exchange, blocks, spans, own.values, root=root, tagged=False)
            own.store()

        return self._carry_out(call, outputs, opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Send to each rank r the r-th tensor of this rank's list."""
        with self._arguments():
            for name, tensors, other in (("outputs", outputs, inputs), ("inputs", inputs, outputs)):
                self._check_parts(name, tensors, other[self.rank()] if len(other) == self.size() else None)
            going, coming = Words(inputs), Words(outputs)

        def call(plane: DataPlane) -> None:
            source, target = going.load(), coming.values
            source = source.copy() if np.may_share_memory(source, target) else source
            collectives.alltoall(plane.exchange, source, going.spans, target, coming.spans, tagged=False)
            coming.store()

        return self._carry_out(call, outputs, opts)

    def _alltoall_single(
        self, output: Tensor, source: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> CallWork:
        """Do :meth:`alltoall` with two tensors, cut into the given numbers of rows; without sizes, into equal parts."""
        with self._arguments():
            lists = self._parts(output, output_sizes), self._parts(source, input_sizes)
        return self.alltoall(*lists, opts)

    all_to_all_single = alltoall_base = _alltoall_single

    def barrier(self, opts: Any = None) -> CallWork:
        """Wait until all ranks have come."""
        return self._carry_out(lambda plane: collectives.barrier(plane.exchange), [], opts)

    # Messages.

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> CallWork:
        """Send a tensor to a rank."""
        words = Words(tensors)
        request = self._exact.plane.exchange.watch.send(peer, tag, octets_of(words.load()))
        return CallWork(request, tensors, self._explain)

    def recv(self, tensors: list[Tensor], peer: int | None, tag: int) -> CallWork:
        """Receive a tensor from a rank; None: from any rank."""
        words, ended = Words(tensors), Request()

        def finish(request: Request) -> None:
            arrival, error = request.arrival, request.error
            if arrival is None:
                ended.fail(error or CollectiveError("the receive was cancelled"))
            elif arrival.count != words.values.size:
                octets = words.values.nbytes
                ended.fail(CollectiveError(f"rank {arrival.source} sent {4 * arrival.count} octets, not {octets}"))
            else:
                words.store()
                ended.complete(arrival)

        self._exact.plane.exchange.watch.receive(peer, tag, octets_of(words.values)).add_done_callback(finish)
        return CallWork(ended, tensors, self._explain)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> CallWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)

    # Shared by the calls.

    def _carry_out(self, call: Body, tensors: Sequence[Tensor], opts: Any) -> CallWork:
        """Carry a call out after those under way: in this thread if torch waits for it, else in the background."""
        lanes = (Lane.UNTAGGED,)
        if opts is None or getattr(opts, "asyncOp", True):
            return CallWork(self._exact.start(call, lanes), tensors, self._explain)
        with explained(self._ranks):
            self._exact.run(call, lanes)
        return CallWork(Request.done(), tensors, self._explain)

    def _explain(self, error: BaseException) -> BaseException:
        return explain(error, self._ranks)

    @contextlib.contextmanager
    def _arguments(self) -> Iterator[None]:
        """If the body refuses arguments, tell the other ranks so, in the call that they make."""
        try:
            yield
        except UsageError:
            self._exact.refuse()
            raise

    def _admits(self, numbers: Numbers, reduction: Reduction) -> bool:
        """Return whether a reduction is compressed."""
        is_sum = reduction.operation is Operation.SUM
        return is_sum and numbers.dtype is torch.float32 and numbers.values.nbytes >= self._min_octets

    def _check_root(self, root: int) -> bool:
        if not 0 <= root < self.size():
            raise UsageError(f"rank {root} is not in the group: it has {self.size()} ranks, counted from 0")
        return root == self.rank()

    def _check_parts(self, name: str, parts: Sequence[Tensor], own: Tensor | None) -> None:
        """Refuse lists without one tensor per rank, or whose tensor for this rank does not match ``own``."""
        if len(parts) != self.size():
            raise UsageError(f"{len(parts)} {name} for {self.size()} ranks: give one tensor per rank")
        mine = parts[self.rank()]
        if own is not None and (mine.dtype is not own.dtype or mine.numel() != own.numel()):
            theirs = f"{own.numel()} of {own.dtype}"
            raise UsageError(f"this rank's own part has {mine.numel()} elements of {mine.dtype}, not {theirs}")

    def _parts(self, whole: Tensor, sizes: Sequence[int] = ()) -> list[Tensor]:
        """Cut a tensor into the given numbers of rows, or without sizes into equal parts of its elements."""
        if sizes:
            if len(sizes) != self.size() or sum(sizes) != whole.size(0):
                raise UsageError(f"split sizes {list(sizes)} do not fit {whole.size(0)} rows over {self.size()} ranks")
            return list(torch.split(whole, list(sizes)))
        if whole.numel() % self.size():
            raise UsageError(f"{whole.numel()} elements cannot be cut into {self.size()} equal parts")
        if not whole.is_contiguous():
            raise UsageError("a tensor that is cut into equal parts must be contiguous: call .contiguous()")
        return list(whole.detach().view(self.size(), -1).unbind()) if whole.numel() else [whole.detach()] * self.size()


def _one_by_one(calls: Sequence[Body]) -> Body:
    def call(plane: DataPlane) -> None:
        for one in calls:
            one(plane)

    return call
