"""Model parallelism: a rank's part of a model, the exchange of activations and errors between parts, and its batches.

::

    --parallel data     every worker has the whole model and its own samples; gradients are exchanged
               model    every worker has a part of every layer and all samples; activations and errors are exchanged
               hybrid   data in the convolutions, model in the fully connected layers behind them

All workers together take the same samples as with ``data``. One iteration changes the model as one rank with all
samples would, up to float rounding. So learning rates and loss scale are the same.

Convolutions are replicas, whose gradients the run's method sums. Of the other layers every rank has and updates only
its part. The parts travel only before an accuracy is measured, before the final SHA-256, and after the last iteration::

    rank r    its columns of the activations ── all-gather ──► all columns · its rows of the weights ──► its outputs
              sum of all ranks' errors       ◄── all-to-all ── errors of all columns ◄── its output errors

A rank's part of a layer is its outputs ``partition(outputs, ranks)[r]``: rows of the weight. Layers that work value by
value (ReLU, dropout) stand behind a part, so activations pass them before they travel. Behind convolutions, the first
layer's parts are samples instead of columns: each rank's sub-batch goes to all ranks. The last outputs are gathered,
and every rank computes the loss of all samples.

A compressor encodes a matrix as one layer: with ``norm=max`` it divides by the largest magnitude. Every rank decodes
the same octets, also its own part, so all ranks have the same activations.

With several sub-batches a thread moves one while the caller multiplies the previous one, in both directions. The last
errors travel while the gradient of the weights is computed.

Source: T. Dettmers, "8-bit approximations for parallelism in deep learning" (ICLR 2016), sections 2.2, 2.4 and 5.1.2.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

from netoffload.collectives import Exchange, Payload, allgather_payloads, alltoall_payloads
from netoffload.collectives.schedule import partition
from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Compressor, Layout
from netoffload.lab.training import data
from netoffload.lab.training.config import Parallel, TrainSettings
from netoffload.lab.training.data import Dataset
from netoffload.lab.training.networks import FullyConnected
from netoffload.lab.training.replica import Batches, Replica, Travel, build_model
from netoffload.methods import Sent


class SplitReplica(Replica):
    """A replica of the convolutions, and this rank's part of the fully connected layers behind them.

    The first ``shared`` floats of ``parameters`` and ``gradient`` are the convolutions'.
    """

    def __init__(self, settings: TrainSettings, exchange: Exchange) -> None:
        whole = build_model(settings)
        self._first = first = settings.first_fully_connected(whole)
        assert isinstance(whole, nn.Sequential)
        self._is_model = settings.parallel == Parallel.MODEL
        self.activations = ActivationExchange(exchange, settings.activation_compressor)
        part = split_sequence(
            whole, first, self.activations, has_whole_inputs=self._is_model, sub_batches=settings.sub_batches
        )
        self.shared = sum(tensor.numel() for tensor in whole[:first].parameters())
        super().__init__(settings, part)
        self.parameter_count = sum(tensor.numel() for tensor in whole.parameters())
        if self.shared:  # the convolutions' gradients are divided when they are averaged
            self._loss_factor *= settings.nodes
        self._before, self._behind = part[:first], part[first:]

    @property
    def travelling(self) -> dict[str, nn.Parameter]:
        """See :attr:`Replica.travelling`: those of the convolutions."""
        layers = {layer.name for layer in self.layers if layer.offset < self.shared}
        return {name: one for name, one in super().travelling.items() if name in layers}

    @property
    def travel(self) -> Travel:
        """See :attr:`Replica.travel`."""
        return Travel(self.activations.waited_s, self.activations.hidden_s)

    def training_outputs(self, images: torch.Tensor) -> torch.Tensor:
        """See :meth:`Replica.training_outputs`; returns the outputs for all workers' samples."""
        workers = self._settings.nodes
        # With --parallel model all ranks have the same samples, so the first layers must draw alike on all of them.
        self._seed_layers_by(workers if self._is_model else self.rank)
        inputs = self._before(images)
        self._seed_layers_by(None if self.rank is None else workers + 1 + self.rank)
        outputs: torch.Tensor = self._behind(inputs)
        return outputs

    def update(self) -> None:
        """See :meth:`Replica.update`."""
        if self.shared:
            np.divide(self.gradient[self.shared :], self._settings.nodes, out=self.gradient[self.shared :])
        super().update()

    def count_in(self, sent: Sent) -> None:
        """See :meth:`Replica.count_in`."""
        self.activations.sent = sent

    def collect(self, exchange: Exchange) -> None:
        """Gather the parts of all ranks on every rank."""
        own = self.parameters[self.shared :].view(np.uint8)
        parts = [torch.from_numpy(octets.view(np.float32)) for octets in allgather_payloads(exchange, own)]
        settings = self._settings
        whole = build_model(settings)
        assert isinstance(whole, nn.Sequential)
        whole[: self._first].load_state_dict(self._before.state_dict())
        with torch.no_grad():
            for tensor in whole[self._first :].parameters():
                for rank, span in enumerate(partition(len(tensor), exchange.size)):
                    rows = tensor[span.start : span.stop]
                    rows.copy_(parts[rank][: rows.numel()].view_as(rows))
                    parts[rank] = parts[rank][rows.numel() :]
        self.whole = whole


