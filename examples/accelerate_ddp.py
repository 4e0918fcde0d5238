"""Hugging Face's Accelerate with compressed gradients: one line before prepare.

torchrun --nproc-per-node 4 examples/accelerate_ddp.py
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from netoffload.torch.accelerate import compress

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--plain", action="store_true", help="without the line, for comparison")
asked = parser.parse_args()

torch.set_num_threads(1)
set_seed(0)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

accelerator = Accelerator(cpu=True)
states = [] if asked.plain else compress(accelerator, codec="packed", bound=10)  # the line
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

step = 0
while step < asked.steps:
    for batch, wanted in loader:
        loss = F.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        if step == asked.steps:
            break

right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
accelerator.print(f"accuracy {right:.1%}")
for state in states:
    report = state.report()
    accelerator.print(f"{report.steps} steps sent {report.sent_octets:,} octets, ratio {report.ratio:.1f}")
accelerator.end_training()
