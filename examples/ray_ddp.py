"""Ray Train with compressed gradients: a backend's name, and its codec in the environment of all workers.

python examples/ray_ddp.py --ranks 4
"""

import argparse
import tempfile

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--plain", action="store_true", help="the backend gloo, for comparison")
asked = parser.parse_args()


def train(asked: dict[str, int]) -> str:
    """Train on one rank, and return what it reached and sent."""
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    mine = torch.arange(rank, 1500, size)  # this rank's samples; the last 297 are for the test
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(asked["steps"]):
        chosen = mine[torch.randint(len(mine), (32,))]
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
    if asked["plain"]:
        return f"accuracy {right:.1%}"
    totals = dist.group.WORLD.compressed_totals()
    return f"accuracy {right:.1%}; {totals.calls} sums sent {totals.payload_octets:,} octets, ratio {totals.ratio:.1f}"


config = TorchConfig(backend="gloo" if asked.plain else "netoffload")  # the line
with tempfile.TemporaryDirectory() as folder:
    ray.init(num_cpus=asked.ranks, runtime_env={"env_vars": {"NETOFFLOAD_BACKEND": "packed:10"}})
    scaling, run = ScalingConfig(num_workers=asked.ranks), RunConfig(storage_path=folder)
    trainer = TorchTrainer(
        train, train_loop_config=vars(asked), torch_config=config, scaling_config=scaling, run_config=run
    )
    print(trainer.fit().return_value)
    ray.shutdown()
