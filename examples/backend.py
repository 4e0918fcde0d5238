"""DistributedDataParallel over netoffload's backend, gradients compressed; no NIC and no privileges are needed.

torchrun --nproc-per-node 4 examples/backend.py --codec packed --bound 10
"""

from __future__ import annotations

import argparse
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netoffload.torch import BackendOptions  # registers the backend, if netoffload is not installed


def main() -> None:
    """Train a small model, and say whether the replicas are equal in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--codec", default=None, help="compress gradients; default: exact")
    parser.add_argument("--bound", type=int, default=None, help="with an error of at most 2^-BOUND per hop")
    asked = parser.parse_args()

    # If a rank is lost, all others raise an error. A rank that lives may keep them waiting for five minutes.
    dist.init_process_group("netoffload", timeout=datetime.timedelta(minutes=5))
    rank, size = dist.get_rank(), dist.get_world_size()
    # Gradients have their own group. Everything else, control traffic included, stays exact.
    options = BackendOptions(asked.codec, asked.bound) if asked.codec else None
    gradients = dist.new_group(pg_options=options)

    torch.manual_seed(rank)  # different data on every rank; DDP sends the weights of rank 0 to all
    teacher = torch.sin(torch.arange(64.0))
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    replica = DistributedDataParallel(model, process_group=gradients)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01, momentum=0.9)
    for step in range(asked.steps):
        samples = torch.randn(32, 64)
        loss = (replica(samples).squeeze(1) - samples @ teacher / 8).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {mean.item():.4f}")

    weights = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    everybody = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(everybody, weights)
    if rank == 0:
        print("replicas are equal" if all(torch.equal(one, weights) for one in everybody) else "REPLICAS DIFFER")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
