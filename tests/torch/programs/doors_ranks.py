"""Ranks of scenarios, ``doors_ranks.py SCENARIO...``: each says what the scenario's function returns."""

import copy
import hashlib
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from netoffload.compressors import Layout
from netoffload.compressors.registry import parse
from netoffload.errors import CollectiveError, UsageError
from netoffload.torch import (
    BackendOptions,
    CompressionState,
    DistributedOptimizer,
    Outer,
    Periodic,
    broadcast_optimizer_state,
    broadcast_parameters,
    compress_hook,
)
from tests.torch.programs.forked_group import error_of, run_ranks, strike

SIZE = 3
STEPS = 9
STOP = 4
FEATURES = 40

COMPRESSORS = ("qsgd:levels=15", "qsgd", "terngrad", "wgt:threshold=0.002", "8bit-dynamic", "bounded")

Saved = dict[str, Any]


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 10))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(step * SIZE + rank))
    return images, images[:, :10].argmax(1)


def digest(one: nn.Module) -> str:
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in one.parameters())).hexdigest()


def through_file(saved: Saved) -> Saved:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded: Saved = torch.load(file, weights_only=True)
    return loaded


class Run:
    """Some steps of training through a door; what :meth:`saved` returns lets another run go on."""

    def __init__(self, rank: int, options: dict[str, Any], **door: Any) -> None:
        self.rank, self.model, self.done = rank, model(), 0
        self.state = CompressionState(named_parameters=self.model.named_parameters(), timeout_s=4, **options)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.forward: nn.Module = self.model
        self.prepare_door(**door)

    def prepare_door(self, **door: Any) -> None:
        self.state = door.get("state", self.state)
        # Small enough for two buckets, which DDP makes after the first step.
        self.forward = DistributedDataParallel(self.model, bucket_cap_mb=0.05)
        self.forward.register_comm_hook(self.state, compress_hook)

    def step(self) -> None:
        self.optimizer.step()

    def train(self, until: int) -> None:
        for step in range(self.done, until):
            images, labels = batch(self.rank, step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.forward(images), labels).backward()  # type: ignore[no-untyped-call]
            self.step()
        self.done = until

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "state": self.state}

    def saved(self) -> Saved:
        return {"done": self.done, **{name: part.state_dict() for name, part in self.parts().items()}}

    def resume(self, saved: Saved) -> None:
        self.done = saved["done"]
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])

    def finish(self) -> None:
        pass


class OptimizerRun(Run):
    def prepare_door(self, **door: Any) -> None:
        self.optimizer = DistributedOptimizer(self.optimizer, self.state, bucket_octets=60_000)
        torch.optim.lr_scheduler.StepLR(self.optimizer, 5)  # which wants an Optimizer
        with torch.no_grad():
            next(self.model.parameters()).mul_(self.rank)
        broadcast_parameters(self.model.state_dict(), root=1, state=self.state)


class PeriodicRun(Run):
    def prepare_door(self, **door: Any) -> None:
        self.periodic = Periodic(self.model, self.optimizer, every=3, state=self.state, **door)

    def step(self) -> None:
        self.periodic.step()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "periodic": self.periodic}

    def finish(self) -> None:
        self.periodic.finish()


