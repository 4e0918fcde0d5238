import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.data_spec import GREY_28
from netoffload.lab.training.doors import ThreadCalls
from netoffload.lab.training.loop import average_buffers, warm_up
from netoffload.lab.training.networks import build
from netoffload.lab.training.optimizers import OPTIMIZERS, Polynomial, StepDecay
from netoffload.lab.training.replica import Replica, accuracy_of


def a_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(25, 784, generator=generator), torch.randint(0, 10, (25,), generator=generator)


def accuracy(module: nn.Module, samples: torch.Tensor, labels: torch.Tensor) -> float:
    return accuracy_of(module, Dataset(*2 * (samples.numpy(), labels.numpy())))


def plain_hdc(seed: int) -> nn.Sequential:
    """The same weights in layers of torch's own."""
    layers: list[nn.Module] = []
    for layer in build("hdc", seed, GREY_28).children():
        if isinstance(layer, nn.Linear):
            linear = nn.Linear(layer.in_features, layer.out_features)
            linear.load_state_dict(layer.state_dict())
            layers.append(linear)
        else:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def test_weights_are_he_initialised() -> None:
    parameters = Replica(TrainSettings("inc", seed=5)).parameters
    assert parameters[: 784 * 500].std() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert not parameters[784 * 500 : 784 * 500 + 500].any()


@pytest.mark.parametrize("model", ["hdc", "cnn"])
def test_a_backward_pass_writes_torch_s_own_gradient_whatever_was_there_before(model: str) -> None:
    replica = Replica(TrainSettings("inc", model=model, seed=3))
    reference = plain_hdc(3) if model == "hdc" else build("cnn", 3, GREY_28)
    images, labels = a_batch()
    replica.gradient.fill(7)
    for _ in range(2):  # the second pass must not add to the first
        loss = replica.backward(images, labels)
    expected = F.cross_entropy(reference(images), labels)
    expected.backward()  # type: ignore[no-untyped-call]
    flat = torch.cat([torch.as_tensor(tensor.grad).reshape(-1) for tensor in reference.parameters()])
    np.testing.assert_allclose(replica.gradient, flat.numpy(), rtol=1e-4, atol=1e-7)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    assert sum(replica.layer_sizes) == replica.parameters.size == flat.numel()


def test_changing_the_flat_parameters_changes_the_model() -> None:
    replica = Replica(TrainSettings("inc"))
    images, labels = a_batch()
    replica.parameters.fill(0)
    assert replica.backward(images, labels) == pytest.approx(np.log(10))
    assert accuracy(replica.module, images, torch.zeros(25, dtype=torch.int64)) == 1.0  # all outputs equal: argmax is 0


def test_a_power_of_two_scales_the_gradient_exactly_and_changes_no_update() -> None:
    plain, scaled = (Replica(TrainSettings("inc", loss_scale=scale)) for scale in (1.0, 1024.0))
    for replica in (plain, scaled):
        replica.backward(*a_batch())
    np.testing.assert_array_equal(scaled.gradient, plain.gradient * np.float32(1024))
    for replica in (plain, scaled):
        replica.update()
    np.testing.assert_array_equal(scaled.parameters, plain.parameters)


