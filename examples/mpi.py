"""Softmax regression in NumPy, over mpi4py; gradients are summed by a compressed allreduce, with no root and no torch.

mpiexec -n 4 python -m mpi4py examples/mpi.py
"""

import argparse

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

from netoffload_mpi import CompComm

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--offload", help="nic, inline, auto (the default) or off")
asked = parser.parse_args()

SCALE = np.float32(16)  # brings the gradient into the codec's range
RATE = np.float32(0.1)

digits = load_digits()
features = np.random.default_rng(0).normal(0, 0.125, (64, 1024))  # random ones, the same on all ranks
images = np.maximum(digits.data / 16 @ features, 0).astype(np.float32)
labels = np.eye(10, dtype=np.float32)[digits.target]


def probabilities(weights: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Return the model's probabilities, float32[n, 10]."""
    scores = some @ weights
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


with CompComm(MPI.COMM_WORLD, codec="packed", bound_k=10, offload=asked.offload) as comm:
    rng = np.random.default_rng(comm.rank)
    mine = np.arange(comm.rank, 1500, comm.size)  # the last 297 are for the test
    weights = np.zeros((1024, 10), np.float32)
    for step in range(asked.steps):
        chosen = rng.choice(mine, 32)
        found = probabilities(weights, images[chosen])
        gradient = np.ascontiguousarray(images[chosen].T @ (found - labels[chosen])) * (SCALE / 32)
        comm.Allreduce_comp(MPI.IN_PLACE, gradient, average=True)
        weights -= RATE * gradient / SCALE
        if comm.rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: loss {-np.log(found[labels[chosen] > 0]).mean():.3f}")
    right = (probabilities(weights, images[1500:]).argmax(1) == digits.target[1500:]).mean()
    totals = comm.totals()
    if comm.rank == 0:
        print(f"accuracy {right:.1%}; {totals.payload_octets:,} octets sent for {totals.raw_octets:,}", end=": ")
        print(f"ratio {totals.ratio:.1f}")
