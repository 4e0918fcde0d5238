"""torchft's elastic replicas with compressed gradients: one of them may die, and come back.

torchft_lighthouse --min_replicas 2 --bind [::]:29510 &
export TORCHFT_LIGHTHOUSE=http://localhost:29510
torchrun --standalone examples/torchft_ddp.py --replica 0 &
torchrun --standalone examples/torchft_ddp.py --replica 1
"""

import argparse
import hashlib
from datetime import timedelta

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from netoffload.torch import BackendOptions
from netoffload.torch.torchft import ProcessGroupNetOffload

parser = argparse.ArgumentParser()
parser.add_argument("--replica", type=int, required=True)
parser.add_argument("--steps", type=int, default=200, help="of all replicas together")
parser.add_argument("--every", type=int, default=0, help="DiLoCo: exchange weights after so many steps of one's own")
parser.add_argument("--fragments", type=int, default=1, help="DiLoCo: exchange this part of the layers at a time, 1..3")
parser.add_argument("--delay", type=int, default=0, help="DiLoCo: steps that go on while a fragment is exchanged")
parser.add_argument("--local-sgd", action="store_true", help="average weights instead of DiLoCo's outer steps")
parser.add_argument("--compressor", help="qsgd, or another, with error feedback; default: the codec packed")
parser.add_argument("--gloo", action="store_true", help="torchft's own process group, to compare")
options = parser.parse_args()

torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

TIMEOUT = timedelta(seconds=30)
if options.compressor:
    travels = BackendOptions(compressor=options.compressor, error_feedback=True)
else:
    travels = BackendOptions("packed", 10, offload="inline")
compressed = ProcessGroupNetOffload(travels, TIMEOUT)  # instead of gloo
manager = Manager(
    pg=ProcessGroupGloo(TIMEOUT) if options.gloo else compressed,
    min_replica_size=2,
    load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["optimizer"])),
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    replica_id=f"replica-{options.replica}",
    use_async_quorum=not options.every,
    timeout=TIMEOUT,
)
compressed.follow(manager, options.fragments)
order = torch.Generator().manual_seed(options.replica)


def backward(forward: nn.Module) -> float:
    """Return the loss of a batch of this replica's."""
    chosen = torch.randint(1500, (32,), generator=order)
    loss = F.cross_entropy(forward(images[chosen]), labels[chosen])
    loss.backward()
    return float(loss.detach())


def report(loss: float) -> None:
    """Say how many replicas took part in the step."""
    print(f"step {manager.current_step()}: {manager.num_participants()} replicas, loss {loss:.3f}", flush=True)


if options.every:
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    parts = [nn.Sequential(*layers[first :: options.fragments]) for first in range(options.fragments)]
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in parts]
    rounds = (
        LocalSGD(manager, model, inner, options.every)
        if options.local_sgd
        else DiLoCo(manager, parts, inner, outer, options.every, fragment_sync_delay=options.delay)
    )
    with rounds:
        while manager.current_step() < options.steps:
            inner.zero_grad()
            loss = backward(model)
            inner.step()
            report(loss)
else:
    forward, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    while manager.current_step() < options.steps:
        optimizer.zero_grad()  # begins to look who is there
        loss = backward(forward)
        optimizer.step()  # not if a replica died meanwhile
        report(loss)

right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
print(f"accuracy {right:.1%}, parameters {digest}")
manager.shutdown(wait=False)
