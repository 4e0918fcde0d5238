"""A run without a testbed: the ranks are threads, and their octets go through memory.

The doors are those of a real run, so the run learns the same as over links, and each rank counts what it sends. There
are no NICs; if a codec is given, it rounds tagged floats as NICs would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from netoffload import codec
from netoffload.collectives import Exchange
from netoffload.collectives.inprocess import run_ranks
from netoffload.compiled.arrays import Float32Array
from netoffload.config import BOUND_K_DEFAULT
from netoffload.errors import UsageError
from netoffload.lab.training.config import Checkpointing, TrainSettings
from netoffload.lab.training.dataset import Dataset
from netoffload.lab.training.doors import ThreadCalls
from netoffload.lab.training.loop import AfterIteration, RankRun
from netoffload.lab.training.measure import FLOAT_OCTETS

CAPACITY_OCTETS: Final = 8 << 20
"""Octets of HDC's gradient fit, so threads take fewer turns."""

TIMEOUT_S: Final = 120.0
"""Time that a rank waits for another one's computing."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """The result of a run; ``efficiency``: octets of worker 0's vectors over one float32 gradient per iteration."""

    accuracy: float
    final_loss: float | None
    efficiency: float
    sha256: str
    accuracy_after: dict[str, float]


def train(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    codec_name: str | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    checkpointing: Checkpointing | None = None,
) -> Learned:
    """Train and return the result; arguments and errors as for :func:`run_threads`."""
    run, *_ = run_threads(settings, dataset, codec_name=codec_name, bound_k=bound_k, checkpointing=checkpointing)
    octets = run.sent.vector_octets + run.sent.activation_octets
    whole = FLOAT_OCTETS * run.replica.parameter_count * max(1, len(run.timeline.wall_s))
    milestones = run.milestones
    return Learned(
        milestones.measure(), run.final_loss, octets / whole, run.replica.digest(), milestones.accuracy_after
    )


def run_threads(
    settings: TrainSettings,
    dataset: Dataset,
    *,
    codec_name: str | None = None,
    bound_k: int = BOUND_K_DEFAULT,
    checkpointing: Checkpointing | None = None,
    watching: Callable[[int, RankRun], AfterIteration | None] = lambda _rank, _run: None,
) -> list[RankRun]:
    """Train with threads as ranks and return all of them; torch's threads are set to one.

    Args:
        codec_name: codec that rounds tagged floats; None: there are no NICs.
        watching: called on every rank before its first iteration; returns what to call after each.
    """
    if settings.compressed and codec_name is None:
        raise UsageError(f"{settings.method} needs NICs: it cannot be trained in one process")
    torch.set_num_threads(1)
    chosen = codec.get(codec_name) if codec_name else None

    def quantise(block: Float32Array) -> None:
        assert chosen is not None
        chosen.round_trip(block, bound_k, out=block)

    def one_rank(exchange: Exchange) -> RankRun:
        torch.set_num_threads(1)
        run = RankRun(settings, dataset, ThreadCalls(exchange, quantise if chosen else None), checkpointing)
        run.begin()
        run.iterate(watching(exchange.rank, run))
        run.finish()
        return run

    return run_ranks(
        settings.ranks,
        one_rank,
        codec=chosen,
        bound_k=bound_k,
        capacity_octets=CAPACITY_OCTETS,
        timeout_s=TIMEOUT_S,
    )


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads while the context lasts."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
