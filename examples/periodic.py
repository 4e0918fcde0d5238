"""Ranks train separately and average their weights every few steps; with --outer it is DiLoCo.

torchrun --nproc-per-node 4 examples/periodic.py --method pqasgd --every 8
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from netoffload.torch import CompressionState, Outer, Periodic, broadcast_parameters, set_rank_environment

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--offload", help="nic, inline, auto (the default) or off")
parser.add_argument("--method", default="psgd", help="psgd, rsgd, pqasgd or changes")
parser.add_argument("--every", type=int, default=8, help="steps from one averaging to the next")
parser.add_argument("--outer", action="store_true", help="an outer optimizer on the mean change")
asked = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
set_rank_environment()  # for mpiexec; torchrun has set everything
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train = torch.arange(rank, 1500, size)  # this rank's samples; the last 297 are for the test

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = CompressionState(offload=asked.offload, batch=32)
outer = Outer() if asked.outer else None
broadcast_parameters(model.state_dict(), state=state)
periodic = Periodic(model, optimizer, every=asked.every, method=asked.method, outer=outer, state=state)

order = torch.Generator().manual_seed(rank)
for step in range(asked.steps):
    chosen = train[torch.randint(len(train), (32,), generator=order)]
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    periodic.step()
    if rank == 0 and step % 50 == 49:
        print(f"step {step + 1}: loss {loss:.3f}")

periodic.finish()
right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
report = state.report()
if rank == 0:
    sent = f"sent {report.sent_octets:,} octets, a plain ring {report.ring_octets:,}"
    print(f"accuracy {right:.1%}; {sent}: ratio {report.ratio:.1f}")
state.close()