def replica_of(settings: TrainSettings, exchange: Exchange) -> Replica:
    """Return this rank's replica of a run's model, or its part of one."""
    return Replica(settings) if settings.parallel == Parallel.DATA else SplitReplica(settings, exchange)


def batch_source(settings: TrainSettings, dataset: Dataset, worker: int) -> Callable[[int], Batches]:
    """Return a function that yields a worker's batches after a number of first ones.

    With ``data`` a worker has its own samples, with ``model`` all workers' samples. With ``hybrid`` it has its own
    samples and all workers' labels, in sub-batches.
    """
    if settings.parallel == Parallel.DATA:
        own = data.share(settings, dataset, worker)
        return lambda first: data.batches(*own, settings.batch, settings.seed, worker, first)
    is_hybrid = settings.parallel == Parallel.HYBRID
    shares = []
    for each in range(settings.nodes):
        images, labels = data.share(settings, dataset, each)
        # Only the labels of other workers' samples are needed; any array stands for their images.
        shares.append((labels if is_hybrid and each != worker else images, labels))
    pieces = settings.sub_batches if is_hybrid else 1

    def joint(first: int) -> Batches:
        every = [
            data.batches(*shares[each], settings.batch, settings.seed, each, first) for each in range(settings.nodes)
        ]
        for batches in zip(*every, strict=True):
            cut = zip(*(one[1].chunk(pieces) for one in batches), strict=True)
            images = batches[worker][0] if is_hybrid else torch.cat([one[0] for one in batches])
            yield images, torch.cat([labels for sub_batch in cut for labels in sub_batch])

    return joint


Arrived = Future[tuple[list[Float32Array], float, float]]
"""One vector per rank, in rank order, and the times at which coding and moving began and ended, in seconds."""


