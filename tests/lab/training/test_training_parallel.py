"""Models split over ranks, with threads as ranks."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.training.checkpoint import describe
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.data import make_noise
from netoffload.lab.training.inprocess import run_threads, train
from netoffload.lab.training.parallel import batch_source
from netoffload.lab.training.replica import Replica
from netoffload.methods import Sent

ITERATIONS = 3
MODEL = TrainSettings("inc", nodes=3, iterations=ITERATIONS, batch=4, parallel="model", data="synthetic:samples=24")
HYBRID = dataclasses.replace(MODEL, model="cnn", parallel="hybrid")


def trained(settings: TrainSettings) -> list[tuple[Float32Array, Sent, float, str]]:
    """Return, by rank, the whole model's parameters, what was sent, the loss, and the SHA-256."""
    dataset = make_noise(settings.sample_shape, 24, 1)
    found = []
    for run in run_threads(settings, dataset):
        replica, loss = run.replica, run.loss
        assert loss is not None
        whole = torch.cat([tensor.detach().reshape(-1) for tensor in replica.whole.parameters()])
        found.append((whole.numpy(), run.sent, loss, replica.digest()))
    return found


def alone(settings: TrainSettings) -> tuple[Float32Array, float]:
    """Return the parameters and the loss of one rank with the whole model and all workers' samples."""
    dataset = make_noise(settings.sample_shape, 24, 1)
    as_data = dataclasses.replace(settings, parallel="data", activations="float32", sub_batches=1)
    one = dataclasses.replace(as_data, nodes=1, batch=settings.batch * settings.nodes)
    sources = [batch_source(as_data, dataset, worker)(0) for worker in range(settings.nodes)]
    replica, loss = Replica(one), 0.0
    for iteration in range(settings.iterations):
        batches, replica.iteration = [next(source) for source in sources], iteration
        loss = replica.backward(torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches]))
        replica.update()
    return replica.parameters, loss


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        MODEL,
        dataclasses.replace(MODEL, sub_batches=2, loss_scale=8.0),
        HYBRID,
        dataclasses.replace(HYBRID, sub_batches=4, loss_scale=8.0),
        dataclasses.replace(HYBRID, model="lenet5"),
    ],
    ids=lambda settings: f"{settings.model} {settings.parallel} {settings.sub_batches}",
)
def test_a_split_model_learns_what_one_rank_learns(settings: TrainSettings) -> None:
    expected, expected_loss = alone(settings)
    began = Replica(dataclasses.replace(settings, parallel="data", sub_batches=1)).parameters
    ranks = trained(settings)
    for parameters, _, loss, _ in ranks:
        assert np.abs(expected - began).max() > 1e-3  # it moves by much more than the tolerance
        np.testing.assert_allclose(parameters, expected, rtol=1e-4, atol=2e-6)
        assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert len({digest for *_, digest in ranks}) == 1


def test_eight_bits_take_a_quarter_of_the_octets() -> None:
    floats, octets = (trained(dataclasses.replace(MODEL, activations=name)) for name in ("float32", "8bit-dynamic"))
    for (_, whole, loss, _), (_, quarter, near, _) in zip(floats, octets, strict=True):
        # A payload has 8 octets of header and a scaler of 4: 4 layers' activations to 2 peers, 4 layers' errors to 2.
        assert quarter.octets == whole.octets // 4 + ITERATIONS * (5 + 4) * 2 * 12
        assert near == pytest.approx(loss, rel=0.05)
        assert near != loss


def test_sent_is_all_that_the_activations_and_errors_take() -> None:
    samples, hidden, classes = 12, (167, 167, 166), (4, 3, 3)
    for rank, (_, sent, _, _) in enumerate(trained(MODEL)):
        gathered = 2 * samples * (4 * hidden[rank] + classes[rank])
        delivered = 4 * samples * (500 - hidden[rank])
        assert sent.octets == 4 * ITERATIONS * (gathered + delivered)
        assert sent.tagged_octets == 0


def test_a_run_in_one_process_measures_the_whole_model() -> None:
    dataset = make_noise(MODEL.sample_shape, 24, 1)
    learned = train(dataclasses.replace(MODEL, eval_every=2), dataset)
    _, sent, _, sha256 = trained(MODEL)[0]
    assert learned.sha256 == sha256
    assert learned.efficiency == sent.activation_octets / (4 * 1_149_010 * ITERATIONS)
    assert 0 <= learned.accuracy <= 1
    assert list(learned.accuracy_after) == ["2"]


def test_a_split_model_goes_on_bit_for_bit(tmp_path: Path) -> None:
    dataset = make_noise(MODEL.sample_shape, 24, 1)
    for iterations in (2, ITERATIONS):
        settings = dataclasses.replace(MODEL, iterations=iterations)
        asked = Checkpointing(str(tmp_path), 2, iterations > 2, describe(settings, None, None))
        learned = train(settings, dataset, checkpointing=asked)
    assert learned.sha256 == train(MODEL, dataset).sha256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "gpt", "data": "text"}, "does not end with fully connected layers"),
        ({"nodes": 12}, "a layer of 10 outputs: 12 workers cannot split it"),
        ({"model": "cnn"}, "use --parallel hybrid"),
        ({"parallel": "hybrid"}, "use --parallel model"),
        ({"parallel": "tensor"}, "parallel"),
        ({"method": "inc+c"}, "exchanges no gradients"),
        ({"parallel": "hybrid", "model": "cnn", "method": "wa"}, "use inc, not wa"),
        ({"parallel": "hybrid", "model": "cnn", "method": "psgd"}, "use inc, not psgd"),
        ({"activations": "terngrad"}, "8-bit type"),
        ({"parallel": "data", "activations": "8bit-dynamic"}, "need --parallel model or hybrid"),
        ({"sub_batches": 3}, "a batch of 4 cannot be cut into 3"),
        ({"clip_norm": 1.0}, "--clip-norm"),
        ({"parallel": "hybrid", "model": "cnn", "bucket_mb": 1.0}, "buckets need --parallel data"),
    ],
)
def test_what_cannot_be_split_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(MODEL, **changes)  # type: ignore[arg-type]
