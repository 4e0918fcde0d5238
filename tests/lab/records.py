"""Records of runs that never ran."""

from dataclasses import replace
from typing import Any

from netoffload.lab.results import (
    FORMAT,
    ClassCounts,
    Configuration,
    Learning,
    NodeTraffic,
    Record,
    Spread,
    Timing,
    Traffic,
    Versions,
)

VERSIONS = Versions("0.1.0", "3.11", "2.0", "2.3", "MPICH", "6.1", "plain", "a CPU", 2, "0123456789ab")


def a_run(exchange: str, wall_s: float, *, via_nics: bool = False, **configured: Any) -> Record:
    compressed = exchange.endswith("+c")
    configuration = Configuration(
        "hdc", exchange, 4, 10, 1, 25, 0.1, 5.0, 2000, 0.9, 5e-5, 1.0, "digits", 1149010,
        None, None, None, 10**9, 1500, False, "partitioned", "nic",
        "sgd:momentum=0.9,weight_decay=5e-05,nesterov=false", "step:warmup=0,divisor=5.0,interval=2000", None,
    )  # fmt: skip
    if compressed or via_nics:
        configuration = replace(configuration, codec="inceptionn", bound_k=10, packing="coalesced")
    configuration = replace(configuration, **configured)
    wall, compute = Spread.of([wall_s]), Spread.of([0.010])
    nodes = (NodeTraffic("n0", 20_000_000, 3_000), NodeTraffic("n1", 30_000_000, 4_000))
    traffic = Traffic(nodes, 0, 0, 0, ClassCounts(0, 0, 0, 0), 0.0, {})
    if compressed:
        traffic = Traffic(nodes, 500, 100, 9, ClassCounts(70, 20, 9, 1), 0.04, {})
    return Record(
        FORMAT,
        "2026-01-01T00:00:00+00:00",
        configuration,
        VERSIONS,
        9.6e8,
        Timing(wall, compute, Spread.of([wall_s - 0.010])),
        traffic,
        0.25 if compressed else 1.0,
        Learning(0.975, {}, 0.1),
        "ab",
        0,
        10,
    )
