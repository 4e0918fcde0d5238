"""16-bit gradients through every door, ``halves_ranks SIZE``: are the bits the oracle's, and how many octets left?"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch._dynamo  # FSDP2 would import it in every rank
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from netoffload.collectives.reference import reduce_scatter, ring_sum
from netoffload.collectives.schedule import Span, partition
from netoffload.compiled.arrays import Float32Array
from netoffload.torch import (
    BackendOptions,
    CompressionState,
    DistributedOptimizer,
    broadcast_optimizer_state,
    broadcast_parameters,
    compress_hook,
)
from netoffload.torch.fsdp import compress
from tests.torch.programs.forked_group import join, print_ranks

WIDTH = 240  # a multiple of every number of ranks here: FSDP2 fills up no part
EXACT: dict[str, Any] = {"codec": "exact", "bound": 10, "offload": "inline"}
PACKED: dict[str, Any] = {"codec": "packed", "bound": 10, "offload": "inline"}
HARD = (float("nan"), float("inf"), -0.0, 1e-40, 6e-8, 3e38, 60_000.0, -float("inf"))
TYPES = (torch.bfloat16, torch.float16)
Sum = Callable[[list[Float32Array]], Float32Array]


def gradient(dtype: torch.dtype, count: int, rank: int, *, hard: bool = True) -> Tensor:
    seed = torch.Generator().manual_seed(count + rank)
    values = torch.randn(count, generator=seed) * 0.1
    if hard:
        values[::5] = torch.tensor(HARD)[torch.randint(0, len(HARD), values[::5].shape, generator=seed)]
    return values.to(dtype)


def is_sum(ours: Tensor, gradients: list[Tensor], add: Sum, divisor: int = 1) -> bool:
    """Whether the bits are those of the float32 sum, divided, and rounded once by torch; any NaN for a NaN."""
    total = torch.from_numpy(add([one.float().numpy() for one in gradients]))
    expected = (total / divisor).to(ours.dtype)
    is_number = ~expected.isnan()
    same = torch.equal(ours[is_number].view(torch.int16), expected[is_number].view(torch.int16))
    return same and bool(ours[~is_number].isnan().all())


class Layer(nn.Module):
    """Weights whose gradient is what the layer gets."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=dtype))

    def forward(self, values: Tensor) -> Tensor:
        return (self.weight * values).sum()


def _part_of(some: list[Float32Array], spans: Sequence[Span], rank: int) -> Float32Array:
    return reduce_scatter(some, spans)[rank]


def backend(dtype: torch.dtype, rank: int, size: int, exact: Any) -> list[Any]:
    """Sums and averages of long and of short tensors, of several, and of parts, over both kinds of groups."""
    found = []
    for count in (1, 3, 1000, 200_001):
        every = [gradient(dtype, count, one) for one in range(size)]
        for group in (None, exact):
            for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
                ours = every[rank].clone()
                dist.all_reduce(ours, op, group=group)
                found.append(is_sum(ours, every, ring_sum, divisor))
    pieces = [gradient(dtype, 7 * size, one) for one in range(size)]
    own = torch.empty(7, dtype=dtype)
    dist.reduce_scatter_tensor(own, pieces[rank].clone(), dist.ReduceOp.AVG)
    found.append(is_sum(own, pieces, lambda some: reduce_scatter(some, partition(7 * size, size))[rank], size))
    ours = gradient(dtype, 100_001, rank, hard=False)
    dist.all_reduce(ours, dist.ReduceOp.MAX)
    found.append(
        torch.equal(ours, torch.stack([gradient(dtype, 100_001, one, hard=False) for one in range(size)]).amax(0))
    )
    before = exact.compressed_totals()
    ours = gradient(dtype, 1_000_000, rank, hard=False)
    dist.all_reduce(ours, group=exact)
    totals = exact.compressed_totals()
    plain, own = 4_000_000 * 2 * (size - 1) / size, totals.payload_octets - before.payload_octets
    found += [is_sum(ours, [gradient(dtype, 1_000_000, one, hard=False) for one in range(size)], ring_sum)]
    return [all(found), own / plain if size > 1 else 0.0]


