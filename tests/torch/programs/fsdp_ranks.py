"""Ranks whose models FSDP2 shards, ``fsdp_ranks SIZE FOLDER SCENARIO...``: each prints what a scenario returns."""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo  # FSDP2 would import it in every rank
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

from netoffload.errors import UsageError
from netoffload.torch import BackendOptions
from netoffload.torch.fsdp import ShardedState, compress
from tests.torch.programs.forked_group import error_of, print_ranks

STEPS = 6
STOP = 3
WIDTH = 30
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
INLINE = {"codec": "packed", "bound": 8, "offload": "inline"}


class Block(nn.Linear):
    """A layer whose bias may be left out, and then has no gradient."""

    has_bias = True

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.linear(values, self.weight, self.bias if self.has_bias else None)


class Model(nn.Module):
    """Two blocks; four ranks do not get equal parts of 30 values. Some parameters are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, WIDTH) for _ in range(2))
        self.skipped, self.head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 3)
        for one in self.skipped.parameters():
            one.requires_grad_(False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            values = values + torch.relu(block(values))
        return self.head(values)  # type: ignore[no-any-return]


class Run:
    """Some steps of training, each of two passes, of which FSDP2 reduces the second."""

    state: ShardedState | None = None

    def __init__(
        self, options: dict[str, Any] | None, *, dtype: torch.dtype = torch.float32, again: int = True, **shard: Any
    ) -> None:
        torch.manual_seed(7)
        self.model = Model().to(dtype)
        self.dtype = dtype
        for module in (*self.model.blocks, self.model):
            fully_shard(module, reshard_after_forward=again, **shard)
        if options is not None:
            self.state = compress(self.model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.02, momentum=0.9)
        self.done = 0

    def backward(self, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed * 64 + dist.get_rank())
        values = torch.randn(8, WIDTH, generator=numbers, dtype=self.dtype)
        (self.model(values) - values[:, :3]).square().mean().backward()

    def train(self, until: int = STEPS) -> list[torch.Tensor]:
        sharded: Any = self.model
        for step in range(self.done, until):
            self.optimizer.zero_grad()
            for number in range(2):
                sharded.set_requires_gradient_sync(number == 1)
                self.backward(2 * step + number)
            self.optimizer.step()
        self.done = until
        return self.parameters()

    def parameters(self) -> list[torch.Tensor]:
        return [one.full_tensor().detach().clone() for one in self.model.parameters()]  # type: ignore[attr-defined]

    def parts(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def digest(parameters: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in parameters)).hexdigest()


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """How far the parameters are from others, by how far these have come from the beginning."""
    start = Run(None).parameters()
    far, way = (
        torch.stack([(one - other).norm() for one, other in zip(some, others, strict=True)]).norm()
        for some, others in ((ours, theirs), (theirs, start))
    )
    return float(far / way)


def doors(folder: str) -> list[Any]:
    """By options: two digests, of a whole run and of one that goes on from files; the distance from plain FSDP2."""
    found = []
    tried: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"offload": "off"}, {}),
        (INLINE, {"again": False}),
        (INLINE | {"error_feedback": True, "exact_vectors": True, "start_step": STOP}, {"mp_policy": BF16}),
        ({"compressor": "qsgd:levels=15", "error_feedback": True}, {}),
        ({"compressor": "fp16", "exact_names": ["blocks.1.*"]}, {}),
    ]
    for at, (options, how) in enumerate(tried):
        whole, part, rest, plain = Run(options, **how), Run(options, **how), Run(options, **how), Run(None, **how)
        part.train(STOP)
        assert whole.state
        assert part.state
        assert rest.state
        path = f"{folder}/{at}"
        checkpoint.save(  # type: ignore[attr-defined]
            part.parts(), checkpoint_id=path
        )
        torch.save(part.state.state_dict(), f"{path}/{dist.get_rank()}.pt")
        saved = rest.parts()
        checkpoint.load(  # type: ignore[attr-defined]
            saved, checkpoint_id=path
        )
        set_state_dict(rest.model, rest.optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        rest.state.load_state_dict(torch.load(f"{path}/{dist.get_rank()}.pt"))
        rest.done = STOP
        ours, theirs = whole.train(), plain.train()
        report, gathered = whole.state.report(), whole.state.gathered
        counts = [report.steps, report.ratio, gathered.calls, sorted(report.scales)]
        found.append([digest(ours), digest(rest.train()), distance(ours, theirs), *counts])
        for run in (whole, part, rest):
            assert run.state
            run.state.close()
    return found


def two(folder: str) -> list[str]:
    """The digests of exact sums, by our transport and by gloo's: of two values either order gives the same bits."""
    return [digest(Run(options).train()) for options in ({"offload": "off"}, None)]


def odd(folder: str) -> list[float]:
    """The distance from plain FSDP2 of what travels exact: doubles, and a module with a parameter without gradient."""
    found = []
    for dtype, has_bias in ((torch.float64, True), (torch.float32, False)):
        runs = [Run(INLINE | {"exact_names": ["head.*"]}, dtype=dtype), Run(None, dtype=dtype)]
        for run in runs:
            for block in run.model.blocks:
                block.has_bias = has_bias  # type: ignore[assignment]
        found.append(distance(*[run.train() for run in runs]))
    return found


def replicas(folder: str) -> list[Any]:
    """HSDP: two replicas over two ranks each, the sum over both compressed as well; and half a mesh after forward."""
    groups: dict[Any, Any] = {"replicate": ("netoffload", BackendOptions("packed", 8, offload="inline", min_octets=0))}
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"), backend_override=groups)
    over_two, again_two, plain = Run(INLINE, mesh=mesh), Run(INLINE, again=2), Run(None).train()
    found = [[digest(ours := run.train()), distance(ours, plain)] for run in (over_two, again_two)]
    totals: Any = mesh.get_group("replicate")
    assert over_two.state
    assert again_two.state
    calls = [over_two.state.gathered.calls, again_two.state.gathered.calls]
    return [*found, over_two.state.report().ratio, totals.compressed_totals().calls, calls]


def refused(folder: str) -> list[str]:
    """The errors of what cannot be compressed or loaded."""
    run = Run(INLINE)
    for module in run.model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(5.0)
    other = Run(INLINE)
    other.train(1)
    assert other.state
    saved = other.state.state_dict()
    saved["sizes"] = saved["sizes"][1:]
    return [
        error_of(lambda: compress(Model()), UsageError),
        error_of(run.train, UsageError),
        error_of(partial(other.state.load_state_dict, saved), UsageError),
    ]


ALL = (doors, two, odd, replicas, refused)
SCENARIOS: dict[str, Callable[[str], Any]] = {one.__name__: one for one in ALL}


def take_part(folder: str, names: list[str], rank: int, size: int, port: int) -> Any:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address | {"RANK": str(rank), "WORLD_SIZE": str(size)})
    dist.init_process_group("gloo")
    found = {name: SCENARIOS[name](folder) for name in names}
    dist.barrier()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.SGD(Model().parameters(), 0.1)
    print_ranks(int(sys.argv[1]), partial(take_part, sys.argv[2], sys.argv[3:]))
