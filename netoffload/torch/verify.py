"""One round of the backend's calls over the ranks of ``torchrun``, beside gloo's: ``netoffload verify collectives``.

Values are whole numbers, so that every order of adding them is exact. The backend's compression is off: it would round.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from netoffload.torch.options import ENV_BACKEND

DTYPES: Final = (torch.float32, torch.int64)


def _all_reduce(own: Tensor, group: ProcessGroup) -> Tensor:
    dist.all_reduce(own, group=group)
    return own


def _largest(own: Tensor, group: ProcessGroup) -> Tensor:
    dist.reduce(own, 0, dist.ReduceOp.MAX, group)
    return own if group.rank() == 0 else own[:0]


def _broadcast(own: Tensor, group: ProcessGroup) -> Tensor:
    dist.broadcast(own, group.size() - 1, group)
    return own


def _all_gather(own: Tensor, group: ProcessGroup) -> Tensor:
    into = [torch.zeros_like(own) for _ in range(group.size())]
    dist.all_gather(into, own, group)
    return torch.cat(into)


def _reduce_scatter(own: Tensor, group: ProcessGroup) -> Tensor:
    into = torch.zeros_like(own)
    dist.reduce_scatter(into, [own + rank for rank in range(group.size())], group=group)
    return into


def _all_to_all(own: Tensor, group: ProcessGroup) -> Tensor:
    into = torch.zeros_like(own)
    dist.all_to_all_single(into, own, group=group)
    return into


def _ring(own: Tensor, group: ProcessGroup) -> Tensor:
    into, size = torch.zeros_like(own), group.size()
    going = dist.P2POp(dist.isend, own, (group.rank() + 1) % size, group)
    for work in dist.batch_isend_irecv([going, dist.P2POp(dist.irecv, into, (group.rank() - 1) % size, group)]):
        work.wait()
    return into


CALLS: Final[Mapping[str, Callable[[Tensor, ProcessGroup], Tensor]]] = {
    "all_reduce": _all_reduce,
    "reduce": _largest,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "isend, irecv": _ring,
}


def one_round(count: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """Make every call on tensors of about ``count`` numbers, with both backends; return the record of all ranks."""
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
    for name, call in CALLS.items():
        for dtype in DTYPES:
            ours, theirs = (call(numbers.to(dtype, copy=True), group) for group in (world, gloo))
            wrong[f"{name} of {str(dtype).removeprefix('torch.')}"] = (
                "" if torch.equal(ours, theirs) else f"{int((ours != theirs).sum())} of {ours.numel()} values differ"
            )
    told: list[Any] = [None] * size
    dist.all_gather_object(told, wrong, gloo)
    dist.destroy_process_group()
    where = {name: [f"rank {at}: {one[name]}" for at, one in enumerate(told) if one[name]] for name in wrong}
    return {"wrong": where, "ranks": size, "numbers": numbers.numel(), "torch": torch.__version__}