def doors(rank: int) -> list[Any]:
    """Every door, uninterrupted and interrupted after some steps."""
    tried: list[tuple[type[Run], dict[str, Any], dict[str, Any]]] = [
        (Run, {"codec": "bounded", "bound": 10, "error_feedback": True}, {}),
        (Run, {"compressor": "qsgd:levels=15", "error_feedback": True, "exact_vectors": True}, {}),
        (Run, {"compressor": "terngrad", "start_step": 2, "exact_last": True}, {}),
        (Run, {"compressor": "qsgd:via=ring"}, {}),
        (OptimizerRun, {"compressor": "wgt:threshold=0.002"}, {}),
        (OptimizerRun, {"bound": 8, "error_feedback": True, "exact_below": 200}, {}),
        (PeriodicRun, {"offload": "off"}, {}),
        (PeriodicRun, {"offload": "off"}, {"method": "rsgd"}),
        (PeriodicRun, {"offload": "off"}, {"method": "pqasgd", "outer": Outer()}),
        (PeriodicRun, {"compressor": "8bit-dynamic", "error_feedback": True}, {"method": "changes"}),
    ]
    found = []
    for kind, options, door in tried:
        runs = [kind(rank, options, **door) for _ in range(3)]
        whole, part, rest = runs
        whole.train(STEPS)
        part.train(STOP)
        rest.resume(through_file(part.saved()))
        rest.train(STEPS)
        for run in runs:
            run.finish()
        report = whole.state.report()
        found.append([digest(whole.model), digest(rest.model), report.ratio, len(set(report.scales.values()))])
        for run in runs:
            run.state.close()
    return found


def pickled(rank: int) -> Any:
    """A state that was pickled in the middle of a run, with parameters that were known by their names."""
    options = {"offload": "inline", "error_feedback": True, "exact_last": True}
    whole, part = Run(rank, options), Run(rank, options)
    whole.train(STEPS)
    part.train(STOP)
    rest = Run(rank, options, state=pickle.loads(pickle.dumps(part.state)))
    rest.resume({**part.saved(), "state": rest.state.state_dict()})
    rest.train(STEPS)
    return [digest(whole.model), digest(rest.model), whole.state.report().scales == rest.state.report().scales]


def copied(rank: int) -> Any:
    """Model and door together, in the middle of a run: from a file, or a deep copy."""
    options, found = {"offload": "inline", "error_feedback": True}, []
    copiers: list[Callable[[Run], Run]] = [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))]
    for kind, door in ((OptimizerRun, {}), (PeriodicRun, {"method": "changes"}), (PeriodicRun, {"method": "pqasgd"})):
        whole = kind(rank, options, **door)
        whole.train(STEPS)
        whole.finish()
        for copy_of in copiers:
            part = kind(rank, options, **door)
            part.train(STOP)
            rest = copy_of(part)
            rest.train(STEPS)
            rest.finish()
            found.append(digest(whole.model) == digest(rest.model))
            part.state.close()
            rest.state.close()
        whole.state.close()
    return found


def complex_layers(rank: int) -> Any:
    """Complex gradients of different sizes and magnitudes; gloo's means are the truth."""
    torch.manual_seed(rank)
    layers = (nn.Linear(30, 40, dtype=torch.complex64), nn.Linear(40, 7, dtype=torch.complex64))
    truth = nn.Sequential(*layers)
    images = torch.randn(8, 30, dtype=torch.complex64)
    found = []
    for options in ({"codec": "exact"}, {"codec": "packed", "bound": 10}, {"compressor": "fp16"}):
        ours = copy.deepcopy(truth)
        forward, plain = DistributedDataParallel(ours), DistributedDataParallel(copy.deepcopy(truth))
        forward.register_comm_hook(CompressionState(offload="inline", **options), compress_hook)
        for module in (forward, plain):
            (module(images).abs() ** 2).sum().backward()
        is_near = True
        for mean, right in zip(ours.parameters(), plain.module.parameters(), strict=True):
            assert mean.grad is not None
            assert right.grad is not None
            error = float((mean.grad - right.grad).abs().max() / right.grad.abs().max())
            is_near &= error < (1e-6 if "exact" in options.values() else 1e-2)
        found.append(is_near)
    return found


def death(rank: int) -> Any:
    """Rank 1 is killed in the fourth step."""
    run = Run(rank, {"offload": "nic"})
    run.train(3)
    strike(1)
    return error_of(lambda: run.train(4), RuntimeError)


def refusal(rank: int) -> Any:
    """Rank 1's gradient is not finite, and no compressor takes it; all ranks hear of it."""
    run = Run(rank, {"compressor": "qsgd:levels=15"})
    run.train(2)
    if rank == 1:
        with torch.no_grad():
            next(run.model.parameters()).fill_(float("nan"))
    return error_of(lambda: run.train(3), RuntimeError)