class ActivationExchange:
    """Exchanges activations and errors between ranks in a thread, one call after the other.

    Attributes:
        exchange: the exchange of the ranks; no other code may use it between :meth:`gather` or :meth:`deliver` and
            the end of :meth:`wait`.
        sent: counters of sent octets; a run puts those of its method here.
        hidden_s: seconds of coding and moving before the caller waited.
    """

    def __init__(self, exchange: Exchange, compressor: Compressor | None = None) -> None:
        """Send encoded by ``compressor``, which must keep no residual; None: send float32."""
        self.exchange, self.sent, self.waited_s, self.hidden_s = exchange, Sent(), 0.0, 0.0
        self._compressor = compressor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="activations")

    def gather(self, part: torch.Tensor, sizes: Sequence[int]) -> Arrived:
        """Begin to send this rank's part to all ranks; ``sizes`` are the lengths of all ranks' parts."""
        values = _flat(part)

        def move() -> list[Float32Array]:
            payload = self._encode(values)
            self.sent.octets += payload.size * (self.exchange.size - 1)
            self.sent.activation_octets += payload.size
            return list(map(self._decode, allgather_payloads(self.exchange, payload), sizes))

        return self._thread.submit(self._timed, move)

    def deliver(self, parts: Sequence[torch.Tensor]) -> Arrived:
        """Begin to send each rank its part of ``parts``, and to receive a part of this rank's length from each."""
        vectors = [_flat(part) for part in parts]

        def move() -> list[Float32Array]:
            rank, payloads = self.exchange.rank, list(map(self._encode, vectors))
            octets = sum(payload.size for payload in payloads)
            self.sent.octets += octets - payloads[rank].size
            self.sent.activation_octets += octets
            size = vectors[rank].size
            return [self._decode(payload, size) for payload in alltoall_payloads(self.exchange, payloads)]

        return self._thread.submit(self._timed, move)

    def wait(self, arriving: Arrived) -> list[torch.Tensor]:
        """Wait for the vectors and return them."""
        started = time.perf_counter()
        vectors, began, ended = arriving.result()
        self.waited_s += time.perf_counter() - started
        self.hidden_s += max(0.0, min(ended, started) - began)
        return list(map(torch.from_numpy, vectors))

    @staticmethod
    def _timed(move: Callable[[], list[Float32Array]]) -> tuple[list[Float32Array], float, float]:
        began = time.perf_counter()
        return move(), began, time.perf_counter()

    def _encode(self, values: Float32Array) -> Payload:
        if self._compressor is None:
            return values.view(np.uint8)
        return self._compressor.encode(values, self._compressor.make_state(Layout.flat(values.size)))

    def _decode(self, payload: Payload, size: int) -> Float32Array:
        if self._compressor is None:
            return payload.view(np.float32)
        return self._compressor.decode(payload, Layout.flat(size))


def _flat(values: torch.Tensor) -> Float32Array:
    array: Float32Array = values.detach().reshape(-1).contiguous().numpy()
    return array


@dataclasses.dataclass(frozen=True)
class Join:
    """The columns of each rank's part of a matrix; none: parts are rows, equally many on each rank."""

    activations: ActivationExchange
    columns: tuple[int, ...]
    sub_batches: int = 1

    def gather(self, part: torch.Tensor) -> Arrived:
        """Begin to gather all of a sub-batch, of which this rank has ``part``."""
        size = self.activations.exchange.size
        return self.activations.gather(part, [len(part) * width for width in self.columns] or [part.numel()] * size)

    def wait_whole(self, arriving: Arrived, rows: int) -> torch.Tensor:
        """Return all of a sub-batch, float32[all rows, all columns]; this rank's part has ``rows`` rows."""
        parts = [part.view(rows, -1) for part in self.activations.wait(arriving)]
        return torch.cat(parts, 1 if self.columns else 0)

    def deliver(self, errors: torch.Tensor) -> Arrived:
        """Begin to give every rank its part of the errors of a sub-batch."""
        size = self.activations.exchange.size
        return self.activations.deliver(
            torch.split(errors, list(self.columns), 1) if self.columns else errors.chunk(size)
        )

    def wait_sum(self, arriving: Arrived, rows: int) -> torch.Tensor:
        """Return the sum of all ranks' errors for this rank's part."""
        first, *others = self.activations.wait(arriving)
        return sum(others, start=first).view(rows, -1)


