"""TernGrad's Fig. 5: throughput by the performance model of Appendix B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from netoffload.lab.models.cost import terngrad as model
from netoffload.lab.papers.claim import Claim, holds, scaled
from netoffload.lab.papers.item import Item, Json, Reading, Setting, Step
from netoffload.lab.reports import Panel, Series

CLUSTERS: Final = {
    "1 Gb/s Ethernet, PCI switch": model.Cluster(
        gpu_Bps=10e9, cpu_Bps=10e9, network_Bps=1e9 / 8, network_delay_s=50e-6
    ),
    "100 Gb/s InfiniBand, NVLink": model.Cluster(
        gpu_Bps=36e9, cpu_Bps=10e9, network_Bps=100e9 / 8, network_delay_s=2e-6
    ),
}
NETWORKS: Final = {"AlexNet": (128, 244.4e6, 0.10), "GoogLeNet": (64, 28.0e6, 0.09), "VggNet-A": (32, 531.5e6, 0.15)}
"""By network: samples per GPU, octets of the gradient, and the assumed time of a mini-batch, which is not printed."""
GPUS: Final = (4, 8, 16, 32, 64, 128, 256, 512)
RATIO: Final = model.up_ratio(2)


def _throughputs(_setting: Setting) -> Json:
    made: dict[str, Any] = {}
    for name, cluster in CLUSTERS.items():
        for network, (samples, octets, batch_s) in NETWORKS.items():
            profile = model.Profile(batch_s, samples, octets)
            made[f"{name}: {network}"] = {
                str(gpus): [
                    model.weak_samples_per_s(cluster, profile, 4, gpus // 4, ratio=ratio) for ratio in (1.0, RATIO)
                ]
                for gpus in GPUS
            }
    samples, octets, _ = NETWORKS["AlexNet"]
    profile = model.Profile(0.0, samples, octets)
    first = next(iter(CLUSTERS.values()))
    return {"throughputs": made, "batch_s": model.batch_s_of_speedup(first, profile, 4, 2, RATIO, 3.04)}


def _fig5(values: Mapping[str, Json]) -> Reading:
    if "model" not in values:
        return Reading({}, [])
    made, panels = values["model"]["throughputs"], []
    for name in CLUSTERS:
        series = [
            Series(f"{network}{word}", tuple(int(gpus) for gpus in of), tuple(pair[index] for pair in of.values()))
            for network in NETWORKS
            for of in [made[f"{name}: {network}"]]
            for index, word in ((0, ""), (1, ", TernGrad"))
        ]
        panels.append(Panel("lines", name, "samples per second", tuple(series), "GPUs", log_x=True, log_y=True))
    slow, fast = list(CLUSTERS)
    alexnet, vgg = made[f"{slow}: AlexNet"]["8"], made[f"{fast}: VggNet-A"]["512"]
    gain = {network: made[f"{slow}: {network}"]["64"] for network in NETWORKS}
    found = {
        "alexnet": alexnet[1] / alexnet[0],
        "vgg": vgg[1] / vgg[0],
        "order": float(gain["GoogLeNet"][1] / gain["GoogLeNet"][0] < gain["AlexNet"][1] / gain["AlexNet"][0]),
        "up": model.up_ratio(),
        "bits": RATIO,
    }
    remark = (
        f"With the bandwidths assumed here, the printed 3.04 for AlexNet needs {values['model']['batch_s']:.2f} s "
        f"per "
        "mini-batch on one GPU, which the paper does not print."
    )
    return Reading(found, panels, [remark])


FIG5: Final = Item(
    "terngrad-fig5",
    "Fig. 5 by the performance model of Appendix B (Eqs. 15 to 18)",
    [
        scaled(
            "alexnet", "AlexNet on 8 GPUs, 1 Gb/s: TernGrad's throughput over that of floats", 3.04, "x", "section 5"
        ),
        scaled("vgg", "VggNet-A on 128 nodes, 100 Gb/s: the same", 2.0, "x", "section 5: doubles"),
        holds("order", "AlexNet gains more than GoogLeNet", "section 5"),
        Claim("up", "least octets up: 32 / log2 3", 20.18, "x", "3.1", within=0.01),
        Claim("bits", "octets up with 2 bits", 16.0, "x", "3.1", within=0.0),
    ],
    "The paper prints the model's formulas, but not its inputs: the profiled time of a mini-batch and the bandwidths "
    "inside a machine. Here they are assumed: 0.10, 0.09 and 0.15 s, 10 GB/s (PCIe) and 36 GB/s (NVLink). So only the "
    "forms of the curves can be compared, not their values.",
    lambda _is_full: [Step("model", _throughputs)],
    _fig5,
)
