"""Memory of the ranks: an estimate before a run begins, and a rank's largest resident memory after it.

The estimate counts what grows with model and batch: vectors as long as the parameters, the tensors that forward keeps
for backward, and the largest gradient, which torch makes before it adds it. Libraries take :data:`BASE_OCTETS` more.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from netoffload.collectives.exchange import FLOAT_OCTETS
from netoffload.errors import UsageError
from netoffload.lab.training import models
from netoffload.lab.training.config import TrainSettings
from netoffload.lab.training.data_spec import SampleShape, Tokens
from netoffload.lab.training.networks import FullyConnected, cross_entropy
from netoffload.methods import Topology
from netoffload.methods.buckets import cut

BASE_OCTETS: Final = 500_000_000  # memory of Python, torch, Numba's kernels and MPI in one rank

TRANSIENT: Final = {
    Topology.RING: 0,
    Topology.AGGREGATOR: 0,
    Topology.GATHER: 3,
    Topology.SERVER: 3,
    Topology.PAYLOAD_RING: 1,
}
"""Vectors as long as a bucket that summing it needs beside the bucket: payloads, a decoded one, the sum."""


def check_memory(runs: Sequence[TrainSettings]) -> int:
    """Return the octets that a rank of the largest run needs; ranks share this machine's memory."""
    most = 0
    for run in runs:
        worker, server = rank_octets(run)
        needed = run.nodes * worker + run.spec.servers * server
        available = _octets_of("/proc/meminfo", "MemAvailable")  # to programs, without swapping
        if needed > available:
            raise UsageError(
                f"{run.model} by {run.method} needs about {worker / 1e9:.1f} GB on each of {run.nodes} workers, "
                f"{needed / 1e9:.1f} GB in all, and {available / 1e9:.1f} GB are free: choose a smaller batch, "
                "fewer workers or a smaller model"
            )
        most = max(most, worker, server)
    return most


def rank_octets(run: TrainSettings) -> tuple[int, int]:
    """Return about how many octets a worker needs, and an aggregator or a server."""
    sizes = run.model_spec.layer_sizes(run.sample_shape)
    count, topology, spec = sum(sizes), run.spec.topology, run.spec
    buckets = cut(sizes, run.bucket_mb * 1e6)
    largest = max((sum(sizes[layer] for layer in bucket) for bucket in buckets), default=count)
    state = count * run.optimizer_spec.vectors
    worker = 2 * count + TRANSIENT[topology] * largest + count * (run.error_feedback + 2 * (spec.short == "pqasgd"))
    server = 2 * count + (run.nodes + 2) * largest * (topology is Topology.SERVER)
    if topology is Topology.AGGREGATOR:
        server += state
    else:
        worker += state
    batch = batch_octets(run.model, run.sample_shape, run.batch)
    return BASE_OCTETS + FLOAT_OCTETS * worker + batch, BASE_OCTETS + FLOAT_OCTETS * server


@functools.cache
def batch_octets(name: str, shape: SampleShape, batch: int) -> int:
    """Return the octets that forward keeps for backward of a batch, and those of the largest gradient that torch makes.

    Batches of 2 and 3 samples are computed: what forward keeps grows by the same for each sample. Torch's meta device
    would compute nothing, but imports a compiler, which takes seconds.
    """
    with torch.device("meta"):
        module = models.get(name).build(0, shape)
    module.to_empty(device="cpu")  # weights that nobody writes take no memory
    two, three = (_kept_octets(module, shape, samples) for samples in (2, 3))
    largest = 0
    for layer in module.modules():
        if not isinstance(layer, FullyConnected):  # that one writes its gradient without a copy
            largest = max([largest, *(parameter.nbytes for parameter in layer.parameters(recurse=False))])
    return largest + two + (batch - 2) * (three - two)


def _kept_octets(module: nn.Module, shape: SampleShape, batch: int) -> int:
    """Return the octets of all tensors but the parameters that forward keeps for backward."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    if isinstance(shape, Tokens):
        samples = labels = torch.zeros((batch, shape.length), dtype=torch.int64)
    else:
        samples, labels = torch.zeros((batch, shape.features)), torch.zeros(batch, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        cross_entropy(module(samples), labels)
    for parameter in module.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in kept.values())


def peak_memory_octets() -> int:
    """Return the largest resident memory of this process; getrusage(2) would include its parent's before the exec."""
    return _octets_of("/proc/self/status", "VmHWM")


def _octets_of(file: str, key: str) -> int:
    lines = Path(file).read_text(encoding="ascii").splitlines()
    [kib] = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return int(kib) * 1024
