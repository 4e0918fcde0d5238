"""TernGrad's throughput of a GPU cluster (Wen et al., Appendix B, Eqs. 15-18).

j machines have i GPUs each. Gradients are summed over the GPUs of a machine, then go to its CPU, then are summed over
machines; both sums take log2 steps. The time of a mini-batch on a single GPU is an input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """A cluster's bandwidths in octets per second, and its network's latency in seconds.

    Attributes:
        gpu_Bps: C_gwd, bandwidth between GPUs of a machine.
        cpu_Bps: C_cwd, bandwidth between a GPU and its CPU.
        network_Bps: C_nwd, bandwidth between machines.
        network_delay_s: C_ncost, latency of the network.
    """

    gpu_Bps: float  # noqa: N815 - the unit as it is written
    cpu_Bps: float  # noqa: N815
    network_Bps: float  # noqa: N815
    network_delay_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A profile with one GPU: T(1, 1, K, abs(g)).

    Attributes:
        batch_s: time of a mini-batch, with the gradient's copy to the CPU.
        samples: K, samples of the mini-batch.
        gradient_octets: abs(g), octets of the gradient.
    """

    batch_s: float
    samples: int
    gradient_octets: float


def communication_s(cluster: Cluster, octets: float, gpus: int, machines: int) -> float:
    """Return T_comm(i, j, K, abs(g)), by the text above Eq. 15."""
    inside_s = octets / cluster.gpu_Bps * math.log2(gpus) + octets / cluster.cpu_Bps
    return inside_s + (cluster.network_delay_s + octets / cluster.network_Bps) * math.log2(machines)


def strong_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return the time by Eq. 15: all GPUs share a mini-batch of K samples; ``ratio`` compresses gradients."""
    alone_s = profile.batch_s - profile.gradient_octets / cluster.cpu_Bps
    sent = profile.gradient_octets / ratio
    return alone_s / (gpus * machines) + communication_s(cluster, sent, gpus, machines)


def weak_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return the time by Eq. 17: each GPU has a mini-batch of K samples."""
    alone_s = profile.batch_s - profile.gradient_octets / cluster.cpu_Bps
    return alone_s + communication_s(cluster, profile.gradient_octets / ratio, gpus, machines)


def strong_samples_per_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return the samples per second of all GPUs by Eq. 16."""
    return profile.samples / strong_s(cluster, profile, gpus, machines, ratio=ratio)


def weak_samples_per_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return the samples per second of all GPUs by Eq. 18."""
    return gpus * machines * profile.samples / weak_s(cluster, profile, gpus, machines, ratio=ratio)


def batch_s_of_speedup(
    cluster: Cluster, profile: Profile, gpus: int, machines: int, ratio: float, speedup: float
) -> float:
    """Return the profiled time with which Eq. 18 gives ``speedup`` of ternary over float gradients.

    Eq. 18's speed-up is (a + f) / (a + t): a is a GPU's computing time, f and t are the communication of float and
    ternary gradients. So a = (f - speedup · t) / (speedup - 1). A negative time means that no profile gives this
    speed-up.
    """
    whole = communication_s(cluster, profile.gradient_octets, gpus, machines)
    ternary = communication_s(cluster, profile.gradient_octets / ratio, gpus, machines)
    return (whole - speedup * ternary) / (speedup - 1) + profile.gradient_octets / cluster.cpu_Bps


def up_ratio(bits: float = math.log2(3)) -> float:
    """Return how many times fewer octets a worker sends with ternary gradients (3.1): 32 over log2 3, or 2 bits."""
    return 32 / bits


def down_ratio(workers: int) -> float:
    """Return how many times fewer octets the server sends with shared scalers (3.1): 32 / log2(1 + 2 N)."""
    return 32 / math.log2(1 + 2 * workers)
