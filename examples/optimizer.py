"""Your own training loop: the optimizer averages gradients before it steps. No process group is needed.

torchrun --nproc-per-node 4 examples/optimizer.py
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from netoffload.torch import CompressionState, DistributedOptimizer, broadcast_parameters, set_rank_environment

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--offload", help="nic, inline, auto (the default) or off")
parser.add_argument("--compressor", help="instead of the codec: terngrad, qsgd:levels=15, fp16:via=gather, ...")
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
state = CompressionState(
    offload=asked.offload,
    compressor=asked.compressor,
    error_feedback=True,
    exact_last=True,  # the last layer travels exact
    named_parameters=model.named_parameters(),
)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), state)
broadcast_parameters(model.state_dict(), state=state)

order = torch.Generator().manual_seed(rank)
for step in range(asked.steps):
    chosen = train[torch.randint(len(train), (32,), generator=order)]
    loss = F.cross_entropy(model(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 50 == 49:
        print(f"step {step + 1}: loss {loss:.3f}")

right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
report = state.report()
if rank == 0:
    sent = f"sent {report.sent_octets:,} octets, a plain ring {report.ring_octets:,}"
    print(f"accuracy {right:.1%}; {sent}: ratio {report.ratio:.1f}")
state.close()