def a_model_with_everything() -> nn.Sequential:
    """Statistics, counts and chance: what HDC has none of."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def batches_of(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return (a_batch(seed + at) for at in itertools.count())


def test_accuracy_is_that_of_the_model_in_use_and_changes_nothing() -> None:
    replica = Replica(TrainSettings("inc"), module := a_model_with_everything())
    replica.backward(*a_batch())
    before = replica.digest()
    images, labels = a_batch(1)
    accuracies = {accuracy(module, images, labels) for _ in range(20)}
    assert len(accuracies) == 1  # dropout would make it another one each time
    assert replica.digest() == before
    assert module.training


def test_the_digest_knows_the_buffers() -> None:
    first, second = (Replica(TrainSettings("inc"), a_model_with_everything()) for _ in range(2))
    assert first.digest() == second.digest()
    buffers = second.buffers()
    assert buffers.shape == (16 + 16 + 1,)
    buffers[3] += 1
    second.set_buffers(buffers)
    assert first.digest() != second.digest()


def test_warming_up_leaves_the_model_as_it_was() -> None:
    def one_rank(exchange: Exchange) -> tuple[Float32Array, Float32Array]:
        replica = Replica(settings, a_model_with_everything())
        before = np.concatenate((replica.parameters, replica.buffers()))
        warm_up(settings, replica, ThreadCalls(exchange, None), batches_of(0))
        return before, np.concatenate((replica.parameters, replica.buffers()))

    for method in ("inc", "psgd:p=1", "wa", "none:via=server"):
        settings = TrainSettings(method, nodes=3)
        for before, after in run_ranks(settings.ranks, one_rank):
            np.testing.assert_array_equal(before, after)


def test_dropout_of_an_iteration_depends_on_no_earlier_one() -> None:
    replica = Replica(TrainSettings("inc"), a_model_with_everything())
    replica.rank = 1

    def loss_of(iteration: int) -> float:
        replica.iteration = iteration
        return replica.backward(*a_batch())

    losses = [loss_of(iteration) for iteration in range(3)]
    assert len(set(losses)) == 3
    assert loss_of(2) == losses[2]


def test_accuracy_of_sequences_counts_every_place() -> None:
    labels = torch.randint(0, 4, (300, 128))  # more than one pass
    guesses = torch.where(torch.arange(128) < 32, labels, (labels + 1) % 4)
    repeat = nn.Embedding(4, 4)
    repeat.weight.data.copy_(torch.eye(4))
    assert accuracy(repeat, guesses, labels) == 0.25


def test_dropout_depends_on_seed_and_rank_alone() -> None:
    def losses(seed: int, rank: int) -> list[float]:
        replica = Replica(TrainSettings("inc", seed=seed), a_model_with_everything())
        torch.rand(rank + 3)  # whatever happened before
        replica.rank = rank
        return [replica.backward(*a_batch()) for _ in range(3)]

    assert losses(1, 0) == losses(1, 0)
    assert losses(1, 0) != losses(1, 1)
    assert losses(1, 0) != losses(2, 0)


def test_workers_end_with_the_mean_of_their_buffers() -> None:
    def one_rank(exchange: Exchange) -> Float32Array:
        replica = Replica(settings, a_model_with_everything())
        if exchange.rank < 2:
            replica.set_buffers(np.full(33, 2.0 + 4 * exchange.rank, np.float32))
        average_buffers(replica, exchange, 2)
        return replica.buffers()

    settings = TrainSettings("wa", nodes=2)
    for buffers in run_ranks(3, one_rank):  # the aggregator, which sees no batch, has them as well
        np.testing.assert_array_equal(buffers, np.full(33, 4.0, np.float32))


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


def updated(replica: Replica, gradient: Float32Array, iteration: int) -> None:
    replica.gradient[:], replica.iteration = gradient, iteration
    replica.update()


def drawn_gradients() -> list[Float32Array]:
    random = np.random.default_rng(1)
    return [random.normal(0, 0.3, 3985).astype(np.float32) for _ in range(STEPS)]


@EACH
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_flat_buffers_are_changed_as_torch_changes_tensors(optimizer: str, clip_norm: float | None) -> None:
    settings = a_run(optimizer, clip_norm=clip_norm, schedule="step:divisor=2,interval=2")
    replica, reference = Replica(settings, a_net()), list(a_net().parameters())
    other = settings.optimizer_spec.make(reference)
    for iteration, gradient in enumerate(drawn_gradients()):
        for tensor, layer in zip(reference, replica.layers, strict=True):
            part = gradient[layer.offset : layer.offset + layer.size]
            tensor.grad = torch.from_numpy(part.copy()).view_as(tensor)
        updated(replica, gradient, iteration)
        if clip_norm is not None:
            assert float(nn.utils.clip_grad_norm_(reference, clip_norm)) > clip_norm
        other.param_groups[0]["lr"] = settings.learning_rate_at(iteration)
        other.step()
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in reference])
    np.testing.assert_allclose(replica.parameters, flat.numpy(), rtol=1e-4, atol=2e-6)
    assert np.abs(replica.parameters - Replica(settings, a_net()).parameters).mean() > 1e-4


@EACH
@pytest.mark.parametrize("clip_norm", [None, 2.0])
def test_a_scaled_gradient_is_as_good_as_a_plain_one(optimizer: str, clip_norm: float | None) -> None:
    one = a_run(optimizer, clip_norm=clip_norm)
    plain, scaled = (Replica(run, a_net()) for run in (one, dataclasses.replace(one, loss_scale=256.0)))
    for iteration, gradient in enumerate(drawn_gradients()):
        updated(scaled, gradient * np.float32(256), iteration)
        updated(plain, gradient, iteration)
    np.testing.assert_array_equal(scaled.parameters, plain.parameters)


def test_what_an_optimizer_remembers_can_be_taken_over() -> None:
    whole, first, second = (Replica(a_run("adam"), a_net()) for _ in range(3))
    for iteration, gradient in enumerate(drawn_gradients()):
        updated(whole, gradient, iteration)
        if iteration == 2:
            second.load_state(first.state())
        updated(first if iteration < 2 else second, gradient, iteration)
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


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("cosine:last=0.1", functools.partial(lr_scheduler.CosineAnnealingLR, T_max=8, eta_min=0.05)),
        ("polynomial", functools.partial(lr_scheduler.PolynomialLR, total_iters=8, power=0.5)),
    ],
)
def test_schedules_are_those_of_torch(text: str, schedule: Callable[..., lr_scheduler.LRScheduler]) -> None:
    made, expected = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5), []
    torchs = schedule(made)
    for _ in range(8):
        expected.append(made.param_groups[0]["lr"])
        made.step()
        torchs.step()
    assert rates(text, 8) == pytest.approx(expected)


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
        ({"schedule": "cosine:last=nan"}, "last is nan: it must be 0 or more"),
        ({"seed": 2**63}, "seed is 9223372036854775808: it must be at most"),
        ({"bucket_mb": float("nan")}, "bucket_mb is nan"),
        ({"sharing": "dirichlet:alpha=1e308"}, "above 0 and at most 1e"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0: it must be more than 0"),
        ({"stop_at_accuracy": 97.0, "eval_every": 5}, "stop_at_accuracy is 97.0: it must be in 0..1"),
        ({"nodes": 65}, "65 workers: choose 1..64"),
        ({"iterations": 0}, "iterations is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"loss_scale": 0.0}, "not a power of two"),
        ({"momentum": 1.0}, "momentum"),
        ({"data": "cifar"}, "data set 'cifar' is unknown"),
        ({"data": "fashion-mnist"}, "fashion-mnist needs --data-dir with its four IDX files"),
        ({"data": "digits:side=3"}, "digits data of this model takes no parameters, not side=3"),
        ({"data": "text:classes=3"}, "text data of this model takes length=N, not classes=3"),
        ({"data": "synthetic:length=3"}, "takes channels=N, side=N, classes=N, samples=N, not length=3"),
        ({"data": "synthetic:side=0"}, "not side=0"),
        (
            {"data": "synthetic:side=29"},
            r"hdc takes 28x28 grey images \(digits, mnist, fashion-mnist\), not synthetic:",
        ),
        ({"data": "text"}, r"hdc takes 28x28 grey images .*, not text: choose the model gpt, lstm"),
        ({"model": "gpt", "data": "digits"}, r"gpt takes sequences of tokens \(text\), not digits: choose .* resnet20"),
        ({"model": "alexnet", "data": "digits"}, r"alexnet takes images of 63x63 or more \(synthetic\), not digits"),
        ({"sharing": "dirichlet:alpha=0"}, "alpha must be a number above 0"),
        ({"sharing": "dirichlet:alpha=much"}, "alpha must be a number above 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings("inc", **options)  # type: ignore[arg-type]
