"""FSDP2 with compressed gradients: a small GPT learns to write Python.

torchrun --nproc-per-node 4 examples/fsdp.py
"""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from netoffload.torch.fsdp import compress

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--offload", help="nic, inline, auto (the default) or off; plain: FSDP2 without netoffload")
parser.add_argument("--compressor", help="instead of the codec: qsgd:levels=15, 8bit-dynamic, ...")
parser.add_argument("--bound", type=int, default=8, help="error bound 2^-BOUND of the codec")
parser.add_argument("--bf16", choices=("reduce", "param"), help="reduce in bfloat16, or compute in it as well")
asked = parser.parse_args()

WIDTH, LENGTH = 128, 64


class Gpt(nn.Module):
    """Two blocks over octets."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        block = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, **block) for _ in range(2))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, octets: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each of [batch, length + 1] octets from those before it."""
        values = self.embedding(octets[:, :-1]) + self.places
        for block in self.blocks:
            values = block(values, torch.full((LENGTH, LENGTH), -torch.inf, dtype=values.dtype).triu(1))
        return F.cross_entropy(self.out(self.norm(values)).flatten(0, 1).float(), octets[:, 1:].flatten())


torch.set_num_threads(1)
torch.manual_seed(asked.seed)
dist.init_process_group("gloo")
text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
policy = MixedPrecisionPolicy(**({f"{asked.bf16}_dtype": torch.bfloat16} if asked.bf16 else {}))
model = Gpt()
for part in (*model.blocks, model):
    fully_shard(part, mp_policy=policy)
state = None
if asked.offload != "plain":
    how = {"compressor": asked.compressor} if asked.compressor else {"codec": "packed", "bound": asked.bound}
    state = compress(model, offload=asked.offload, **how)  # the additional line

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
order = torch.Generator().manual_seed(1000 * asked.seed + dist.get_rank())
losses = []
for _ in range(asked.steps):
    starts = torch.randint(len(text) - LENGTH - 1, (8, 1), generator=order)
    loss = model(text[starts + torch.arange(LENGTH + 1)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

mean = torch.stack(losses[-20:]).mean()
dist.all_reduce(mean, dist.ReduceOp.AVG)
gathered = b"".join(one.full_tensor().detach().numpy().tobytes() for one in model.parameters())
print(f"rank {dist.get_rank()}: parameters {hashlib.sha256(gathered).hexdigest()[:16]}, loss {mean:.4f}", flush=True)
if state is not None:
    report = state.report()
    if dist.get_rank() == 0:
        print(
            f"sent {report.sent_octets:,} octets of gradients, {state.gathered.payload_octets:,} of parameters; "
            f"uncompressed gradients {report.ring_octets:,}: ratio {report.ratio:.1f}",
            flush=True,
        )
    state.close()
dist.destroy_process_group()
