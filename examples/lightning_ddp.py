"""Lightning's Trainer with compressed gradients: one strategy instead of "ddp".

python examples/lightning_ddp.py --ranks 4
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from netoffload.torch.lightning import NetOffloadStrategy

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--plain", action="store_true", help="Lightning's own strategy, for comparison")
asked = parser.parse_args()


class Digits(LightningModule):
    """A perceptron that reads handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


torch.set_num_threads(1)
seed_everything(0, verbose=False)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
model = Digits()
strategy = "ddp" if asked.plain else NetOffloadStrategy(codec="packed", bound=10)  # the line
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(accelerator="cpu", devices=asked.ranks, strategy=strategy, max_steps=asked.steps, **quiet)
trainer.fit(model, DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=32, shuffle=True))

if trainer.is_global_zero:
    right = (model.net(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    print(f"accuracy {right:.1%}")
    if not asked.plain:
        report = trainer.strategy.compression.report()
        print(f"{report.steps} steps sent {report.sent_octets:,} octets, ratio {report.ratio:.1f}")
