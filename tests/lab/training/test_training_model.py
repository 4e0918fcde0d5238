import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.sgd import sgd

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import GREY_28
from netoffload.lab.training.doors import ThreadCalls
from netoffload.lab.training.loop import average_buffers, warm_up
from netoffload.lab.training.networks import build
from netoffload.lab.training.replica import Replica, accuracy_of


def a_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(25, 784, generator=generator), torch.randint(0, 10, (25,), generator=generator)


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


def test_weights_depend_on_the_seed_alone_and_are_he_initialised() -> None:
    torch.manual_seed(1)
    first = Replica(TrainSettings("inc", seed=5))
    torch.manual_seed(2)
    second = Replica(TrainSettings("wa+c", seed=5, nodes=2))
    np.testing.assert_array_equal(first.parameters, second.parameters)
    assert not np.array_equal(first.parameters, Replica(TrainSettings("inc", seed=6)).parameters)
    weights, biases = first.parameters[: 784 * 500], first.parameters[784 * 500 : 784 * 500 + 500]
    assert weights.std() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert not biases.any()


def test_a_backward_pass_writes_the_flat_gradient_and_replaces_no_view() -> None:
    settings = TrainSettings("inc", seed=3)
    replica, reference = Replica(settings), plain_hdc(3)
    images, labels = a_batch()
    for _ in range(2):  # the second pass must not add to the first
        loss = replica.backward(images, labels)
    expected = F.cross_entropy(reference(images), labels)
    expected.backward()  # type: ignore[no-untyped-call]
    flat = torch.cat([torch.as_tensor(tensor.grad).reshape(-1) for tensor in reference.parameters()])
    np.testing.assert_allclose(replica.gradient, flat.numpy(), rtol=1e-4, atol=1e-7)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


def test_changing_the_flat_parameters_changes_the_model() -> None:
    replica = Replica(TrainSettings("inc"))
    images, labels = a_batch()
    replica.parameters.fill(0)
    assert replica.backward(images, labels) == pytest.approx(np.log(10))
    assert replica.accuracy(images, torch.zeros(25, dtype=torch.int64)) == 1.0  # all outputs equal: argmax is 0


def test_a_power_of_two_scales_the_gradient_exactly_and_changes_no_update() -> None:
    plain, scaled = (Replica(TrainSettings("inc", loss_scale=scale)) for scale in (1.0, 1024.0))
    for replica in (plain, scaled):
        replica.backward(*a_batch())
    np.testing.assert_array_equal(scaled.gradient, plain.gradient * np.float32(1024))
    for replica in (plain, scaled):
        replica.update()
    np.testing.assert_array_equal(scaled.parameters, plain.parameters)


def test_one_worker_is_torch_s_own_momentum_sgd() -> None:
    settings = TrainSettings("inc", nodes=1, learning_rate=0.02, weight_decay=0.01, learning_rate_interval=4)
    replica, reference = Replica(settings), plain_hdc(settings.seed)
    parameters: list[torch.Tensor] = list(reference.parameters())
    momenta: list[torch.Tensor | None] = [None] * len(parameters)
    for iteration in range(8):
        images, labels = a_batch(iteration)
        replica.iteration = iteration
        replica.backward(images, labels)
        replica.update()
        reference.zero_grad()
        F.cross_entropy(reference(images), labels).backward()  # type: ignore[no-untyped-call]
        rate = 0.02 if iteration < 4 else 0.02 / 5
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            # torch.optim.SGD's own arithmetic, without the seconds in which an optimizer object imports a compiler.
            sgd(
                parameters,
                gradients,
                momenta,
                lr=rate,
                momentum=0.9,
                weight_decay=0.01,
                dampening=0,
                nesterov=False,
                maximize=False,
            )
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in reference.parameters()]).numpy()
    np.testing.assert_allclose(replica.parameters, flat, rtol=1e-4, atol=1e-6)
    assert not np.allclose(flat, Replica(settings).parameters, rtol=1e-4, atol=1e-6)


def test_the_cnn_has_the_gradient_of_torch_s_own_whatever_was_there_before() -> None:
    settings = TrainSettings("inc", model="cnn", seed=3)
    replica = Replica(settings)
    own = build("cnn", 3, GREY_28)
    images, labels = a_batch()
    replica.gradient.fill(7)
    loss = replica.backward(images, labels)
    expected = F.cross_entropy(own(images), labels)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(float(expected.detach()))
    gradients = [parameter.grad for parameter in own.parameters()]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients if gradient is not None])
    np.testing.assert_allclose(replica.gradient, flat.numpy(), rtol=1e-5, atol=1e-7)
    assert sum(replica.layer_sizes) == replica.parameters.size == sum(p.numel() for p in own.parameters())


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
    accuracies = {replica.accuracy(images, labels) for _ in range(20)}
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
    replica.seed_layers(1)

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
    assert accuracy_of(repeat, guesses, labels) == 0.25


def test_dropout_depends_on_seed_and_rank_alone() -> None:
    def losses(seed: int, rank: int) -> list[float]:
        replica = Replica(TrainSettings("inc", seed=seed), a_model_with_everything())
        torch.rand(rank + 3)  # whatever happened before
        replica.seed_layers(rank)
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
