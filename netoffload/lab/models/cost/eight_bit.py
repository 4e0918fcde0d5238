"""Dettmers' predicted speed-ups of AlexNet on 4 and on 96 GPUs (ICLR 2016, sections 5.1 and 5.2), from his tables.

Times are milliseconds, as printed. The text gives the formulas of the speed-up and of the penalties for 4 GPUs. For 96
GPUs it gives no formula for Table 6; its printed figures follow this one::

    sync of a full pass = 31 (sync - 1.3)     where a sync takes longer than the 1.3 ms that hide it
                          sync                else: only the first one is seen

It gives 11 of the 12 printed totals to the last digit. For 12288 samples and 32 bits, 31 · 250 is printed (with a
question mark), without the 1.3. No formula of the text gives Table 6's single synchronisations from Table 5.
:func:`message_ms` adds the parts that the text names, and is 10 % below most of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GPUS: Final = 4
CLUSTER_GPUS: Final = 96
CLUSTER_NODES: Final = 32

FC_MS: Final = 6.5
"""Table 4: the fully connected layers, on one GPU."""
PARALLEL_FC_MS: Final = 3.34
"""Table 4: the same with a fourth of their outputs."""
CONV_PENALTY_MS: Final = 0.05
"""5.1.3: the last convolution's gradient, which nothing hides."""
TOTAL_MS: Final[Mapping[str, float]] = {"NervanaGPU": 104.1, "convnet2": 177.0}
"""5.1.3: a full pass, by the kernels."""

FC_PARTS_MS: Final = (1.3, 1.3, 1.5, 0.45, 0.45, 0.5, 0.4, 0.4, 0.2)
PARALLEL_FC_PARTS_MS: Final = (0.9, 0.9, 0.43, 0.3, 0.3, 0.13, 0.15, 0.15, 0.08)
"""Table 4: forward, backward and update of the three layers."""

PENALTY_TERMS_MS: Final[Mapping[int, tuple[tuple[float, float], ...]]] = {
    32: ((0.9, 0.9), (1.1, 0.3), (1.1, 0.15), (0.4, 0.3), (1.1, 0.9), (1.1, 0.64)),
    8: ((0.5, 0.3), (0.5, 0.15)),
}
"""5.1.2: the time of synchronising, and the time that hides it."""
UNHIDDEN_MS: Final[Mapping[int, float]] = {32: 0.9, 8: 0.4}
UNHIDDEN_COUNT: Final = 5
PRINTED_PENALTY_MS: Final[Mapping[int, float]] = {32: 6.81, 8: 2.55}

FORWARD_MS: Final = 6.5
"""Table 6: a forward pass of one sub-batch through the fully connected layers."""
HIDDEN_MS: Final = 1.3
"""5.2.2: the multiplication that hides a transfer."""

PRINTED_SYNC_MS: Final[Mapping[int, tuple[float, float]]] = {
    128: (2.1, 0.35),
    256: (4.2, 0.55),
    512: (7.15, 1.13),
    1024: (17.4, 2.25),
    2048: (25.5, 3.26),
    12288: (250.0, 31.0),
}
"""Table 6 by sub-batch: one synchronisation of the activations with 32 and with 8 bits."""
PRINTED_PASS_MS: Final[Mapping[int, tuple[float, float]]] = {
    128: (24.8, 0.35),
    256: (89.9, 0.55),
    512: (181.0, 1.13),
    1024: (499.0, 29.5),
    2048: (750.0, 60.8),
    12288: (7750.0, 921.0),
}
"""Table 6: the waiting time of a full pass."""
MESSAGES: Final[Mapping[int, tuple[tuple[float, float], tuple[float, float]]]] = {
    128: ((144, 0.035), (18, 0.007)),
    256: ((288, 0.07), (36, 0.01)),
    512: ((576, 0.1), (72, 0.02)),
    1024: ((1152, 0.3), (144, 0.04)),
    2048: ((2312, 0.7), (289, 0.07)),
    12288: ((13872, 5.0), (1734, 0.06)),
}
"""Table 5 by sub-batch: kilobytes of a message and its latency in ms, with 32 and with 8 bits."""
PRINTED_SPEEDUPS: Final[Mapping[tuple[str, int], tuple[str, str]]] = {
    ("NervanaGPU", 128): ("13.4", "13.8"),
    ("NervanaGPU", 256): ("20", "24.4"),
    ("NervanaGPU", 512): ("23", "39.3"),
    ("NervanaGPU", 1024): ("14.8", "48.6"),
    ("NervanaGPU", 2048): ("11.3", "50.6"),
    ("NervanaGPU", 12288): ("1.3", "9.7"),
    ("convnet2", 128): ("20.7", "21.4"),
    ("convnet2", 256): ("29.7", "35.2"),
    ("convnet2", 512): ("33.5", "51.9"),
    ("convnet2", 1024): ("22.7", "61"),
    ("convnet2", 2048): ("17.7", "62.8"),
    ("convnet2", 12288): ("2.15", "15.5"),
}
"""Table 7 by kernels and sub-batch: with 32 and with 8 bits, as printed."""
PRINTED_FOUR: Final[Mapping[str, tuple[str, str]]] = {"NervanaGPU": ("3.53", "3.67"), "convnet2": ("3.71", "3.8")}
"""5.1.3."""
BITS: Final = (32, 8)


