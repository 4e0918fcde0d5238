"""One rank of a job that ``torchrun`` restarts: ``restarted_ranks.py DOOR FAULT OUT``.

In attempt 0 the last rank is killed, raises or stops after a few steps. A rank that finishes writes OUT/rank.json.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netoffload.torch import CompressionState, DistributedOptimizer, Periodic, compress_hook, fresh_store

TIMEOUT_S = 3.0
STEPS = 4
FAULT_AFTER = 2


def fail(fault: str) -> None:
    if fault == "exception":
        raise ValueError("a fault of the test")
    if fault == "stop" and os.fork() == 0:  # torchrun would wait half a minute until it kills a stopped rank
        time.sleep(3 * TIMEOUT_S)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])


def train(door: str, fault: str) -> float:
    """Train through a door, and return the sum of the model's parameters."""
    rank, is_first = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    is_victim = is_first and rank == int(os.environ["WORLD_SIZE"]) - 1
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = CompressionState(timeout_s=TIMEOUT_S, late_s=60.0, offload="inline")
    trained: nn.Module = model
    periodic: Periodic | None = None
    if door in ("hook", "gloo", "netoffload"):
        limit = timedelta(seconds=10)
        if door == "hook":
            store, rank, size = fresh_store()
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
        else:
            dist.init_process_group(door, timeout=limit)
        trained = DistributedDataParallel(model)
        if door == "hook":
            trained.register_comm_hook(state, compress_hook)
    elif door == "optimizer":
        optimizer = DistributedOptimizer(optimizer, state)
    else:
        periodic = Periodic(model, optimizer, every=1, state=state)
    for step in range(STEPS):
        if is_victim and step == FAULT_AFTER:
            fail(fault)
        optimizer.zero_grad()
        trained(torch.full((2, 8), float(rank + step))).square().mean().backward()
        if periodic is None:
            optimizer.step()
        else:
            periodic.step()
    if dist.is_initialized():
        dist.destroy_process_group()
    return float(sum(one.detach().sum() for one in model.parameters()))


def main() -> None:
    door, fault, out = sys.argv[1:]
    found = {"attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), "sum": train(door, fault)}
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")


main()
