"""Ranks of a process group: ``backend_ranks.py SIZE``; each prints its results as JSON.

They are forked from one process, which has loaded everything once. The last rank kills itself at the end.
"""

import os
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # DDP would import it in every rank
import torch.distributed as dist
import torch.distributed._functional_collectives as functions
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from netoffload.torch import BackendOptions
from netoffload.torch.backend_group import NetOffloadGroup
from tests.shared.interrupts import interrupted_in
from tests.torch.programs.forked_group import error_of, everywhere, print_ranks, strike

SHORT = timedelta(seconds=3)
CALLS = 30


def train(group: Any, hook: bool = False) -> torch.Tensor:
    """Train a small model on this rank's data; return its parameters and buffers."""
    torch.manual_seed(dist.get_rank())  # DDP hands out the weights of rank 0
    layers = torch.nn.Sequential(torch.nn.Linear(20, 100), torch.nn.BatchNorm1d(100), torch.nn.Linear(100, 3))
    cap_mb = 25 if hook else 0.002  # a hook whose callbacks make calls works on one bucket only, on gloo as well
    model = DistributedDataParallel(layers, bucket_cap_mb=cap_mb, process_group=group, gradient_as_bucket_view=True)
    if hook:
        model.register_comm_hook(PowerSGDState(group, start_powerSGD_iter=2), powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    return torch.cat([one.detach().reshape(-1).double() for one in model.parameters()])


def ddp() -> Any:
    gloo = dist.new_group(backend="gloo")
    ours, theirs = train(dist.group.WORLD), train(gloo)
    hooked = train(dist.group.WORLD, hook=True)  # its callbacks wait for further calls
    same = [torch.equal(one, everybody) for one in (ours, hooked) for everybody in everywhere(one)]
    return [all(same), torch.allclose(ours, theirs, atol=1e-4)]


def order() -> Any:
    """Many calls under way, waited for from behind."""
    rank, size = dist.get_rank(), dist.get_world_size()
    values = [torch.full((1 + 3000 * (number % 3),), float(rank + number)) for number in range(CALLS)]
    works = [dist.all_reduce(one, async_op=True) for one in values]
    dist.barrier()  # takes its turn behind them
    are_done = [work is not None and work.is_completed() and work.is_success() for work in works]
    sums = [float(one[-1]) == size * (size - 1) / 2 + size * number for number, one in enumerate(values)]
    return [all(are_done), all(sums)]


def compressed() -> Any:
    group = dist.new_group(pg_options=BackendOptions("bounded", 10, scale=None, min_octets=4000))
    scaled = dist.new_group(pg_options=BackendOptions("bounded", 10))
    size = dist.get_world_size()
    short, long = torch.full((999,), 0.1), torch.linspace(-0.4, 0.4, 20_000)
    tiny, spoilt = 1e-9 * long, torch.where(torch.arange(20_000) == 7, torch.inf, long)
    numbers, exact, mean = torch.arange(10_000), size * long, tiny.clone()
    for one in (short, long, numbers):
        dist.all_reduce(one, group=group)
    for one, op in ((tiny, dist.ReduceOp.AVG), (spoilt, dist.ReduceOp.SUM)):
        dist.all_reduce(one, op, group=scaled)
    error = float((long - exact).abs().max())
    same = [torch.equal(long, one) for one in everywhere(long)] + [torch.equal(tiny, one) for one in everywhere(tiny)]
    assert isinstance(group, NetOffloadGroup)
    assert isinstance(scaled, NetOffloadGroup)
    calls = group.compressed_totals().calls, scaled.compressed_totals().calls
    dist.destroy_process_group(group)
    dist.destroy_process_group(scaled)
    is_short_exact = torch.equal(short, torch.full((size, 999), 0.1).sum(0))
    return [
        0 < error <= (2 * size - 1) * 2.0**-10,
        0 < float((tiny - mean).norm() / mean.norm()) < 2.0**-4,  # nothing would be left of it without a scale
        bool(torch.isinf(spoilt[7])) and torch.allclose(spoilt[8:], exact[8:]),
        calls == (1, 1),  # what is not finite travels exact
        same,
        torch.equal(numbers, size * torch.arange(10_000)),
        is_short_exact,
    ]


def closing() -> Any:
    """A group leaves neither sockets nor threads."""

    assert dist.group.WORLD is not None
    dist.group.WORLD.get_group_store().set("asked", "for")  # as other doors do
    everywhere(0)
    files, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    for _ in range(2):
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            work = dist.all_reduce(torch.ones(100_000), group=group, async_op=True)
            assert work is not None
            work.wait()
            dist.destroy_process_group(group)
    for one in set(threading.enumerate()) - threads:
        one.join(5)
    return [set(threading.enumerate()) <= threads, len(os.listdir("/proc/self/fd")) <= files]


def disagreement() -> Any:
    """Ranks that differ get an error, in that group only; so do those of which one refuses its arguments."""
    rank, said = dist.get_rank(), []
    group = dist.new_group()
    said.append("ranks disagree" in error_of(lambda: dist.all_reduce(torch.ones(3 + (rank == 1)), group=group)))
    dist.destroy_process_group(group)
    group = dist.new_group()
    sparse = torch.ones(3).to_sparse() if rank == 1 else torch.ones(3)
    kind = ValueError if rank == 1 else dist.DistBackendError
    text = error_of(lambda: dist.broadcast(sparse, 0, group), kind)
    said.append("dense CPU tensors" in text if rank == 1 else "refuses its arguments" in text)
    dist.barrier()  # a rank that leaves at once takes its refusal back
    dist.destroy_process_group(group)
    return said


def functional() -> Any:
    """The calls that compiled programs make."""
    size, world = dist.get_world_size(), list(range(dist.get_world_size()))
    summed = functions.all_reduce(torch.ones(3), "sum", world)
    gathered = functions.all_gather_tensor(torch.ones(3), 0, world)
    scattered = functions.reduce_scatter_tensor(torch.ones(size * 2), "sum", 0, world)
    swapped = functions.all_to_all_single(torch.ones(size), None, None, world)
    return [float(one.sum()) for one in (summed, gathered, scattered, swapped)] == [3 * size, 3 * size, 2 * size, size]


def types() -> Any:
    """What gloo refuses: other types are moved, and int16 is added."""
    rank, size, said = dist.get_rank(), dist.get_world_size(), []
    for dtype in (torch.int16, torch.uint32, torch.float8_e4m3fn, torch.complex64):
        into = [torch.zeros(5, dtype=dtype) for _ in range(size)]
        dist.all_gather(into, torch.full((5,), rank).to(dtype))
        said.append([one.to(torch.complex64).real.tolist() for one in into] == [[one] * 5 for one in range(size)])
    for dtype in (torch.int16, torch.complex64):
        value = torch.full((5,), rank).to(dtype)
        dist.all_reduce(value)
        said.append(value.real.tolist() == [sum(range(size))] * 5)
    return said


def lateness() -> Any:
    """The time limit of a group holds for a rank that lives and does not come."""
    group = dist.new_group([0, 1], SHORT)
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0)
    if dist.get_rank() == 0:
        text = error_of(lambda: dist.barrier(group))
        dist.send(torch.zeros(1), 1)
        return text.startswith("rank 1 ")
    return True


