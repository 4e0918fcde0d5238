"""The methods with threads as ranks, and the codec's arithmetic on tagged channels."""

import dataclasses
import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout
from netoffload.compressors.registry import get
from netoffload.errors import UsageError
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.config import PAPERS, TrainSettings, expand
from netoffload.lab.training.data import Dataset, Images, load_digits
from netoffload.lab.training.doors import Door, ThreadCalls, door_for
from netoffload.lab.training.loop import Timeline, iterate
from netoffload.lab.training.models import MODELS
from netoffload.lab.training.networks import FullyConnected
from netoffload.lab.training.outcome import Parts
from netoffload.lab.training.replica import Replica, accuracy_of
from netoffload.methods import Bucket, Member, Topology, method_for
from netoffload.methods.payloads import PayloadRingReducer
from netoffload.torch.staging import Staged, StagedSparse
from netoffload.transport import Request
from tests.shared.quick_cases import with_quick

BOUND_K = 10
GROUPED = ("wa:groups=2", "wa+c:groups=2", "inc:groups=2", "inc+c:groups=2", "inc:groups=2,top=wa")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits(1)


def train(settings: TrainSettings, digits: Dataset) -> list[tuple[Float32Array, Timeline]]:
    """Run all ranks; each returns its parameters and its timeline."""
    runs = inprocess.run_threads(settings, digits, codec_name="inceptionn")
    return [(run.replica.parameters, run.timeline) for run in runs]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param("gpt", "length=8,classes=9", marks=pytest.mark.slow),
        pytest.param("resnet20", "side=8", marks=pytest.mark.slow),
        ("dettmers-cifar", "side=8"),
    ],
)
def test_other_kinds_of_models_train_on_the_ring(model: str, shape: str) -> None:
    """Tokens and shared weights, normalisation, layers of our own; the noise is soon known by heart."""
    settings = TrainSettings(
        "inc", nodes=2, iterations=12, model=model, data=f"synthetic:{shape}", batch=4, learning_rate=0.01
    )
    (first, timeline), (second, _) = train(settings, data.load(settings))
    np.testing.assert_array_equal(first.view(np.uint32), second.view(np.uint32))
    [(_, start), _] = train(dataclasses.replace(settings, iterations=1), data.load(settings))
    assert timeline.losses[-1] < 0.9 * start.losses[-1]


@pytest.fixture(scope="module")
def by_ring(digits: Dataset) -> Float32Array:
    """Parameters after four iterations of three workers over the exact ring."""
    return train(TrainSettings("inc", nodes=3, iterations=4, learning_rate=0.05), digits)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", with_quick(["wa", "none", "none:via=server", "none:via=ring"], ["wa"]))
def test_exact_ways_train_the_same_up_to_rounding(exchange: str, digits: Dataset, by_ring: Float32Array) -> None:
    other = train(TrainSettings(exchange, nodes=3, iterations=4, learning_rate=0.05), digits)[0][0]
    np.testing.assert_allclose(other, by_ring, rtol=1e-3, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["psgd:p=1", "rsgd:p=1"])
