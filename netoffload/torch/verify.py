"""One round of the backend's calls over the ranks of ``torchrun``, beside gloo's: ``netoffload verify collectives``.

Values are whole numbers, so that every order of adding them is exact. The backend's compression is off: it would round.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from netoffload.torch.options import ENV_BACKEND

DTYPES: Final = (torch.float32, torch.int64)


def results(own: Tensor, group: ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    """Make every call with this rank's tensor; give the call's name, and what this rank gets."""
    rank, size = group.rank(), group.size()
    dist.all_reduce(into := own.clone(), group=group)
    yield "all_reduce", into
    dist.reduce(into := own.clone(), 0, dist.ReduceOp.MAX, group)
    yield "reduce", into if rank == 0 else into[:0]
    dist.broadcast(into := own.clone(), size - 1, group)
    yield "broadcast", into
    dist.all_gather(every := [torch.zeros_like(own) for _ in range(size)], own, group)
    yield "all_gather", torch.cat(every)
    dist.reduce_scatter(into := torch.zeros_like(own), [own + each for each in range(size)], group=group)
    yield "reduce_scatter", into
    dist.all_to_all_single(into := torch.zeros_like(own), own, group=group)
    yield "all_to_all_single", into
    if size == 1:  # gloo sends nothing to its own rank
        return
    into = torch.zeros_like(own)
    going = dist.P2POp(dist.isend, own, (rank + 1) % size, group)
    for work in dist.batch_isend_irecv([going, dist.P2POp(dist.irecv, into, (rank - 1) % size, group)]):
        work.wait()
    yield "isend, irecv", into


def one_round(count: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """Make every call on tensors of about ``count`` numbers, with both backends; return the record of all ranks.

    Then :func:`leave` ends the group.
    """
    os.environ.pop(ENV_BACKEND, None)
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("netoffload", timeout=limit)
    gloo, world = dist.new_group(timeout=limit, backend="gloo"), dist.group.WORLD
    assert gloo is not None
    assert world is not None
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = torch.randint(
        -9, 10, (-(-count // size) * size,), generator=torch.Generator().manual_seed(seed * 65_537 + rank)
    )
    wrong: dict[str, str] = {}
    by_type = [
        zip(results(numbers.to(dtype), world), results(numbers.to(dtype), gloo), strict=True) for dtype in DTYPES
    ]
    for pairs in zip(*by_type, strict=True):
        for dtype, ((name, ours), (_, theirs)) in zip(DTYPES, pairs, strict=True):
            wrong[f"{name} of {str(dtype).removeprefix('torch.')}"] = (
                "" if torch.equal(ours, theirs) else f"{int((ours != theirs).sum())} of {ours.numel()} values differ"
            )
    of_ranks: list[Any] = [None] * size
    dist.all_gather_object(of_ranks, wrong, gloo)
    where = {name: [f"rank {at}: {one[name]}" for at, one in enumerate(of_ranks) if one[name]] for name in wrong}
    return {"wrong": where, "ranks": size, "numbers": numbers.numel(), "torch": torch.__version__}


def leave() -> None:
    """Wait until all ranks have done what they do with the record, and end the group."""
    dist.barrier()
    dist.destroy_process_group()