def interrupt() -> Any:
    """Ctrl-C ends a blocking call, and the others hear of it."""
    group = dist.new_group()
    if dist.get_rank() == 0:
        with interrupted_in("meet"):
            return error_of(lambda: dist.barrier(group), KeyboardInterrupt) == ""
    return "gave up: KeyboardInterrupt" in error_of(lambda: dist.recv(torch.zeros(1), 0, group))


def death(victim: int) -> Any:
    strike(victim)
    coming = dist.irecv(torch.zeros(1), victim)
    reducing = dist.all_reduce(torch.zeros(1), async_op=True)
    assert coming is not None
    assert reducing is not None
    texts = [error_of(coming.wait), error_of(reducing.wait), error_of(dist.barrier)]
    text = error_of(lambda: reducing.get_future().wait(), RuntimeError)
    return [one.startswith(f"rank {victim} ") or f": rank {victim} " in one for one in (*texts, text)]


def take_part(rank: int, size: int, port: int) -> dict[str, Any]:
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)  # type: ignore[attr-defined]
    dist.init_process_group("netoffload", store=store, rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()  # made anew, it does not read what its predecessor left in the store
    dist.init_process_group("netoffload", store=store, rank=rank, world_size=size)
    found: dict[str, Any] = {}
    for check in (order, compressed, closing, disagreement, functional, types, lateness, interrupt, ddp):
        found[check.__name__] = check()
        dist.barrier()
    found["death"] = death(size - 1)
    dist.destroy_process_group()
    ours = [one for one in threading.enumerate() if one.name.startswith(("watch", "collectives"))]
    for one in ours:
        one.join(5)
    found["closed"] = not any(one.is_alive() for one in ours)
    return found


if __name__ == "__main__":
    print_ranks(int(sys.argv[1]), take_part)
