"""The papers' statements about TernGrad and QSGD, checked on the methods themselves for as long as one likes.

``python -m tests.compressors.promises --draws 10k --values 100M`` (100 M values take 2 GB of memory).

TernGrad (Wen et al., sections 3.1 and 3.3): with a scaler shared by all workers, the mean of a worker's ternary vectors
is the worker's gradient, clipped at c of its own standard deviations. QSGD (Jiang and Agrawal, Eq. 13): the variance
ratio q is at most min(N / (4 s^2), sqrt(N) / s) for all values.
"""

import argparse
import dataclasses
import json
import math
import sys
from itertools import pairwise
from typing import Final

import numpy as np

from netoffload.collectives.samples import gradient_of
from netoffload.compiled.arrays import Float32Array, Float64Array
from netoffload.compressors.base import Layout
from netoffload.compressors.qsgd import Qsgd
from netoffload.compressors.scalers import clip_groups
from netoffload.compressors.terngrad import TernarySum, TernGrad
from netoffload.config import parse_count

CHUNK: Final = 1 << 22
"""Floats whose errors are squared at a time, in float64."""

OFTEN: Final = 25
"""A value is judged only if at least this many draws are expected to differ: then its mean is nearly normal."""

LARGEST_Z: Final = 6.0
"""The most standard errors by which a value's mean may be off; chance exceeds it for one value in 10^9."""

SPREAD: Final = 5.0
"""The most standard deviations by which the mean of z^2 may differ from 1."""


@dataclasses.dataclass(frozen=True)
class MeanCheck:
    """The distance between the mean of a worker's draws and its clipped gradient, in standard errors z.

    The last worker is the server's mean over all of them. ``values`` counts those whose mean is nearly normal.
    ``mean_square``, the mean of z^2, is 1 if only chance is left.
    """

    worker: int
    values: int
    largest_z: float
    mean_square: float

    @property
    def holds(self) -> bool:
        tolerance = SPREAD * math.sqrt(2.1 / self.values)  # a digit's fourth moment is a little above the normal one's
        return self.largest_z < LARGEST_Z and abs(self.mean_square - 1) < tolerance


@dataclasses.dataclass(frozen=True)
class BoundCheck:
    """The variance ratio of one payload beside its bound: N values, s levels."""

    values: int
    levels: float
    variance_ratio: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.variance_ratio <= self.bound


def ternary_means(gradients: list[Float32Array], draws: int, *, seed: int = 1) -> list[MeanCheck]:
    """Judge the mean of many ternary vectors of one layer of each worker, with shared scalers, and the server's."""
    method, layout, workers = TernGrad(), Layout.flat(gradients[0].size), len(gradients)
    states = [method.make_state(layout, seed=seed, rank=rank) for rank in range(workers)]
    own = [method.scalers(values, state) for values, state in zip(gradients, states, strict=True)]
    shared, downlink = np.maximum.reduce(own), TernarySum(method, workers)
    totals = np.zeros((workers + 1, layout.count))
    for _ in range(draws):
        payloads = [
            method.encode_shared(values, shared, state) for values, state in zip(gradients, states, strict=True)
        ]
        for total, payload in zip(totals, payloads, strict=False):
            total += method.decode(payload, layout)
        totals[workers] += downlink.decode(downlink.encode(payloads, layout), layout)
    clipped = [clip_groups(values, layout.groups(), scaler) for values, scaler in zip(gradients, own, strict=True)]
    wanted = np.array([*clipped, np.mean(clipped, axis=0, dtype=np.float64)])
    scaler = float(shared[0])
    errors = (totals / draws - wanted) / np.array([*[scaler] * workers, scaler / workers])[:, None]
    chances = np.abs(np.array(clipped, np.float64)) / scaler
    variances = chances * (1 - chances)
    variances = np.vstack((variances, variances.sum(0)))
    return [_judged(worker, errors[worker], variances[worker], draws) for worker in range(workers + 1)]


def _judged(worker: int, error: Float64Array, variance: Float64Array, draws: int) -> MeanCheck:
    """Judge errors of means of digits, and the variances of those digits."""
    often = variance * draws > OFTEN
    z = error[often] / np.sqrt(variance[often] / draws)
    certain = np.abs(error[variance < 1e-9])
    largest = math.inf if (certain > 1e-6).any() else float(np.abs(z).max())
    return MeanCheck(worker, int(often.sum()), largest, float((z**2).mean()))


def qsgd_bound(values: Float32Array, *, batch: int, seed: int = 1) -> BoundCheck:
    """Encode a layer for batches of m, s = sqrt(m N) / 2; return its variance ratio. Takes 18 octets per value."""
    method, layout = Qsgd(rule="mn", batch=batch, norm="l2", bucket=0), Layout.flat(values.size)
    levels = float(method.levels_of(layout.groups())[0])
    decoded = method.decode(method.encode(values, method.make_state(layout, seed=seed)), layout)
    squares = energy = 0.0
    for first, last in pairwise([*range(0, values.size, CHUNK), values.size]):
        exact = values[first:last].astype(np.float64)
        error = decoded[first:last] - exact
        squares += float(error @ error)
        energy += float(exact @ exact)
    bound = min(values.size / (4 * levels**2), math.sqrt(values.size) / levels)
    return BoundCheck(values.size, levels, squares / energy, bound)


def gradients_like(workers: int, count: int, seed: int) -> list[Float32Array]:
    """Return a gradient per worker, each larger than the one before; the first has an outlier of 20 deviations."""
    random = np.random.default_rng(seed)
    gradients = [random.normal(0, 0.001 * (1 + 3 * rank), count).astype(np.float32) for rank in range(workers)]
    gradients[0][0] = 0.02
    return gradients


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compressors.promises", allow_abbrev=False)
    parser.add_argument("--draws", type=parse_count, default=10_000, help="ternary vectors of each worker")
    parser.add_argument("--workers", type=int, default=4, help="workers that share TernGrad's scaler")
    parser.add_argument("--values", type=parse_count, default=2_000_000, help="floats of QSGD's layer: 2M, 100M")
    parser.add_argument("--batch", type=int, default=256, help="samples per worker, which decide QSGD's levels")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(words)
    means = ternary_means(gradients_like(asked.workers, 2000, asked.seed), asked.draws, seed=asked.seed)
    bound = qsgd_bound(gradient_of(0, asked.values, 0.002, asked.seed), batch=asked.batch, seed=asked.seed)
    holds = bound.holds and all(mean.holds for mean in means)
    told = {"holds": holds, "terngrad": list(map(dataclasses.asdict, means)), "qsgd": dataclasses.asdict(bound)}
    print(json.dumps(vars(asked) | told))
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
