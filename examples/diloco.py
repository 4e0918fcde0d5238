"""DiLoCo with sparse outer steps, for slow links: a small GPT learns to write Python's manual.

torchrun --nproc-per-node 4 examples/diloco.py          # chunked-topk, every 4 steps
torchrun --nproc-per-node 4 examples/diloco.py --ddp    # torch's DDP over gloo, to compare
"""

import argparse
import hashlib
import math
import pydoc_data.topics
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from netoffload.torch import CompressionState, Outer, Periodic

parser = argparse.ArgumentParser()
parser.add_argument("--ddp", action="store_true", help="torch's DDP over gloo")
parser.add_argument("--steps", type=int, default=8000)
parser.add_argument("--rate", type=float, help="highest learning rate of AdamW; default: what serves each way best")
parser.add_argument("--every", type=int, default=4, help="steps of a rank's own between two common ones")
parser.add_argument("--compressor", default="chunked-topk:k=48,decay=1")
parser.add_argument("--outer", type=float, default=1.0, help="learning rate of the outer steps")
parser.add_argument("--momentum", type=float, default=0.2, help="Nesterov's, of the outer steps")
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()

WIDTH, LENGTH, BATCH, WARM = 64, 64, 4, 300
RATE = asked.rate or (12e-3 if asked.ddp else 20e-3)


class Gpt(nn.Module):
    """Two blocks over octets of ASCII."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(128, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        block = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, **block) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, 0, 0.02)

    def forward(self, octets: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each of [batch, length + 1] octets from those before it."""
        values, mask = self.embedding(octets[:, :-1]) + self.places, torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        for block in self.blocks:
            values = block(values, mask, is_causal=True)
        scores = F.linear(self.norm(values), self.embedding.weight)
        return F.cross_entropy(scores.flatten(0, 1), octets[:, 1:].flatten())


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(asked.seed)

text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
octets = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
samples = octets.unfold(0, LENGTH + 1, LENGTH)
is_test = torch.arange(len(samples)) % 10 == 9
train, test = samples[~is_test], samples[is_test][:256]


def batches() -> Iterator[torch.Tensor]:
    """Yield this rank's part of batches that are the same however ranks exchange."""
    order = torch.Generator().manual_seed(asked.seed)
    while True:
        for chosen in torch.randperm(len(train), generator=order).split(ranks * BATCH):
            if len(chosen) == ranks * BATCH:
                yield train[chosen[rank::ranks]]


model = Gpt()
inner = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(
    inner, lambda step: min(1, (step + 1) / WARM) * (1 + math.cos(math.pi * step / asked.steps)) / 2
)
forward, stepping = model, inner
if asked.ddp:
    forward = nn.parallel.DistributedDataParallel(model)
else:
    state = CompressionState(compressor=asked.compressor)
    outer = Outer(asked.outer, asked.momentum)
    stepping = Periodic(model, inner, every=asked.every, method="changes", outer=outer, state=state)
for step, batch in zip(range(asked.steps), batches(), strict=False):
    inner.zero_grad()
    loss = forward(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    stepping.step()
    schedule.step()
    if rank == 0 and (step + 1) % 100 == 0:
        print(f"step {step + 1}: loss {loss:.3f}", flush=True)
if not asked.ddp:
    stepping.finish()
    state.close()

model.eval()
with torch.no_grad():
    loss = sum(float(model(part)) for part in test.split(64)) / 4
digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
print(f"rank {rank}: validation loss {loss:.3f}, parameters {digest[:16]}", flush=True)
dist.destroy_process_group()
