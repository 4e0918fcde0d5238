"""TernGrad's throughput of a GPU cluster (Wen et al., Appendix B, Eqs. 15-18).

j machines have i GPUs each. Gradients are summed over the GPUs of a machine, then go to its CPU, then are summed over
machines; both sums take log2 steps. What one GPU alone needs for a mini-batch is profiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """A cluster's bandwidths in octets per second, and its network's latency in seconds.

    Attributes:
        gpu_Bps: C_gwd, between GPUs of a machine.
        cpu_Bps: C_cwd, between a GPU and its CPU.
        network_Bps: C_nwd, between machines.
        network_delay_s: C_ncost.
    """

    gpu_Bps: float  # noqa: N815 - the unit as it is written
    cpu_Bps: float  # noqa: N815
    network_Bps: float  # noqa: N815
    network_delay_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """What was measured with one GPU: T(1, 1, K, abs(g)).

    Attributes:
        batch_s: of a mini-batch, with the gradient's way to the CPU.
        samples: K, in that mini-batch.
        gradient_octets: abs(g).
    """

    batch_s: float
    samples: int
    gradient_octets: float


def communication_s(cluster: Cluster, octets: float, gpus: int, machines: int) -> float:
    """Return T_comm(i, j, K, abs(g)): the text above Eq. 15."""
    inside_s = octets / cluster.gpu_Bps * math.log2(gpus) + octets / cluster.cpu_Bps
    return inside_s + (cluster.network_delay_s + octets / cluster.network_Bps) * math.log2(machines)


def strong_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return Eq. 15: a mini-batch of K shared by all GPUs, of gradients compressed by ``ratio``."""
    alone_s = profile.batch_s - profile.gradient_octets / cluster.cpu_Bps
    sent = profile.gradient_octets / ratio
    return alone_s / (gpus * machines) + communication_s(cluster, sent, gpus, machines)


def weak_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return Eq. 17: a mini-batch of K for each GPU."""
    alone_s = profile.batch_s - profile.gradient_octets / cluster.cpu_Bps
    return alone_s + communication_s(cluster, profile.gradient_octets / ratio, gpus, machines)


def strong_samples_per_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return Eq. 16."""
    return profile.samples / strong_s(cluster, profile, gpus, machines, ratio=ratio)


def weak_samples_per_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, *, ratio: float = 1.0) -> float:
    """Return Eq. 18."""
    return gpus * machines * profile.samples / weak_s(cluster, profile, gpus, machines, ratio=ratio)


def batch_s_of_speedup(
    cluster: Cluster, profile: Profile, gpus: int, machines: int, ratio: float, speedup: float
) -> float:
    """Return the profiled time with which Eq. 18 gives that speed-up of ternary over float gradients.

    Eq. 18's speed-up is (a + f) / (a + t), with a what a GPU computes, f and t the communication of either; so
    a = (f - speedup · t) / (speedup - 1). A negative time says that no profile gives this speed-up.
    """
    whole = communication_s(cluster, profile.gradient_octets, gpus, machines)
    ternary = communication_s(cluster, profile.gradient_octets / ratio, gpus, machines)
    return (whole - speedup * ternary) / (speedup - 1) + profile.gradient_octets / cluster.cpu_Bps


def up_ratio(bits: float = math.log2(3)) -> float:
    """Return how many times less a worker sends with ternary gradients (3.1): 32 over log2 3, or over 2 bits."""
    return 32 / bits


def down_ratio(workers: int) -> float:
    """Return how many times less the server sends with shared scalers (3.1): 32 / log2(1 + 2 N)."""
    return 32 / math.log2(1 + 2 * workers)