def kinds(rank: int) -> Any:
    """Gradients of float64 and sparse ones; what gloo makes of them is the truth."""
    torch.manual_seed(rank)
    found = []
    for dtype in (torch.float64, torch.float32):
        table = nn.Embedding(50, 4, sparse=True, dtype=dtype)
        layer = nn.Linear(4, 3, dtype=dtype)
        ours, theirs = (copy.deepcopy(nn.Sequential(table, layer)) for _ in range(2))
        forward, truth = DistributedDataParallel(ours), DistributedDataParallel(theirs)
        forward.register_comm_hook(CompressionState(offload="inline", start_step=2), compress_hook)
        for step in range(3):
            count = 0 if (rank, step) == (0, 1) else 20  # a rank may have no word, so no sparse gradient
            words = torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(100 * step + rank))
            for module in (forward, truth):
                module.zero_grad()
                (module(words) ** 2).sum().backward()
            for mean, right in zip(ours.parameters(), theirs.parameters(), strict=True):
                assert mean.grad is not None
                assert right.grad is not None
                is_exact = mean.grad.is_sparse or dtype is torch.float64 or step < 2
                error = float((mean.grad.to_dense() - right.grad.to_dense()).norm() / right.grad.to_dense().norm())
                found += [mean.grad.is_sparse == right.grad.is_sparse, mean.grad.dtype == right.grad.dtype]
                found.append(error < ((1e-12 if dtype is torch.float64 else 1e-6) if is_exact else 0.1))
    return found