@dataclass(frozen=True)
class Cluster:
    """A network between nodes: octets per second on it and between GPUs of a node, and messages of a broadcast."""

    network_Bps: float = 6e9  # noqa: N815 - the unit as it is written
    pcie_Bps: float = 5e9  # noqa: N815
    messages: int = CLUSTER_NODES - 1
    pcie_messages: int = 2


def fc_penalty_ms(bits: int) -> float:
    """Return the time that synchronising the fully connected layers adds on 4 GPUs (5.1.2, the sum of both sums)."""
    seen = sum(max(sync - hidden, 0.0) for sync, hidden in PENALTY_TERMS_MS[bits])
    return seen + UNHIDDEN_COUNT * UNHIDDEN_MS[bits]


def four_gpu_speedup(total_ms: float, penalty_ms: float) -> float:
    """Return the speed-up of 4 GPUs (5.1.3)."""
    parallel_ms = total_ms - FC_MS + CONV_PENALTY_MS + GPUS * PARALLEL_FC_MS + penalty_ms
    return GPUS * total_ms / parallel_ms


def message_ms(sub_batch: int, bits: int, cluster: Cluster | None = None) -> float:
    """Return the time to synchronise activations, from Table 5: messages with their latency, and copies in a node."""
    cluster = cluster or Cluster()
    kilobytes, latency_ms = MESSAGES[sub_batch][BITS.index(bits)]
    octets = 1e3 * kilobytes
    between_ms = cluster.messages * (latency_ms + 1e3 * octets / cluster.network_Bps)
    return between_ms + cluster.pcie_messages * 1e3 * octets / cluster.pcie_Bps


def pass_sync_ms(sync_ms: float) -> float:
    """Return the waiting time of a full pass if one synchronisation takes ``sync_ms`` (Table 6)."""
    return (CLUSTER_NODES - 1) * (sync_ms - HIDDEN_MS) if sync_ms > HIDDEN_MS else sync_ms


def cluster_speedup(total_ms: float, sub_batch: int, sync_ms: float) -> float:
    """Return the speed-up of 96 GPUs (5.2.2, Table 7), with ``sub_batch`` of 12288 samples."""
    forward_ms = FORWARD_MS * 12288 / sub_batch
    return CLUSTER_GPUS * total_ms / (total_ms - FC_MS + forward_ms + sync_ms)


def gradient_sync_ms() -> float:
    """Return the time to synchronise the largest convolution on 96 GPUs (5.2.2: about 1.9 ms).

    The printed figure counts only the latency of a message on the network: 31 messages of 0.03 ms and two copies of
    36 kB, all twice.
    """
    copies_ms = 2 * 1e3 * 36e3 / 5e9
    return 2 * ((CLUSTER_NODES - 1) * 0.03 + copies_ms)


def alexnet_transfer_ms() -> tuple[float, float]:
    """Return the time to transfer AlexNet's 60 million parameters at 7 GB/s once, and four times (2.3.2: 32, 128)."""
    gibibytes = 60e6 * 4 / 2**30
    once_ms = 1e3 * gibibytes / 7
    return once_ms, 4 * once_ms