def test_averaging_weights_in_every_iteration_is_averaging_gradients(exchange: str, digits: Dataset) -> None:
    # One step, since each worker has its own momentum afterwards.
    other, inc = (
        train(TrainSettings(name, nodes=2, iterations=1, learning_rate=0.05), digits)[0][0]
        for name in (exchange, "inc")
    )
    np.testing.assert_allclose(other, inc, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exchange", ["wa", "inc", "inc+c"])
def test_one_worker_trains_as_if_alone(exchange: str, digits: Dataset) -> None:
    # Also over the compressed ring: a ring of one sends nothing, so nothing is lost.
    settings = TrainSettings(exchange, nodes=1, iterations=4, learning_rate=0.05)
    alone = Replica(settings)
    own = data.share(settings, digits, 0)
    for iteration, batch in enumerate(itertools.islice(data.batches(*own, settings.batch, settings.seed, 0), 4)):
        alone.iteration = iteration
        alone.backward(*batch)
        alone.update()
    parameters, _ = train(settings, digits)[0]
    np.testing.assert_array_equal(parameters, alone.parameters)


def test_compression_changes_what_is_trained_and_the_loss_scale_narrows_it(digits: Dataset) -> None:
    def distance(scale: float) -> float:
        exact, lossy = (
            train(TrainSettings(exchange, nodes=2, iterations=2, learning_rate=0.05, loss_scale=scale), digits)[0][0]
            for exchange in ("inc", "inc+c")
        )
        return float(np.abs(exact - lossy).mean())

    plain, scaled = distance(1.0), distance(64.0)
    assert 0 < scaled < plain / 4


@pytest.mark.slow
def test_training_learns_over_the_compressed_ring(digits: Dataset) -> None:
    settings = TrainSettings("inc+c", nodes=2, iterations=60, learning_rate=0.05, loss_scale=8)
    parameters, timeline = train(settings, digits)[0]
    replica = Replica(settings)
    replica.parameters[:] = parameters
    assert accuracy_of(replica.module, digits) > 0.8
    assert timeline.losses[-1] < 1.0


def test_time_is_split_by_the_clock_that_is_given() -> None:
    settings = TrainSettings("inc", nodes=1, iterations=2)
    batch = (torch.rand(25, 784), torch.zeros(25, dtype=torch.int64))
    ticks = itertools.count()
    done: list[int] = []

    class Ticking(Replica):
        update_s = 0.0

    replica = Ticking(settings)

    def update() -> None:
        next(ticks)
        replica.update_s += 1.0
        next(ticks)

    timeline = iterate(
        replica, Door(update), itertools.repeat(batch), 2, clock=lambda: float(next(ticks)), after_iteration=done.append
    )
    # Readings per iteration: start, drawn, loss, computed, two of the step, end.
    assert timeline.wall_s == [6.0, 6.0]
    assert timeline.draw_s == [1.0, 1.0]
    assert timeline.parts == [Parts(forward_s=2, backward_s=1, update_s=1)] * 2
    assert timeline.parts[0].compute_s == 4
    assert done == [1, 2]


def test_waiting_for_buckets_is_no_computing() -> None:
    batch = (torch.rand(25, 784), torch.zeros(25, dtype=torch.int64))
    ticks = itertools.count()

    class Waiting(Replica):
        def backward(self, images: torch.Tensor, labels: torch.Tensor, on_loss: Callable[[], None] = int) -> float:  # type: ignore[assignment]
            on_loss()
            for _ in range(5):
                next(ticks)
            door.seconds = (2.0, 1.0, 0.5)
            return 0.0

    @dataclasses.dataclass
    class Overlapping(Door):
        seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)

        @property
        def times(self) -> tuple[float, float, float]:
            return self.seconds

    replica, door = Waiting(TrainSettings("inc", nodes=1)), Overlapping(lambda: None)
    (parts,) = iterate(replica, door, itertools.repeat(batch), 1, clock=lambda: float(next(ticks))).parts
    assert (parts.forward_s, parts.backward_s, parts.hidden_s, parts.sum_s) == (2.0, 4.0, 1.0, 0.5)


@pytest.mark.parametrize("exchange", with_quick(GROUPED, ["inc+c:groups=2"]))
def test_groups_train_the_same_up_to_what_the_codec_rounds(exchange: str, digits: Dataset) -> None:
    settings = TrainSettings(exchange, nodes=4, iterations=2, learning_rate=0.05, loss_scale=64)
    ranks = train(settings, digits)
    assert len(ranks) == settings.ranks == (7 if exchange.startswith("wa") else 4)
    for parameters, _ in ranks[1:]:
        np.testing.assert_array_equal(parameters.view(np.uint32), ranks[0][0].view(np.uint32))
    plain = train(dataclasses.replace(settings, method="inc"), digits)[0][0]
    np.testing.assert_allclose(ranks[0][0], plain, rtol=1e-4, atol=5e-5 if settings.compressed else 2e-6)


