"""A backend of ``torch.distributed`` for CPU tensors, ``init_process_group("netoffload")``: its process groups.

A process group is a data plane (``netoffload.transport``); the ranks find each other through torch's store. Its
connections have no tag, so no NIC compresses them, and all values stay exact; between hosts, broadcasts and all-gathers
may be coded by ``exact`` (``DataPlane.move``). A group made with ``BackendOptions`` has a second plane, which
compresses float32. Long float32 sums and averages use the second plane.

Torch's Python functions call these methods by name. So does its C++ code (DDP's reducer), for those methods that
Python may override. Both pass lists of tensors and an object with options. A call's arguments are checked in the
caller's thread. Calls are carried out in the order in which they came: in the caller's thread if torch waits for the
call anyway, else in the background.

Ranks in arguments and errors are counted within the group.

Files: ``backend_work`` (calls under way), ``backend_reductions`` (sums and what else takes every rank's values),
``backend_words`` (tensors as vectors).
"""
# mypy: disable-error-code="override, assignment, misc"
# torch's stubs describe overloads, which C++ selects by type. Only the first form of each calls Python classes.

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Store  # type: ignore[attr-defined]  # Store is not public

from netoffload import collectives
from netoffload.collectives import Operation, barrier
from netoffload.collectives.schedule import Span
from netoffload.collectives.transfer import octets_of
from netoffload.compiled.arrays import Float32Array
from netoffload.config import Offload
from netoffload.errors import CollectiveError, PeerLostError, UsageError
from netoffload.torch import backend_reductions as reductions
from netoffload.torch.backend_words import Numbers, Words, lengths_of, types_of
from netoffload.torch.backend_work import CallWork, explained, uncompiled
from netoffload.torch.options import BACKEND, Options, compare
from netoffload.torch.ranks import own_host
from netoffload.torch_plugin import NAME, register
from netoffload.transport import Calls, CommInfo, DataPlane, Lane, Request, Settings, StoreRendezvous, set_up
from netoffload.transport.plane import LIMIT_S_MAX
from netoffload.transport.rounds.exchange import TIMEOUT_S_DEFAULT

BackendOptions = Options
"""The name of :class:`~netoffload.torch.options.Options` in ``pg_options``."""

Body = Callable[[DataPlane], None]

CPU: Final = torch.device("cpu")

ARRIVED_TAG: Final = -1
"""Tag of the empty messages of ``monitored_barrier``; torch's tags are not negative."""


class NamedGroup(ProcessGroup):
    """What torch asks a process group about itself; torch's own class would ask a C++ backend."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False
    """Abilities of NCCL that a backend may have."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the form for subclasses
        self._store = store
        self._name = self._description = ""  # torch sets them later

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name in ``init_process_group``."""
        return NAME

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return this group's name in torch's registry."""
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

    @property
    def _device_types(self) -> Sequence[torch.device]:
        return [CPU]

    def _get_backend(self, device: Any) -> NamedGroup:
        if torch.device(device).type != CPU.type:
            raise UsageError(f"the netoffload backend takes CPU tensors, not tensors on {device}: call .cpu() first")
        return self