class ReZero(nn.Module):
    """A block that is skipped at first, so that its weights have a gradient of exactly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.alpha = nn.Linear(FEATURES, FEATURES), nn.Parameter(torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.alpha * torch.relu(self.inner(values))


def spike(rank: int) -> Any:
    """By codec, with and without feedback: the worst error of a parameter's mean gradient, by the loudest rank's.

    In steps 2 and 5 a batch is 10,000 times too large.
    """
    found = []
    names = ("packed", "bounded", "inceptionn", "fp16", "bf16", "backend")
    for name, feedback in [(name, feedback) for name in names for feedback in (False, True)]:
        ours = nn.Sequential(ReZero(), model())
        group = None
        if name == "backend":
            options = BackendOptions("packed", 10, offload="inline", min_octets=4)
            group = dist.new_group(backend="netoffload", pg_options=options)
        forward = DistributedDataParallel(ours, process_group=group)
        codec: dict[str, Any] = {"offload": "inline", "codec": name, "bound": 10}
        if name in ("fp16", "bf16"):
            codec = {"compressor": name + ":via=gather" * feedback}
        state = CompressionState(**({} if name == "backend" else codec), error_feedback=feedback)
        if name != "backend":
            forward.register_comm_hook(state, compress_hook)
        optimizer, worst = torch.optim.SGD(ours.parameters(), 0.1), 0.0
        for step in range(8):
            images, labels = batch(rank, step)
            images = images * (1e4 if step in (2, 5) else 1)
            optimizer.zero_grad()
            F.cross_entropy(ours(images), labels).backward()  # type: ignore[no-untyped-call]
            right = [one.grad.clone() for one in ours.parameters() if one.grad is not None]
            optimizer.zero_grad()
            F.cross_entropy(forward(images), labels).backward()  # type: ignore[no-untyped-call]
            means = [one.grad for one in ours.parameters() if one.grad is not None]
            if name == "backend":  # it sees no parameters
                right, means = ([torch.cat([one.flatten() for one in grads])] for grads in (right, means))
            for mean, true in zip(means, right, strict=True):
                loudest = true.norm()
                dist.all_reduce(loudest, dist.ReduceOp.MAX)
                dist.all_reduce(true)
                if loudest:
                    worst = max(worst, float((mean - true / SIZE).norm() / loudest))
            nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
            optimizer.step()
        found.append([name, feedback, worst, digest(ours)])
        state.close()
    return found


def two_models(rank: int) -> Any:
    """What the second of two models of one state gets."""
    state = CompressionState(offload="inline")
    errors = []
    for number in range(2):
        forward = DistributedDataParallel(nn.Linear(8, 2 + number))
        forward.register_comm_hook(state, compress_hook)
        total = forward(torch.ones(1, 8)).sum()
        errors.append(error_of(total.backward, UsageError))
    return errors[1]


def begin(rank: int, options: dict[str, Any]) -> None:
    Run(rank, options).train(2)


def differing(rank: int) -> Any:
    """Options of which one differs on rank 2; then a state, a period, and a group of the backend that differ."""
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"scale": 64}, {}),
        ({"scale": None, "error_feedback": True}, {"error_feedback": False}),
        ({"compressor": "qsgd:levels=15", "seed": 1}, {"compressor": "qsgd:levels=15"}),
        ({"compressor": "terngrad"}, {}),
        ({"codec": "bounded"}, {"codec": "packed"}),
        ({"bound": 8}, {}),
        ({"exact_vectors": True, "exact_below": 5}, {}),
        ({"start_step": 10}, {}),
    ]
    errors = []
    for other, options in pairs:
        options = {"offload": "inline"} | (other if rank == 2 else options)
        if "compressor" in options:
            del options["offload"]
        said = error_of(partial(begin, rank, options), (CollectiveError, RuntimeError))
        errors.append(said.splitlines()[0])
    saved, resumed = Run(rank, {"offload": "inline"}), Run(rank, {"offload": "inline"})
    saved.train(2)
    if rank == 2:
        resumed.state.load_state_dict(saved.state.state_dict())
    said = error_of(lambda: resumed.train(1), (CollectiveError, RuntimeError))
    errors.append(said.splitlines()[0])
    averaged = [PeriodicRun(rank, {"offload": "off"}, outer=Outer()) for _ in range(2)]
    averaged[0].train(4)
    if rank == 1:
        averaged[1].periodic.load_state_dict(averaged[0].periodic.state_dict())
    errors.append(error_of(lambda: averaged[1].train(4), CollectiveError))
    periodic = PeriodicRun(rank, {"offload": "off"}, method="psgd" if rank else "rsgd")
    errors.append(error_of(lambda: periodic.train(4), CollectiveError))
    for backend_options in (BackendOptions(scale=64.0 if rank == 2 else "auto"), BackendOptions() if rank else None):
        errors.append(error_of(partial(dist.new_group, backend="netoffload", pg_options=backend_options)))
    return errors


def reconnected(rank: int) -> list[bool]:
    """A report before and after a close, and after more steps."""
    run = Run(rank, {"offload": "inline", "codec": "packed", "bound": 8})
    run.train(3)
    before = run.state.report()
    run.state.close()
    closed = run.state.report()
    run.train(6)
    after = run.state.report()
    run.state.close()
    return [
        before.steps == closed.steps == 3,
        before.ring_octets == closed.ring_octets == after.ring_octets / 2,
        0 < before.sent_octets == closed.sent_octets < after.sent_octets,
        before.info.calls == closed.info.calls < after.info.calls,
        run.state.report().sent_octets == after.sent_octets,
    ]


def wrapped(rank: int) -> Any:
    """What stands around a DistributedOptimizer: state dictionaries, hooks, copies."""
    run = OptimizerRun(rank, {"offload": "inline", "error_feedback": True})
    calls: list[str] = []
    run.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    run.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run.train(2)
    hooks_ran = calls == ["before", "after"] * 2

    plain = torch.optim.SGD(model().parameters(), 0.5)
    plain.load_state_dict(through_file(run.optimizer.state_dict()))
    momentum = next(iter(plain.state.values()))["momentum_buffer"]
    loads_into_plain = bool(momentum.any()) and plain.param_groups[0]["lr"] == 0.1
    fresh = OptimizerRun(rank, {"offload": "inline"})
    fresh.optimizer.load_state_dict(plain.state_dict())
    loads_back = torch.equal(next(iter(fresh.optimizer.state.values()))["momentum_buffer"], momentum)
    old = {"optimizer": run.optimizer.state_dict(), "compression": run.state.state_dict()}
    fresh.optimizer.load_state_dict(old)
    loads_old = fresh.state.state_dict()["step"] == 2

    other = torch.optim.Adam(model().parameters(), 0.1 * (1 + rank))
    if rank == 1:
        for one in other.param_groups[0]["params"]:
            one.grad = torch.ones_like(one)
        other.step()
    broadcast_optimizer_state(other, root=1, state=run.state)
    broadcast_optimizer_state(DistributedOptimizer(other), root=1)
    has_state = other.param_groups[0]["lr"] == 0.2 and float(next(iter(other.state.values()))["step"]) == 1

    run.model, run.optimizer = copy.deepcopy((run.model, run.optimizer))
    twin, run.forward = run.optimizer, run.model
    assert isinstance(twin, DistributedOptimizer)
    run.train(STEPS)
    whole = OptimizerRun(rank, {"offload": "inline", "error_feedback": True})
    whole.train(STEPS)
    return [hooks_ran, loads_into_plain, loads_back, loads_old, has_state, digest(whole.model) == digest(run.model)]


def scaler(rank: int) -> Any:
    """A loss scaler that unscales before gradients are clipped; and one that leaves it to the optimizer."""
    return [scaled(rank, fused=False), scaled(rank, fused=True)]


def scaled(rank: int, *, fused: bool) -> Any:
    """A loss scaler without ``synchronize()``, an infinity on rank 1 in step 3, and a parameter without a gradient."""
    ours, truth = model(), model()
    optimizers = []
    for one in (ours, truth):
        one.register_parameter("unused", nn.Parameter(torch.ones(3)))
        state = CompressionState(offload="off")
        optimizers.append(DistributedOptimizer(torch.optim.SGD(one.parameters(), 0.1, fused=fused), state))
    optimizer, plain = optimizers
    amp = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    scales = []
    for step in range(6):
        images, labels = batch(rank, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(ours(images), labels) * (torch.inf if (rank, step) == (1, 3) else 1)
        amp.scale(loss).backward()  # type: ignore[no-untyped-call]
        if not fused:
            amp.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        amp.step(optimizer)
        amp.update()
        scales.append(amp.get_scale())
        if step != 3:
            plain.zero_grad()
            F.cross_entropy(truth(images), labels).backward()  # type: ignore[no-untyped-call]
            if not fused:
                nn.utils.clip_grad_norm_(truth.parameters(), 1.0)
            plain.step()
    pairs = zip(ours.parameters(), truth.parameters(), strict=True)
    is_near = all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)
    return [digest(ours), scales, is_near]


def accumulated(rank: int) -> Any:
    """Two backward passes per step, of which the last step has one; and two passes where one is expected."""
    found = []
    for passes in (1, 2):
        ours, truth, state = model(), model(), CompressionState(offload="off")
        inner = torch.optim.SGD(ours.parameters(), 0.1)
        optimizer = DistributedOptimizer(inner, state, backward_passes_per_step=passes)
        plain = torch.optim.SGD(truth.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            plain.zero_grad()
            for number in range(2 if step < 2 else 1):
                images, labels = batch(rank, 2 * step + number)
                F.cross_entropy(ours(images), labels).backward()  # type: ignore[no-untyped-call]
                for other in range(SIZE):
                    images, labels = batch(other, 2 * step + number)
                    (F.cross_entropy(truth(images), labels) / SIZE).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            plain.step()
        pairs = zip(ours.parameters(), truth.parameters(), strict=True)
        found.append(all(torch.allclose(one, other, atol=1e-6) for one, other in pairs))
    return found


def unlike(rank: int) -> Any:
    """What a parameter says that learns too late, through two doors; and a state of other options."""
    said = []
    for kind in (OptimizerRun, PeriodicRun):
        frozen = model()
        frozen[0].requires_grad_(False)
        optimizer: Any = torch.optim.SGD(frozen.parameters(), 0.1)
        state = CompressionState(offload="off")
        door = DistributedOptimizer(optimizer, state) if kind is OptimizerRun else None
        step = door.step if door else Periodic(frozen, optimizer, every=2, state=state).step
        for first in (True, False):
            images, labels = batch(rank, 0)
            F.cross_entropy(frozen(images), labels).backward()  # type: ignore[no-untyped-call]
            if first:
                step()
            else:
                said.append(error_of(step, UsageError))
            frozen.requires_grad_(True)
    begun = OptimizerRun(rank, {"offload": "inline", "error_feedback": True})
    begun.train(2)
    for options in ({"compressor": "qsgd"}, {"compressor": "fp16"}, {"offload": "inline"}):
        other = OptimizerRun(rank, options)
        other.resume(begun.saved())
        said.append(error_of(partial(other.train, 3), (UsageError, RuntimeError)))
    return said


def failed(rank: int) -> Any:
    """What follows a backward that raises, if all gradients travel together, and if some had left."""
    said: list[Any] = []

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    for bucket_octets in (4096, 64):
        first, second = (nn.Parameter(torch.ones(100)) for _ in range(2))
        plain, state = torch.optim.SGD([first, second], 1.0), CompressionState(offload="off")
        optimizer = DistributedOptimizer(plain, state, bucket_octets=bucket_octets)
        for step in range(4):
            if step == 3:
                state.close()
            optimizer.zero_grad()
            middle = first.clone()
            if step == 1:
                middle.register_hook(fail)  # type: ignore[no-untyped-call]
            error = error_of(((middle + second).sum() * (step + 1) * (rank + 1)).backward, (RuntimeError, UsageError))
            means = [float(one.grad[0]) for one in (first, second) if one.grad is not None]
            said.append(means if error == "no error" else error)
    return said


def closed(rank: int) -> Any:
    """Periodic averages go on after the state was closed, over connections of their own; the last weights by method."""
    found = []
    for method in ("psgd", "changes"):
        torch.manual_seed(0)
        layer = nn.Linear(4, 3)
        state = CompressionState(offload="off")
        periodic = Periodic(layer, torch.optim.SGD(layer.parameters(), 0.1), every=2, method=method, state=state)
        for step in range(4):
            periodic.optimizer.zero_grad()
            layer(torch.full((2, 4), rank + 1.0)).sum().backward()
            periodic.step()
            if step == 1:
                state.close()
        found.append(digest(layer))
        state.close()
    return found


ALL = (
    *(doors, pickled, copied, complex_layers, death, refusal, kinds, spike, two_models, differing),
    *(wrapped, scaler, accumulated, unlike, failed, closed, reconnected),
)
SCENARIOS: dict[str, Callable[[int], Any]] = {one.__name__: one for one in ALL}


def take_part(scenario: str, rank: int, size: int, port: int) -> Any:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)})
    dist.init_process_group("gloo")
    found = SCENARIOS[scenario](rank)
    if scenario != death.__name__:
        dist.barrier()  # a rank that ends may be lost to others that have not finished the last call
    return found


def load_everything() -> None:
    """Load here what every rank would load by itself: compiled kernels, and what torch imports for its optimizers."""
    torch.set_num_threads(1)
    torch.optim.SGD(model().parameters(), 0.1)
    layout = Layout((64,))
    for name in COMPRESSORS:
        compressor = parse(name)
        payload = compressor.encode(np.ones(64, np.float32), compressor.make_state(layout))
        compressor.decode(payload, layout)


if __name__ == "__main__":
    load_everything()
    print(json.dumps({one: [*run_ranks(SIZE, partial(take_part, one)).items()] for one in sys.argv[1:]}))