def doors(dtype: torch.dtype, rank: int, size: int) -> list[Any]:
    """Means of DDP's hook, of the optimizer and of FSDP2, and the octets of float32's ring that each sends."""
    found: list[Any] = []
    every = [gradient(dtype, WIDTH * WIDTH, one) for one in range(size)]
    for options in ({"offload": "off"}, EXACT, PACKED):
        for door in ("hook", "optimizer", "fsdp"):
            if door == "fsdp" and dtype is torch.float16:
                continue  # FSDP2 divides float16 by itself, before and after the sum
            layer = Layer(dtype)
            named = layer.named_parameters()
            add: Sum = ring_sum
            if door == "hook":
                state = CompressionState(named_parameters=named, **options)
                wrapped: nn.Module = DistributedDataParallel(layer)
                wrapped.register_comm_hook(state, compress_hook)  # type: ignore[operator]
            elif door == "optimizer":
                wrapped, state = layer, CompressionState(named_parameters=named, **options)
                DistributedOptimizer(torch.optim.SGD(layer.parameters(), 0.1), state)
            else:
                wrapped = cast("nn.Module", fully_shard(layer))
                state = compress(layer, **options)
            wrapped(every[rank].view(WIDTH, WIDTH)).backward()
            (parameter,) = layer.parameters()
            ours: Any = parameter.grad
            if door == "fsdp":
                ours, spans = ours.to_local(), partition(WIDTH * WIDTH, size)
                add = partial(_part_of, spans=spans, rank=rank)
            report = state.report()
            found.append([is_sum(ours.flatten(), every, add, size), report.sent_octets / max(report.ring_octets, 1)])
            state.close()
    return found


def weights(dtype: torch.dtype, rank: int, size: int) -> list[Any]:
    """What moves keeps its bits, and is coded: ranks with different addresses take themselves for different hosts."""
    model = Layer(dtype)
    with torch.no_grad():
        model.weight.copy_(gradient(dtype, WIDTH * WIDTH, rank).view(WIDTH, WIDTH))
    state = CompressionState(**PACKED)
    root = size - 1
    for _ in range(3):
        broadcast_parameters(
            [("twice", model.weight), ("ranks", torch.full((WIDTH * WIDTH,), rank))], root, state=state
        )
    expected = gradient(dtype, WIDTH * WIDTH, root)
    found = [torch.equal(model.weight.flatten().view(torch.int16), expected.view(torch.int16))]
    optimizer = torch.optim.SGD(model.parameters(), 0.1 if rank == root else 0.2)
    broadcast_optimizer_state(optimizer, root, state=state)
    found.append(optimizer.param_groups[0]["lr"] == 0.1)
    moved = state.weights().totals
    every = [gradient(dtype, 200_000, one) for one in range(size)]
    gathered = torch.empty(200_000 * size, dtype=dtype)
    dist.all_gather_into_tensor(gathered, every[rank])
    found.append(torch.equal(gathered.view(torch.int16), torch.cat(every).view(torch.int16)))
    one = every[0].clone() if rank == 0 else torch.empty_like(every[0])
    if rank == 0:
        dist.send(one, 1)
    elif rank == 1:
        dist.recv(one, 0)
        found.append(torch.equal(one.view(torch.int16), every[0].view(torch.int16)))
    state.close()
    return [all(found) and state.options.for_weights().only_moves, moved.payload_octets / max(moved.raw_octets, 1)]


def take_part(rank: int, size: int, port: int) -> Any:
    os.environ.update(
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    )
    os.environ["NETOFFLOAD_ADDRESS"] = f"127.0.0.{rank + 1}"
    join(rank, size, port)
    exact = dist.new_group(pg_options=BackendOptions("exact", 10, offload="inline", min_octets=0))
    found = {str(dtype): [backend(dtype, rank, size, exact), *doors(dtype, rank, size)] for dtype in TYPES}
    found["weights"] = [weights(dtype, rank, size) for dtype in TYPES]
    dist.barrier()
    return found


if __name__ == "__main__":
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    print_ranks(int(sys.argv[1]), take_part)
