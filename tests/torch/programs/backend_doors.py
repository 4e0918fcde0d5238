"""What libraries above ``torch.distributed`` do with a group: ``backend_doors.py SIZE FOLDER``."""

import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # DDP would import it in every rank
import torch.distributed as dist
import torch.distributed._functional_collectives as functions
import torch.distributed.checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from netoffload.errors import UsageError
from netoffload.torch.backend_group import NetOffloadGroup
from tests.torch.programs.forked_group import error_of, everywhere, join, print_ranks, run_checks

LIMIT = timedelta(seconds=1)


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
    )


def trained(wrapped: Any, steps: int = 4) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    seed = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 20, generator=seed)).square().mean().backward()
        optimizer.step()
    return [one.detach().clone() for one in wrapped.parameters()]


def is_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def fsdp1() -> Any:
    """FSDP resizes the storage of its parameters after each call."""
    sharded = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    trained(sharded)
    with FullyShardedDataParallel.summon_full_params(sharded):
        ours = [one.detach().clone() for one in sharded.parameters()]
    return is_close(ours, trained(DistributedDataParallel(model())))


def borrowed() -> Any:
    """A tensor that has been sent can be resized, as one that has not."""
    said = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        one = torch.ones(64, dtype=dtype)
        dist.all_reduce(one)
        dist.broadcast(one, 0)
        dist.all_gather_into_tensor(torch.ones(64 * dist.get_world_size(), dtype=dtype), one)
        dist.all_to_all_single(torch.ones_like(one)[: 64 // 2 * 2], one) if dist.get_world_size() == 2 else None
        one.untyped_storage().resize_(0)
        said.append(one.untyped_storage().size() == 0)
    return said


def batched_powersgd() -> Any:
    """Torch's hook resizes the bucket. (Its own call of _orthogonalize fails in torch 2.13, with gloo as well.)"""
    plain: Any = powerSGD_hook._orthogonalize
    in_batch: Any = mock.patch.object(
        powerSGD_hook, "_orthogonalize", lambda one, epsilon=0: plain(one if one.dim() == 3 else one[None], epsilon)
    )
    wrapped = DistributedDataParallel(model())
    make_state: Any = powerSGD_hook.PowerSGDState
    state = make_state(None, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.batched_powerSGD_hook)
    with in_batch:
        ours = trained(wrapped)
    return [is_close(ours, other) for other in everywhere(ours)]


def compiled() -> Any:
    """A compiled DDP trains as one that is not; so does a compiled function with collectives."""
    warnings.simplefilter("ignore")
    eager = trained(DistributedDataParallel(model()))
    ours = trained(torch.compile(DistributedDataParallel(model()), backend="aot_eager"))
    world = list(range(dist.get_world_size()))

    def summed(one: torch.Tensor) -> Any:
        return functions.all_reduce(one * 2, "sum", world) + 1

    total = torch.compile(summed, backend="aot_eager")(torch.ones(3))
    return [is_close(ours, eager), total.tolist() == [2 * len(world) + 1] * 3]


def saved() -> Any:
    """A checkpoint in the background needs a device of the group."""
    folder = Path(sys.argv[2])
    value = {"weight": torch.arange(5.0)}
    saving: Any = torch.distributed.checkpoint.async_save(value, checkpoint_id=folder)  # type: ignore[attr-defined]
    saving.result()
    value["weight"] = torch.zeros(5)
    torch.distributed.checkpoint.load(value, checkpoint_id=folder)  # type: ignore[attr-defined]
    return value["weight"].tolist() == list(range(5))


def identity() -> Any:
    group = dist.group.WORLD
    assert isinstance(group, NetOffloadGroup)
    text = error_of(lambda: group._get_backend(torch.device("cuda")), UsageError)
    cpu = torch.device("cpu")
    return [group._device_types == [cpu], group._get_backend(cpu) is group, text.startswith("the netoffload backend")]


def averages() -> Any:
    """Averages of integers are cut towards zero, as NCCL cuts them; booleans have none."""
    rank, size, said = dist.get_rank(), dist.get_world_size(), []
    for dtype, each in ((torch.int64, -5), (torch.int8, -128), (torch.uint8, 200)):
        value = torch.full((3,), each).to(dtype) + (1 if rank == 0 else 0)
        dist.all_reduce(value, dist.ReduceOp.AVG)
        said.append(value.tolist() == [int((each * size + 1) / size)] * 3)
        into = torch.zeros(1, dtype=dtype)
        dist.reduce_scatter_tensor(into, torch.full((size,), each).to(dtype), op=dist.ReduceOp.AVG)
        said.append(into.item() == each)
    none = dist.new_group()
    text = error_of(lambda: dist.reduce(torch.ones(2, dtype=torch.bool), 0, dist.ReduceOp.AVG, none), UsageError)
    return [*said, text == "there is no AVG of torch.bool tensors: convert them first"]


def complex_numbers() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    value, lazily = torch.full((2, 3), 1 + 2j) * rank, torch.full((3,), rank * 1j).conj()
    dist.reduce(value, size - 1)
    dist.reduce(lazily, size - 1)
    into = torch.zeros(4, dtype=torch.complex64)
    dist.reduce_scatter_tensor(into, torch.arange(4 * size) * (1 - 1j * rank), op=dist.ReduceOp.AVG)
    none = dist.new_group()
    refused = error_of(lambda: dist.reduce(value, 0, dist.ReduceOp.PRODUCT, none), UsageError)
    return [
        rank < size - 1 or value.tolist() == [[sum(range(size)) * (1 + 2j)] * 3] * 2,
        rank < size - 1 or lazily.tolist() == [-1j * sum(range(size))] * 3,
        into.tolist() == [(4 * rank + one) * (1 - 1j * (size - 1) / 2) for one in range(4)],
        refused == "there is no PRODUCT of torch.complex64 tensors: convert them first",
    ]


def sparse() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.sparse_coo_tensor(torch.tensor([[rank, size]]), torch.tensor([[1.0, 2.0], [rank, 0.5]]), (size + 1, 2))
    dist.all_reduce(own)
    expected = [[1.0, 2.0]] * size + [[sum(range(size)), size / 2]]
    none = dist.new_group()
    refused = error_of(lambda: dist.all_reduce(own, dist.ReduceOp.MAX, none), UsageError)
    total, found = sum(range(size)), []
    for dtype in (torch.float32, torch.float16):  # rank 0 has no value
        index, value = torch.ones(1, min(rank, 1), dtype=torch.int64), torch.full((min(rank, 1),), rank, dtype=dtype)
        few = torch.sparse_coo_tensor(index, value, (3,))
        dist.all_reduce(few)
        found.append(few.dtype == dtype and few.to_dense().tolist() == [0.0, total, 0.0])
    bools = torch.ones(3, dtype=torch.bool).to_sparse()
    no_bools = error_of(lambda: dist.all_reduce(bools, group=dist.new_group()), UsageError)
    return [
        own.to_dense().tolist() == expected,
        refused.startswith("sparse tensors can be summed only"),
        *found,
        no_bools == "there is no SUM of sparse torch.bool tensors: convert them first",
    ]


def parts() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    group, own = dist.new_group(), torch.full((2,), float(rank))
    gathered = [[torch.zeros(2)] for _ in range(size)]
    dist.all_gather_coalesced(gathered, [own], group)
    wrong = [[torch.zeros(2 + (other == rank))] for other in range(size)]
    refused = error_of(lambda: dist.all_gather_coalesced(wrong, [own], group), UsageError)
    return [
        [part.tolist() for (part,) in gathered] == [[float(other)] * 2 for other in range(size)],
        refused == "this rank's own part has 3 elements of torch.float32, not 2 of torch.float32",
    ]


def monitored() -> Any:
    """All ranks hear who did not come."""
    world, last = dist.group.WORLD, dist.get_world_size() - 1
    assert isinstance(world, NetOffloadGroup)
    world.monitored_barrier(timedelta(seconds=30))
    group = dist.new_group()
    assert isinstance(group, NetOffloadGroup)
    said = []
    if dist.get_rank() < last:
        said.append(error_of(lambda: group.monitored_barrier(LIMIT)))
    dist.barrier()
    said.append(error_of(lambda: dist.barrier(group)))
    return [f"rank {last} did not come to monitored_barrier within the timeout of 1 s" in one for one in said]


def late_messages() -> Any:
    """A receive whose message does not come ends with the group's timeout, and the group with it on all ranks."""
    limit = timedelta(seconds=4)  # of silence too
    group, rank, last = dist.new_group(timeout=limit), dist.get_rank(), dist.get_world_size() - 1
    said = []
    if rank == 0:
        said.append(error_of(lambda: dist.recv(torch.ones(3), last, group)))
    dist.barrier()
    said.append(error_of(lambda: dist.barrier(group)))
    return ["the call is not over within the timeout of 4 s" in one for one in said]


def take_part(rank: int, size: int, port: int) -> Any:
    join(rank, size, port)
    checks = [identity, borrowed, averages, complex_numbers, sparse, parts, monitored, late_messages, fsdp1]
    return run_checks([*checks, batched_powersgd, compiled, saved])


if __name__ == "__main__":
    print_ranks(int(sys.argv[1]), take_part)