class GatheredProduct(torch.autograd.Function):
    """A part of a fully connected layer that gathers its inputs, and in backward sends their errors to their ranks.

    It writes gradients into given memory, as :class:`~netoffload.lab.training.networks.LinearInPlace` does.
    """

    @staticmethod
    def forward(
        ctx: Any,
        part: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        gradients: tuple[torch.Tensor, torch.Tensor],
        join: Join,
    ) -> torch.Tensor:
        """Return this rank's outputs of all samples, float32[samples, rows of the weight]."""
        pieces = part.chunk(join.sub_batches)
        arriving = [join.gather(piece) for piece in pieces]
        wholes, outputs = [], []
        for piece, coming in zip(pieces, arriving, strict=True):
            wholes.append(join.wait_whole(coming, len(piece)))
            outputs.append(torch.addmm(bias, wholes[-1], weight.t()))
        ctx.save_for_backward(weight, *wholes)
        ctx.gradients, ctx.join, ctx.rows = gradients, join, len(pieces[0])
        return torch.cat(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None, None]:
        """Overwrite both gradients; return the errors of this rank's part of the inputs."""
        (outward,) = output_gradients
        join: Join = ctx.join
        weight, *wholes = ctx.saved_tensors
        weight_gradient, bias_gradient = ctx.gradients
        pieces = outward.chunk(join.sub_batches)
        arriving = [join.deliver(piece.mm(weight)) for piece in pieces]
        torch.mm(pieces[0].t(), wholes[0], out=weight_gradient)
        for piece, whole in zip(pieces[1:], wholes[1:], strict=True):
            weight_gradient.addmm_(piece.t(), whole)
        torch.sum(outward, 0, out=bias_gradient)
        return torch.cat([join.wait_sum(coming, ctx.rows) for coming in arriving]), None, None, None, None


class SplitLayer(FullyConnected):
    """A part of a fully connected layer whose inputs are in parts."""

    def __init__(self, outputs: int, inputs: int, join: Join) -> None:
        """Take ``inputs``, the columns of all ranks together; weights are not initialised."""
        super().__init__(inputs, outputs)
        self._join = join

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return this rank's outputs of all samples."""
        gradients = self.weight.grad, self.bias.grad
        outputs: torch.Tensor = GatheredProduct.apply(  # type: ignore[no-untyped-call]
            inputs, self.weight, self.bias, gradients, self._join
        )
        return outputs


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, join: Join) -> torch.Tensor:
        ctx.join = join
        return join.wait_whole(join.gather(part), len(part))

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Every rank computes the loss of all outputs, so it has the errors of its own outputs.
        join: Join = ctx.join
        return torch.split(output_gradients[0], list(join.columns), 1)[join.activations.exchange.rank], None


class GatherOutputs(nn.Module):
    """Gathers all outputs of the last layer on every rank."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self._join = join

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        """Return float32[samples, outputs]."""
        whole: torch.Tensor = _Gathered.apply(part, self._join)  # type: ignore[no-untyped-call]
        return whole


def split_sequence(
    module: nn.Sequential, first: int, activations: ActivationExchange, *, has_whole_inputs: bool, sub_batches: int
) -> nn.Sequential:
    """Return this rank's part of a model, with the weights that it has in ``module``.

    Args:
        first: index of its first fully connected layer; layers before it stay whole.
        has_whole_inputs: whether every rank has that layer's inputs of all samples, or only of its own samples.
        sub_batches: number of pieces in which each matrix travels; it divides a rank's number of samples.
    """
    exchange = activations.exchange
    part = nn.Sequential()
    columns: tuple[int, ...] = ()
    for number, (name, layer) in enumerate(module.named_children()):
        if not isinstance(layer, nn.Linear):
            part.add_module(name, layer)
            continue
        join = Join(activations, columns, sub_batches)
        spans = partition(layer.out_features, exchange.size)
        columns, mine = tuple(map(len, spans)), spans[exchange.rank]
        is_plain = number == first and has_whole_inputs
        inputs = layer.in_features
        split = FullyConnected(inputs, len(mine)) if is_plain else SplitLayer(len(mine), inputs, join)
        with torch.no_grad():
            split.weight.copy_(layer.weight[mine.start : mine.stop])
            split.bias.copy_(layer.bias[mine.start : mine.stop])
        part.add_module(name, split)
    part.add_module("outputs", GatherOutputs(Join(activations, columns)))
    return part
