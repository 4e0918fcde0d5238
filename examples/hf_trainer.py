"""Hugging Face's Trainer with compressed gradients: one line before train.

torchrun --nproc-per-node 4 examples/hf_trainer.py
"""

import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from netoffload.torch.accelerate import compress

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--plain", action="store_true", help="without the line, for comparison")
asked = parser.parse_args()


class Digits(nn.Module):
    """A perceptron that reads handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the Trainer expects of a model."""
        logits = self.net(pixels)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
samples = [{"pixels": image, "labels": label} for image, label in zip(images, labels, strict=True)]
settings = TrainingArguments(
    output_dir=tempfile.gettempdir(),  # nothing is saved
    use_cpu=True,
    max_steps=asked.steps,
    per_device_train_batch_size=32,
    learning_rate=0.002,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(Digits(), settings, train_dataset=samples[:1500])
states = [] if asked.plain else compress(trainer.accelerator, codec="packed", bound=10)  # the line
trainer.train()

right = (trainer.model.net(images[1500:]).argmax(1) == labels[1500:]).float().mean()
trainer.accelerator.print(f"accuracy {right:.1%}")
for state in states:
    report = state.report()
    trainer.accelerator.print(f"{report.steps} steps sent {report.sent_octets:,} octets, ratio {report.ratio:.1f}")