@uncompiled
class NetOffloadGroup(NamedGroup):
    """The ranks of a group, connected; ``ranks`` are counted in the world.

    :meth:`shutdown` closes both planes. The compressed one, if there is one, is for long float32 sums.
    """

    def __init__(
        self,
        store: Store,
        exact: Calls[DataPlane],
        compressed: Calls[DataPlane] | None,
        options: Options,
        ranks: Sequence[int],
    ) -> None:
        super().__init__(exact.plane.exchange.rank, exact.plane.exchange.size, store)
        self._exact, self._compressed, self._ranks = exact, compressed, tuple(ranks)
        self._min_octets, self._late_s = options.min_octets, exact.plane.exchange.late_s
        self._scaled_sum = None if compressed is None else reductions.ScaledSum(options.scale, compressed)

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
        """Replace tensors on all ranks by their reduction; several are reduced as one vector.

        A sparse tensor is reduced by itself, by SUM only.
        """
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._sum_sparse(tensors, opts)
        return self._reduce_everywhere("all_reduce", tensors, opts)

    allreduce_coalesced = allreduce

    def sum_by(self, tensor: Tensor, add: Callable[[DataPlane, Float32Array], None], calling: str) -> CallWork:
        """Replace a float32 tensor on all ranks by the sum that ``add`` leaves in a vector of its values.

        ``add`` gets the plane that compresses if there is one. ``calling`` says in words how it adds.
        """
        numbers = Numbers([tensor], is_averaged=False)
        values, compressed = cast("Float32Array", numbers.values), self._compressed

        def call(plane: DataPlane) -> None:
            if compressed is None:
                add(plane, values)
            else:
                barrier(plane.exchange)  # where ranks that call differently get an error
                compressed.run(lambda other: add(other, values), tuple(Lane))
            numbers.store()

        return self._carry_out(call, [tensor], None, f"all_reduce SUM of {lengths_of([tensor])}, {calling}")

    def _sum_sparse(self, tensors: list[Tensor], opts: Any) -> CallWork:
        with self._arguments():
            if opts is not None and opts.reduceOp != ReduceOp.SUM:
                raise UsageError("sparse tensors can be summed only: call .to_dense() first")
            if tensors[0].dtype is torch.bool:  # torch adds no sparse ones
                raise UsageError("there is no SUM of sparse torch.bool tensors: convert them first")
            calling = f"all_reduce SUM of sparse {lengths_of(tensors)}"
        return self._carry_out(lambda plane: reductions.sparse_sum(plane, tensors[0]), tensors, opts, calling)

    def reduce(self, tensors: list[Tensor], opts: Any) -> CallWork:
        """Do :meth:`allreduce` for one rank; the tensors of other ranks stay as they are."""
        with self._arguments():
            is_root = self._check_root(opts.rootRank)
        copies = tensors if is_root else [tensor.clone() for tensor in tensors]
        return self._reduce_everywhere("reduce", copies, opts, f" to root {opts.rootRank}")

    def _reduce_everywhere(self, name: str, tensors: list[Tensor], opts: Any, to: str = "") -> CallWork:
        with self._arguments():
            reduction = reductions.Reduction.of(ReduceOp.SUM if opts is None else opts.reduceOp, tensors[0].dtype)
            calling = f"{name} {reduction.name} of {lengths_of(tensors)}{to}"
            if (ufunc := reduction.bitwise) is not None:
                words = Words(tensors)

                def combine(plane: DataPlane) -> None:
                    reductions.bitwise_all_reduce(plane, words.load(), ufunc)
                    words.store()

                return self._carry_out(combine, tensors, opts, calling)
            numbers = Numbers(tensors, is_averaged=reduction.is_average)
        is_long = numbers.values.nbytes >= self._min_octets
        is_long_sum = is_long and reduction.operation is Operation.SUM
        scaled_sum = self._scaled_sum if is_long_sum and self._scaled_sum and self._scaled_sum.takes(numbers) else None

        def add(plane: DataPlane) -> None:
            if scaled_sum is None:
                reductions.all_reduce(plane, numbers.values, reduction, numbers.half)
            else:
                scaled_sum(plane, cast("Float32Array", numbers.values), reduction, numbers.half)
            numbers.store()

        return self._carry_out(add, tensors, opts, calling if scaled_sum is None else f"{calling}, compressed")

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> CallWork:
        """Leave on rank r the reduction of the r-th tensor of all ranks' lists."""
        calls, words = zip(*[self._scattering(*pair, opts) for pair in zip(outputs, inputs, strict=True)], strict=True)

        def call(plane: DataPlane) -> None:
            for one in calls:
                one(plane)

        return self._carry_out(call, outputs, opts, f"reduce_scatter {'; '.join(words)}")

    def _reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> CallWork:
        """Do :meth:`reduce_scatter` with one tensor, which is cut into one part per rank."""
        return self._reduce_scatter_singles([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base = _reduce_scatter_single

    def _reduce_scatter_singles(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        with self._arguments():
            lists = [self._parts(source.contiguous()) for source in inputs]
        return self.reduce_scatter(outputs, lists, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = _reduce_scatter_singles

    def _scattering(self, output: Tensor, inputs: list[Tensor], opts: Any) -> tuple[Body, str]:
        """Return a reduce-scatter, and its words."""
        with self._arguments():
            reduction = reductions.Reduction.of(ReduceOp.SUM if opts is None else opts.reduceOp, output.dtype)
            self._check_parts("inputs", inputs, output)
            calling = f"{reduction.name} of {lengths_of(inputs)}"
            if (ufunc := reduction.bitwise) is not None:
                words, own = Words([tensor.clone() for tensor in inputs]), Words([output])

                def combine(plane: DataPlane) -> None:
                    reductions.bitwise_reduce_scatter(plane, words.load(), words.spans, ufunc)
                    span = words.spans[plane.exchange.rank]
                    np.copyto(own.values, words.values[span.start : span.stop])
                    own.store()

                return combine, calling
            numbers = Numbers(inputs, is_kept=True, is_averaged=reduction.is_average)

        def add(plane: DataPlane) -> None:
            reductions.reduce_scatter(plane, numbers.values, numbers.spans, reduction, numbers.half)
            span = numbers.spans[plane.exchange.rank]
            numbers.store_part(output, span.start, span.stop)

        return add, calling

    # Movements.

    def broadcast(self, tensors: list[Tensor], opts: Any) -> CallWork:
        """Replace tensors on all ranks by those of one."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            words = Words(tensors)

        def call(plane: DataPlane) -> None:
            values = words.load() if is_root else words.values
            reductions.move_from(plane, values, root)
            if not is_root:
                words.store()

        return self._carry_out(call, tensors, opts, f"broadcast of {lengths_of(tensors)} from root {root}")

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Send every rank's tensors to all ranks: ``outputs[i][rank]`` gets ``inputs[i]`` of a rank.

        Tensors of different ranks may differ in size.
        """
        with self._arguments():
            for row, source in zip(outputs, inputs, strict=True):
                self._check_parts("outputs", row, source)
        return self.allgather_coalesced([list(column) for column in zip(*outputs, strict=True)], inputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Do :meth:`allgather` into ``outputs[rank][i]``."""
        with self._arguments():
            if len(outputs) != self.size():
                raise UsageError(f"{len(outputs)} lists of outputs for {self.size()} ranks: give one list per rank")
            for row in outputs:
                if len(row) != len(inputs):
                    raise UsageError(f"{len(row)} outputs for {len(inputs)} inputs of a rank: give one for each")
            flat = [one for row in outputs for one in row]
            for output, source in zip(outputs[self.rank()], inputs, strict=True):
                _check_alike(output, source)
            words, own, count = Words(flat), Words(inputs), len(inputs)

        def call(plane: DataPlane) -> None:
            spans = words.rows(count) or [Span(0, 0)] * self.size()
            span = spans[plane.exchange.rank]
            np.copyto(words.values[span.start : span.stop], own.load())
            reductions.move_to_all(plane, words.values, spans)
            words.store()

        return self._carry_out(call, flat, opts, f"all_gather of {lengths_of(flat)}")

    def _allgather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> CallWork:
        """Do :meth:`allgather` into one tensor, in parts."""
        return self._allgather_singles([output], [source], opts)

    all_gather_single = _allgather_base = _allgather_single

    def _allgather_singles(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        with self._arguments():
            lists = [self._parts(output) for output in outputs]
        return self.allgather(lists, inputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced = _allgather_singles

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> CallWork:
        """Collect every rank's tensor on the root; the other ranks pass no outputs."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            results = outputs[0] if is_root else []
            own, words = Words(inputs), Words(results)
            if is_root:
                self._check_parts("outputs", results, inputs[0])

        def call(plane: DataPlane) -> None:
            own.load()
            collectives.gather(plane.exchange, own.own_octets, words.octets, words.octet_spans, root=root, tagged=False)
            words.store()

        return self._carry_out(call, results, opts, f"gather of {types_of(inputs)} to root {root}")

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> CallWork:
        """Send every rank its tensor of the root's list; the other ranks pass no inputs."""
        with self._arguments():
            root, is_root = opts.rootRank, self._check_root(opts.rootRank)
            own, words = Words(outputs), Words(inputs[0] if is_root else [])
            if is_root:
                self._check_parts("inputs", inputs[0], outputs[0])

        def call(plane: DataPlane) -> None:
            blocks = words.load().view(np.uint8)
            collectives.scatter(plane.exchange, blocks, words.octet_spans, own.own_octets, root=root, tagged=False)
            own.store()

        return self._carry_out(call, outputs, opts, f"scatter of {types_of(outputs)} from root {root}")

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> CallWork:
        """Send to each rank r the r-th tensor of this rank's list."""
        with self._arguments():
            for name, tensors, other in (("outputs", outputs, inputs), ("inputs", inputs, outputs)):
                self._check_parts(name, tensors, other[self.rank()] if len(other) == self.size() else None)
            going, coming = Words(inputs), Words(outputs)

        def call(plane: DataPlane) -> None:
            going.load()
            source, target = going.octets, coming.octets
            source = source.copy() if np.may_share_memory(source, target) else source
            spans = going.octet_spans, coming.octet_spans
            collectives.alltoall(plane.exchange, source, spans[0], target, spans[1], tagged=False)
            coming.store()

        return self._carry_out(call, outputs, opts, f"all_to_all of {types_of([*inputs, *outputs])}")

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
        return self._carry_out(lambda plane: barrier(plane.exchange), [], opts, "barrier")

    # Messages.

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> CallWork:
        """Send a tensor to a rank."""
        words = Words(tensors)
        request = self._exact.plane.exchange.watch.send(peer, tag, octets_of(words.load()), lengths_of(tensors))
        return CallWork(request, tensors, self._ranks, self._late_s, self._exact.give_up)

    def recv(self, tensors: list[Tensor], peer: int | None, tag: int) -> CallWork:
        """Receive a tensor from a rank; None: from any rank. Another tensor than was sent ends the group."""
        words, ended, expected = Words(tensors), Request(), lengths_of(tensors)

        def finish(request: Request) -> None:
            arrival, error = request.arrival, request.error
            if arrival is not None and arrival.words != expected:
                error = CollectiveError(
                    f"ranks disagree: rank {arrival.source} sends {arrival.words} with tag {arrival.tag}, "
                    f"rank {self.rank()} receives {expected}"
                )
            if error is None and arrival is not None:
                words.store()
                ended.complete(arrival)
                return
            ended.fail(error or CollectiveError("the receive was cancelled"))
            if error is not None and not isinstance(error, PeerLostError):
                self._exact.give_up(error)

        self._exact.plane.exchange.watch.receive(peer, tag, octets_of(words.values)).add_done_callback(finish)
        return CallWork(ended, tensors, self._ranks, self._late_s, self._exact.give_up)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> CallWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)

    def monitored_barrier(self, timeout: timedelta, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have come; else end the group with an error that names who did not, on all ranks.

        Rank 0 waits as long as ``timeout``. With ``wait_all_ranks`` the error names all that did not come, not only the
        first.
        """
        watch, limit_s = self._exact.plane.exchange.watch, timeout.total_seconds()
        nothing, others = memoryview(b""), range(1, self.size())
        with explained(self._ranks):
            if self.rank() > 0:
                watch.send(0, ARRIVED_TAG, nothing).wait()
                # Rank 0 may come late itself, and then waits for the others as long again.
                if not watch.receive(0, ARRIVED_TAG, nothing).wait(2 * limit_s):
                    raise self._missed([0], limit_s)
                return
            coming = {rank: watch.receive(rank, ARRIVED_TAG, nothing) for rank in others}
            end_s = time.monotonic() + limit_s
            missing = [rank for rank in others if not coming[rank].wait(max(0.0, end_s - time.monotonic()))]
            if missing:
                raise self._missed(missing if wait_all_ranks else missing[:1], limit_s)
            for rank in others:
                watch.send(rank, ARRIVED_TAG, nothing).wait()

    def _missed(self, missing: Sequence[int], limit_s: float) -> CollectiveError:
        names = ", ".join(map(str, missing))
        error = PeerLostError(f"rank {names} did not come to monitored_barrier within the timeout of {limit_s:g} s")
        self._exact.plane.exchange.abort(error)
        return error

    # Shared by the calls.

    def _carry_out(self, call: Body, tensors: Sequence[Tensor], opts: Any, calling: str) -> CallWork:
        """Carry a call out after those under way: in this thread if torch waits for it, else in the background.

        ``tensors`` are its result. ``calling`` is the call in words; ranks whose words differ get an error.
        """
        lanes = tuple(Lane)
        if opts is None or getattr(opts, "asyncOp", True):
            return CallWork(self._exact.start(call, lanes, calling), tensors, self._ranks)
        with explained(self._ranks):
            self._exact.run(call, lanes, calling)
        return CallWork(Request.done(), tensors, self._ranks)

    @contextlib.contextmanager
    def _arguments(self) -> Iterator[None]:
        """If the body refuses arguments, tell the other ranks so, in the call that they make."""
        try:
            yield
        except UsageError:
            self._exact.refuse()
            raise

    def _check_root(self, root: int) -> bool:
        if not 0 <= root < self.size():
            raise UsageError(f"rank {root} is not in the group: it has {self.size()} ranks, counted from 0")
        return root == self.rank()

    def _check_parts(self, name: str, parts: Sequence[Tensor], own: Tensor | None) -> None:
        """Refuse lists without one tensor per rank, or whose tensor for this rank does not match ``own``."""
        if len(parts) != self.size():
            raise UsageError(f"{len(parts)} {name} for {self.size()} ranks: give one tensor per rank")
        if own is not None:
            _check_alike(parts[self.rank()], own)

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


def create(group: Any, options: Any) -> NetOffloadGroup:
    """Make a process group; torch calls this on all of its ranks.

    ``group`` has torch's store, rank, size, timeout and global ranks. ``options`` are the caller's ``pg_options``;
    None: those in the environment.
    """
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"pg_options of the netoffload backend must be BackendOptions, not {type(options).__name__}")
    options = Options.of_environment() if options is None else options
    if options is not None:
        options.refuse_all_but(BACKEND, "the backend", "it sees no layers or steps; use CompressionState")
    rank, size, late_s = group.group_rank, group.group_size, min(group.timeout.total_seconds(), LIMIT_S_MAX)
    ranks = tuple(group.global_ranks_in_group) or tuple(range(size))
    timeout_s = min(TIMEOUT_S_DEFAULT if options is None else options.timeout_s, late_s)
    host = own_host(group.store)

    def rendezvous(name: str) -> StoreRendezvous:
        return StoreRendezvous(group.store, rank, size, late_s, f"{NAME}/{name}", (NAME, name, ranks))

    def plane(gather: StoreRendezvous, settings: Settings) -> Calls[DataPlane]:
        limited = dataclasses.replace(settings, timeout_s=timeout_s, late_s=late_s)
        return Calls(set_up(gather, host, limited, DataPlane))

    with explained(ranks), contextlib.ExitStack() as stack:
        own = {} if options is None else {name: options.compared()[name] for name in ("scale", "min_octets")}
        words = {"compression": "none" if options is None else "options", **own}
        gather = rendezvous("exact")
        compare(gather, words)
        exact = plane(gather, (options or Options()).for_weights())
        stack.callback(exact.close)
        compressed = None
        if options is not None and options.settings().offload is not Offload.OFF:
            compressed = plane(rendezvous("compressed"), options.settings())
            stack.callback(compressed.close)
        stack.pop_all()
    return NetOffloadGroup(group.store, exact, compressed, options or Options(), ranks)


def _check_alike(mine: Tensor, own: Tensor) -> None:
    """Refuse a part for this rank that does not match what the rank itself contributes."""
    if mine.dtype is not own.dtype or mine.numel() != own.numel():
        theirs = f"{own.numel()} of {own.dtype}"
        raise UsageError(f"this rank's own part has {mine.numel()} elements of {mine.dtype}, not {theirs}")


register()