@pytest.mark.parametrize(
    ("model", "exchange"),
    [
        ("hdc", "inc"),
        ("resnet20", "inc"),
        pytest.param("hdc", "bounded", marks=pytest.mark.slow),
        pytest.param("hdc", "none:via=server", marks=pytest.mark.slow),
        pytest.param("hdc", "none:via=ring", marks=pytest.mark.slow),
    ],
)
def test_buckets_leave_the_weights_that_the_whole_leaves(exchange: str, model: str, digits: Dataset) -> None:
    # Two workers: with more, a ring adds in another order. Layers that write their gradients themselves, and torch's.
    asked = TrainSettings(exchange, nodes=2, iterations=2, learning_rate=0.05, loss_scale=8, model=model)
    if model != "hdc":
        asked = dataclasses.replace(asked, data="synthetic:side=8", batch=2)
    dataset = digits if model == "hdc" else data.load(asked)
    whole, in_parts = train(asked, dataset), train(dataclasses.replace(asked, bucket_mb=0.3), dataset)
    for (one, _), (other, _) in zip(whole[:2], in_parts[:2], strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_a_bucket_travels_while_backward_goes_on() -> None:
    """Backward stops before the first layer until the last ones are summed, which without overlap never happens."""
    settings = TrainSettings("inc", nodes=2, bucket_mb=9e-4)

    def one_rank(exchange: Exchange) -> tuple[bool, float]:
        summed = threading.Event()
        came: list[bool] = []

        class Stop(torch.nn.Module):
            def forward(self, values: torch.Tensor) -> torch.Tensor:
                values = values.clone()
                values.register_hook(lambda _: came.append(summed.wait(10)))  # type: ignore[no-untyped-call]
                return values

        module = torch.nn.Sequential(FullyConnected(784, 10), Stop(), FullyConnected(10, 10), torch.nn.Linear(10, 10))
        replica, calls = Replica(settings, module), ThreadCalls(exchange, None)
        door, buckets = door_for(settings, replica, calls), []
        assert door.timed is not None
        state = door.timed.compression
        submit = state.submit

        def telling(staged: Staged | StagedSparse, layers: Bucket, *, is_last: bool) -> Request:
            buckets.append(layers)
            request = submit(staged, layers, is_last=is_last)
            request.add_done_callback(lambda _: summed.set())
            return request

        state.submit = telling  # type: ignore[method-assign]
        replica.backward(torch.rand(5, 784), torch.zeros(5, dtype=torch.int64))
        assert buckets == [(2, 3, 4, 5), (1,), (0,)]
        return came == [True], door.timed.hidden_s

    for came, hidden_s in run_ranks(2, one_rank):
        assert came
        assert hidden_s > 0


def test_a_wrong_number_of_ranks_or_no_codec_is_refused() -> None:
    def begun(method: str) -> Callable[[Exchange], object]:
        settings = TrainSettings(method, nodes=2)
        return lambda exchange: door_for(settings, Replica(settings), ThreadCalls(exchange, None))

    with pytest.raises(UsageError, match="wa with 2 workers needs 3 ranks, not 2"):
        run_ranks(2, begun("wa"))
    with pytest.raises(UsageError, match="needs a codec"):
        run_ranks(2, begun("inc+c"))


def test_one_of_every_system_of_the_papers_can_be_asked_for() -> None:
    runs = [TrainSettings(name) for name in expand(["papers", "inc"], MODELS["cnn"].thresholds)]
    assert len(runs) == len({run.method for run in runs}) == len(PAPERS)
    assert {run.spec.topology for run in runs} == set(Topology)
    assert get("qgt", threshold=MODELS["cnn"].thresholds["qgt"]) in [run.spec.compressor for run in runs]


def test_a_ring_of_payloads_has_a_random_stream_for_every_block_of_every_rank() -> None:
    def keys(exchange: Exchange) -> list[tuple[int, int]]:
        own = method_for(TrainSettings("qsgd:via=ring", nodes=3).spec, Member(exchange, layout=Layout((1000,))))
        assert isinstance(own, PayloadRingReducer)
        return [state.key() for state in own.states_of(None)]

    streams = [key for of_rank in run_ranks(3, keys) for key in of_rank]
    assert len(streams) == len(set(streams)) == 3 * 3


def test_a_periodic_method_is_charged_for_its_iterations_alone(digits: Dataset) -> None:
    # Jiang and Agrawal, 5.1: a p-th of the weights in every iteration; making one model at the end is not theirs.
    for name, octets in (("rsgd:p=2", 0.5), ("psgd:p=2", 1 / 3)):
        learned = inprocess.train(TrainSettings(name, nodes=2, iterations=3, learning_rate=0.05), digits)
        assert learned.efficiency == pytest.approx(octets, rel=1e-5)


@pytest.mark.slow
def test_ternary_gradients_train_at_their_default_rate(digits: Dataset) -> None:
    # Brighter than photographs of clothes, which diverge sometimes with HDC's own 0.1; this always does.
    def brighter(images: Images) -> Images:
        return np.float32(1.4) * images + np.float32(0.4)

    bright = dataclasses.replace(
        digits, train_images=brighter(digits.train_images), test_images=brighter(digits.test_images)
    )
    learned = inprocess.train(TrainSettings("terngrad", nodes=2, iterations=24), bright)
    assert learned.accuracy > 0.5
    learned = inprocess.train(TrainSettings("terngrad", nodes=2, iterations=12, learning_rate=0.1), bright)
    assert learned.accuracy < 0.2


def test_pqasgd_needs_fewer_levels_for_shared_data() -> None:
    own, shared = (TrainSettings("pqasgd:p=4", sharing=sharing).spec for sharing in ("partitioned", "shared"))
    assert own.compressor == get("qsgd", rule="mpn", norm="l2", bucket=0, batch=25, period=4)
    assert shared.compressor == get("qsgd", rule="n", norm="l2", bucket=0, batch=25, period=4)
