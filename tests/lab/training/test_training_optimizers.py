"""All of torch's optimizers over flat buffers, and the schedules of the learning rate."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.optimizers import OPTIMIZERS, Polynomial, StepDecay
from netoffload.lab.training.replica import Replica

STEPS = 5

EACH = pytest.mark.parametrize(
    "optimizer",
    [
        "sgd:momentum=0.8,weight_decay=0.01",
        "sgd:momentum=0.8,weight_decay=0.01,nesterov=true",
        "adam:weight_decay=0.01,epsilon=0.001",
        "adamw:weight_decay=0.1",
        "rmsprop:alpha=0.9,momentum=0.5,weight_decay=0.01",
        "adagrad:weight_decay=0.01",
    ],
)


def test_every_optimizer_is_tested() -> None:
    [marks] = [mark.args[1] for mark in [EACH.mark]]
    assert {text.partition(":")[0] for text in marks} == OPTIMIZERS.keys()


def a_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(784, 5), nn.ReLU(), nn.Linear(5, 10))


def a_run(optimizer: str, **options: object) -> TrainSettings:
    return dataclasses.replace(TrainSettings("inc", nodes=1, optimizer=optimizer, learning_rate=0.02), **options)  # type: ignore[arg-type]


def update(replica: Replica, gradient: np.ndarray[tuple[int], np.dtype[np.float32]], iteration: int) -> None:
    replica.gradient[:], replica.iteration = gradient, iteration
    replica.update()


def gradients() -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    random = np.random.default_rng(1)
    return [random.normal(0, 0.3, 3985).astype(np.float32) for _ in range(STEPS)]


@EACH
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_flat_buffers_are_changed_as_torch_changes_tensors(optimizer: str, clip_norm: float | None) -> None:
    settings = a_run(optimizer, clip_norm=clip_norm)
    replica, reference = Replica(settings, a_net()), list(a_net().parameters())
    other = settings.optimizer_spec.make(reference)
    for iteration, gradient in enumerate(gradients()):
        for tensor, layer in zip(reference, replica.layers, strict=True):
            part = gradient[layer.offset : layer.offset + layer.size]
            tensor.grad = torch.from_numpy(part.copy()).view_as(tensor)
        update(replica, gradient, iteration)
        if clip_norm is not None:
            assert float(nn.utils.clip_grad_norm_(reference, clip_norm)) > clip_norm
        other.step()
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in reference])
    np.testing.assert_allclose(replica.parameters, flat.numpy(), rtol=1e-4, atol=2e-6)
    assert np.abs(replica.parameters - Replica(settings, a_net()).parameters).mean() > 1e-4


@EACH
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_a_scaled_gradient_is_as_good_as_a_plain_one(optimizer: str, clip_norm: float | None) -> None:
    one = a_run(optimizer, clip_norm=clip_norm)
    plain, scaled = (Replica(run, a_net()) for run in (one, dataclasses.replace(one, loss_scale=256.0)))
    for iteration, gradient in enumerate(gradients()):
        update(scaled, gradient * np.float32(256), iteration)
        update(plain, gradient, iteration)
    np.testing.assert_array_equal(scaled.parameters, plain.parameters)


def test_what_an_optimizer_remembers_can_be_taken_over() -> None:
    settings, given = a_run("adam"), gradients()
    whole, first, second = (Replica(settings, a_net()) for _ in range(3))
    for iteration, gradient in enumerate(given):
        update(whole, gradient, iteration)
    for iteration, gradient in enumerate(given[:2]):
        update(first, gradient, iteration)
    second.load_state(first.state())
    for iteration, gradient in enumerate(given[2:], 2):
        update(second, gradient, iteration)
    np.testing.assert_array_equal(second.parameters, whole.parameters)


def test_a_text_changes_only_what_it_names() -> None:
    own = TrainSettings("inc", model="hdc")
    nesterov = dataclasses.replace(own, optimizer="sgd:nesterov=true")
    assert nesterov.optimizer_spec == dataclasses.replace(own.optimizer_spec, nesterov=True)  # type: ignore[call-arg]
    assert dataclasses.replace(own, optimizer="adam").optimizer_spec.learning_rate == 0.001
    assert dataclasses.replace(own, schedule="step:interval=7").schedule_spec == StepDecay(5.0, 7)
    assert dataclasses.replace(own, schedule="polynomial", iterations=9).schedule_spec == Polynomial(0.5, 9)
    for run in (own, nesterov, dataclasses.replace(own, optimizer="adamw", schedule="cosine")):
        again = run.resolved()
        assert (again.optimizer_spec, again.schedule_spec) == (run.optimizer_spec, run.schedule_spec)


def rates(schedule: str, iterations: int) -> list[float]:
    run = TrainSettings("inc", learning_rate=0.5, schedule=schedule, iterations=iterations)
    return [run.learning_rate_at(at) for at in range(iterations)]


def test_schedules_are_those_of_torch() -> None:
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(made, 8, eta_min=0.05)
    assert rates("cosine:last=0.1", 8) == pytest.approx([rate_of(cosine, made) for _ in range(8)])
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    polynomial = torch.optim.lr_scheduler.PolynomialLR(made, 8, power=0.5)
    assert rates("polynomial", 8) == pytest.approx([rate_of(polynomial, made) for _ in range(8)])


def rate_of(schedule: torch.optim.lr_scheduler.LRScheduler, made: torch.optim.Optimizer) -> float:
    rate = float(made.param_groups[0]["lr"])
    made.step()
    schedule.step()
    return rate


def test_the_rate_rises_to_what_the_schedule_says() -> None:
    assert rates("constant:warmup=4", 6) == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert rates("step:warmup=2,divisor=2,interval=3", 5) == [0.25, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "adam", "momentum": 0.9}, "adam has no parameter 'momentum': it takes learning_rate, beta1"),
        ({"optimizer": "adam:beta1=1"}, r"beta1 is 1.0: it must be in 0..1 \(1 excluded\)"),
        ({"optimizer": "adam:epsilon=0"}, "epsilon is 0.0: it must be more than 0"),
        ({"optimizer": "sgd:weight_decay=-1"}, "weight_decay is -1.0: it must be 0 or more"),
        ({"optimizer": "sgd:momentum=0,nesterov=true"}, "Nesterov's momentum needs a momentum"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: it must be more than 0"),
        ({"schedule": "sine"}, "schedule 'sine' is unknown: choose from constant, step, cosine, polynomial"),
        ({"schedule": "cosine", "learning_rate_interval": 3}, "cosine has no parameter 'interval'"),
        ({"schedule": "step:interval=0"}, "interval is 0: it must be at least 1"),
        ({"schedule": "step:divisor=0.5"}, "divisor is 0.5: it must be at least 1"),
        ({"schedule": "constant:warmup=-1"}, "warmup is -1: it must be 0 or more"),
        ({"schedule": "polynomial:power=-1"}, "power is -1.0: it must be 0 or more"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0: it must be more than 0"),
        ({"stop_at_accuracy": 97.0, "eval_every": 5}, "stop_at_accuracy is 97.0: it must be in 0..1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings("inc", **options)  # type: ignore[arg-type]
