"""TernGrad: Fig. 2 to 5, Table 1; Tables 2 and 3 are not reproducible here."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, printed
from netoffload.lab.papers.runs import SEEDS, accuracies, bars, curve, mean_and_range, of_seeds, seeds_of, settings_of
from netoffload.lab.reports.panels import Panel, Series
from netoffload.lab.training.inprocess import Seen, learnt

CODERS: Final[Mapping[str, str | None]] = {
    "floating": None,
    "TernGrad": "terngrad",
    "TernGrad-noclip": "terngrad:clip_factor=0",
}
BOTH: Final = ("floating", "TernGrad")

CLIP: Final = 2.5
BINS: Final = 61


def _histograms(setting: Setting) -> Json:
    iterations = 2000 if setting.is_full else 200
    settings = settings_of(setting, "lenet5", "mnist", nodes=2, batch=32, iterations=iterations)
    layers = {"third convolution": 4, "first fully connected layer": 6}
    kept: dict[str, Any] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration != iterations:
            return
        of_layers = [seen.layout.split(whole) for whole in (seen.own[0], seen.coded(), seen.total)]
        for name, layer in layers.items():
            own, coded, total = (parts[layer] for parts in of_layers)
            limit = CLIP * float(own.std())
            clipped = np.clip(own, -limit, limit)
            vectors: dict[str, Float32Array] = {"a original": own, "b clipped": clipped, "c ternary": coded}
            vectors["d averaged"] = total / np.float32(2)
            edges = np.linspace(-1, 1, BINS + 1) * float(np.abs(own).max())
            cosine = float(own @ clipped) / float(np.linalg.norm(own) * np.linalg.norm(clipped))
            kept[name] = {
                "edges": edges.tolist(),
                "counts": {what: np.histogram(vector, edges)[0].tolist() for what, vector in vectors.items()},
                "levels": {what: int(np.unique(vectors[what]).size) for what in ("c ternary", "d averaged")},
                "zeros": float(np.mean(coded == 0)),
                "length": 100 * (1 - float(np.linalg.norm(clipped) / np.linalg.norm(own))),
                "degrees": float(np.degrees(np.arccos(min(1.0, cosine)))),
            }

    learnt(settings, CODERS["TernGrad"], observe=observe, say=setting.say)
    return kept


def clipped_gaussian(clip: float) -> tuple[float, float]:
    """Return what clipping at ``clip`` deviations does to a Gaussian: per cent of its length, and degrees."""
    inside, density = math.erf(clip / math.sqrt(2)), math.exp(-(clip**2) / 2) / math.sqrt(2 * math.pi)
    squares = inside - 2 * clip * density + clip**2 * (1 - inside)  # E clipped^2; E clipped v is ``inside``
    return 100 * (1 - math.sqrt(squares)), math.degrees(math.acos(inside / math.sqrt(squares)))


def _fig2(values: Mapping[str, Json]) -> Reading:
    kept: dict[str, Any] = values.get("lenet5", {})
    panels, zeros = [], []
    for name, one in kept.items():
        middles = tuple((low + high) / 2 for low, high in itertools.pairwise(one["edges"]))
        series = tuple(Series(what, middles, tuple(float(n) for n in counts)) for what, counts in one["counts"].items())
        panels.append(Panel("steps", name, "gradients", series, "value", log_y=True))
        zeros.append(f"{name} {100 * one['zeros']:.1f}")
    found = {}
    if kept:
        found = {
            "length": max(one["length"] for one in kept.values()),
            "degrees": max(one["degrees"] for one in kept.values()),
        }
        found |= dict(zip(("gauss.length", "gauss.degrees"), clipped_gaussian(CLIP), strict=True))
    return Reading(found, panels, [f"Ternary gradients that are 0, %: {', '.join(zeros)}."] if zeros else [])


FIG2: Final = Item(
    "terngrad-fig2",
    "Fig. 2: histograms of original, clipped, ternary and averaged gradients",
    "Paper: AlexNet on two workers, by iteration. Here: LeNet-5 on MNIST on two workers, the last iteration.",
    lambda _is_full: [Step("lenet5", _histograms, "mnist")],
    _fig2,
)

WORKERS: Final = {False: (2, 8, 64), True: (2, 4, 8, 16)}  # by whether runs are full
AVERAGE: Final = 0.9999  # section 4: decay of the moving average of the weights, whose accuracy counts
TOTAL_BATCH: Final = 64
OPTIMIZERS: Final = {"momentum SGD": (0.01, 0.9), "vanilla SGD": (0.1, 0.0)}


def _by_workers(setting: Setting, optimizer: str, workers: int, coder: str, seed: int = SEEDS[0]) -> Json:
    rate, momentum = OPTIMIZERS[optimizer]
    more: dict[str, Any] = {"nodes": workers, "batch": TOTAL_BATCH // workers, "seed": seed}
    more |= {"learning_rate": rate, "momentum": momentum}
    settings = settings_of(setting, "lenet5", "mnist", iterations=10_000 if setting.is_full else 150, **more)
    return learnt(settings, CODERS[coder], average=AVERAGE if setting.is_full else 0.0, say=setting.say)


def _fig3(values: Mapping[str, Json]) -> Reading:
    panels, found, apart = [], {}, [0.0]
    for optimizer in OPTIMIZERS:
        by_coder: dict[str, dict[int, float]] = {coder: {} for coder in BOTH}
        for coder, n in itertools.product(BOTH, sorted({*WORKERS[False], *WORKERS[True]})):
            if of := [100 * one["accuracy"] for one in of_seeds(values, f"{optimizer} {n} {coder}")]:
                by_coder[coder][n] = fmean(of)
                apart.append(max(of) - min(of))
        series = tuple(Series(coder, tuple(of), tuple(of.values())) for coder, of in by_coder.items())
        panels.append(Panel("lines", optimizer, "accuracy, %", series, "workers", log_x=True))
        plain = by_coder["floating"]
        if gaps := [accuracy - plain[n] for n, accuracy in by_coder["TernGrad"].items() if n in plain]:
            found[f"{optimizer}.worst"], found[f"{optimizer}.best"] = min(gaps), max(gaps)
    return Reading(found, panels, [f"Seeds differ by up to {max(apart):.2f} points."] if max(apart) else [])


FIG3: Final = Item(
    "terngrad-fig3",
    "Fig. 3: accuracy by number of workers",
    "Paper: LeNet on MNIST, 10,000 iterations, mini-batch 64, polynomial learning rate, moving average of the "
    "weights. Here: the same, mean of three seeds; a quick run is short, without average.",
    lambda is_full: [
        Step.of(_by_workers, optimizer, workers, coder, *seed, data="mnist")
        for seed in seeds_of(is_full)
        for optimizer in OPTIMIZERS
        for workers in WORKERS[is_full]
        for coder in BOTH
    ],
    _fig3,
    is_own_when_full=True,
)


def _sparsity(setting: Setting, coder: str, seed: int) -> Json:
    iterations = 2000 if setting.is_full else 200
    settings = settings_of(setting, "lenet5", "mnist", nodes=4, batch=32, iterations=iterations, seed=seed)
    zeros: dict[str, float] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration % max(1, iterations // 30) == 0:
            zeros[str(iteration)] = float(np.mean(seen.layout.split(seen.coded())[6] == 0))

    every = max(1, iterations // 15)
    return learnt(settings, CODERS[coder], every=every, observe=observe, say=setting.say) | {"zeros": zeros}


def _fig4(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    first = {coder: values[f"{coder} 1"] for coder in CODERS if f"{coder} 1" in values}
    losses = tuple(curve(coder, one["losses"]) for coder, one in first.items())
    panels = [
        accuracies(first, "accuracy, mini-batch 128"),
        Panel("lines", "training loss", "cross entropy", losses, "iterations"),
    ]
    if "TernGrad" in first:
        zeros = first["TernGrad"]["zeros"]
        title = "ternary gradients that are 0, first fully connected layer"
        panels.append(Panel("lines", title, "%", (curve("TernGrad", zeros, 100),), "iterations"))
        found["zeros"] = 100 * float(np.mean(list(zeros.values())))
    by_coder = {coder: [of["accuracy"] for of in of_seeds(values, coder)] for coder in CODERS}
    remarks = []
    if all(len(of) == len(SEEDS) for of in by_coder.values()):
        means = {coder: 100 * float(np.mean(of)) for coder, of in by_coder.items()}
        found |= {"gap": means["TernGrad"] - means["floating"], "clip": means["TernGrad-noclip"] - means["TernGrad"]}
        remarks.append(f"Accuracy of three seeds, mean and range: {mean_and_range(by_coder)}.")
    return Reading(found, panels, remarks)


FIG4: Final = Item(
    "terngrad-fig4",
    "Fig. 4: accuracy, loss and sparsity; with three seeds",
    "Paper: AlexNet on ImageNet, 4 workers, mini-batch 512. Here: LeNet-5 on MNIST.",
    lambda _is_full: [Step.of(_sparsity, coder, seed, data="mnist") for seed in SEEDS for coder in CODERS],
    _fig4,
)


@dataclass(frozen=True)
class Cluster:
    """A cluster whose machines have some GPUs each: bandwidths, octets per second, and latency (Appendix B)."""

    gpu_Bps: float  # noqa: N815 - the unit as it is written; C_gwd, between GPUs of a machine
    cpu_Bps: float  # noqa: N815 - C_cwd, between a GPU and its CPU
    network_Bps: float  # noqa: N815 - C_nwd, between machines
    network_delay_s: float = 0.0  # C_ncost

    def communication_s(self, octets: float, gpus: int, machines: int) -> float:
        """Return T_comm(i, j, K, abs(g)), by the text above Eq. 15.

        Gradients are summed over a machine's GPUs, go to its CPU, and are summed over machines, both in log2 steps.
        """
        inside_s = octets / self.gpu_Bps * math.log2(gpus) + octets / self.cpu_Bps
        return inside_s + (self.network_delay_s + octets / self.network_Bps) * math.log2(machines)


class Profile(NamedTuple):
    """A profile with one GPU, T(1, 1, K, abs(g)): K, abs(g), and the time of a mini-batch with the copy to the CPU."""

    samples: int
    gradient_octets: float
    batch_s: float


def weak_samples_per_s(cluster: Cluster, profile: Profile, gpus: int, machines: int, ratio: float = 1.0) -> float:
    """Return the samples per second of all GPUs by Eqs. 17 and 18, with K samples each; ``ratio`` of compression."""
    alone_s = profile.batch_s - profile.gradient_octets / cluster.cpu_Bps
    step_s = alone_s + cluster.communication_s(profile.gradient_octets / ratio, gpus, machines)
    return gpus * machines * profile.samples / step_s


def batch_s_of_speedup(
    cluster: Cluster, gradient_octets: float, gpus: int, machines: int, ratio: float, speedup: float
) -> float:
    """Return the profiled time with which Eq. 18 gives ``speedup`` of ternary over float gradients.

    Eq. 18's speed-up is (a + f) / (a + t): a is a GPU's computing time, f and t are the communication of float and
    ternary gradients. So a = (f - speedup · t) / (speedup - 1). A negative time means that no profile gives this
    speed-up.
    """
    whole = cluster.communication_s(gradient_octets, gpus, machines)
    ternary = cluster.communication_s(gradient_octets / ratio, gpus, machines)
    return (whole - speedup * ternary) / (speedup - 1) + gradient_octets / cluster.cpu_Bps


SLOW: Final = "1 Gb/s Ethernet, PCI switch"
FAST: Final = "100 Gb/s InfiniBand, NVLink"
CLUSTERS: Final = {SLOW: Cluster(10e9, 10e9, 1e9 / 8, 50e-6), FAST: Cluster(36e9, 10e9, 100e9 / 8, 2e-6)}
NETWORKS: Final = {
    "AlexNet": Profile(128, 244.4e6, 0.10),
    "GoogLeNet": Profile(64, 28.0e6, 0.09),
    "VggNet-A": Profile(32, 531.5e6, 0.15),
}
"""Times of a mini-batch are assumed; they are not printed."""
GPUS: Final = (4, 8, 16, 32, 64, 128, 256, 512)
RATIO: Final = 32 / 2
"""Times fewer octets that a worker sends with 2 bits for each ternary gradient (3.1)."""


def _throughputs(_setting: Setting) -> Json:
    made = {
        f"{name}: {network}": {
            str(gpus): [weak_samples_per_s(cluster, profile, 4, gpus // 4, ratio) for ratio in (1.0, RATIO)]
            for gpus in GPUS
        }
        for name, cluster in CLUSTERS.items()
        for network, profile in NETWORKS.items()
    }
    needed_s = batch_s_of_speedup(CLUSTERS[SLOW], NETWORKS["AlexNet"].gradient_octets, 4, 2, RATIO, 3.04)
    return {"throughputs": made, "batch_s": needed_s}


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

    def gain(cluster: str, network: str, gpus: int) -> float:
        plain, ternary = made[f"{cluster}: {network}"][str(gpus)]
        return float(ternary / plain)

    found = {
        "alexnet": gain(SLOW, "AlexNet", 8),
        "vgg": gain(FAST, "VggNet-A", 512),
        "order": float(gain(SLOW, "GoogLeNet", 64) < gain(SLOW, "AlexNet", 64)),
    }
    remark = (
        f"With these bandwidths the printed 3.04 needs {values['model']['batch_s']:.2f} s per mini-batch on one GPU."
    )
    return Reading(found, panels, [remark])


FIG5: Final = Item(
    "terngrad-fig5",
    "Fig. 5 by the performance model of Appendix B (Eqs. 15 to 18)",
    "The paper does not print the model's inputs. Assumed here: 0.10, 0.09 and 0.15 s for a mini-batch, 10 GB/s (PCIe) "
    "and 36 GB/s (NVLink).",
    lambda _is_full: [Step("model", _throughputs)],
    _fig5,
)

TABLE1_WORKERS: Final = (2, 16)
LEARNT: Final = 20.0
"""Accuracy, twice chance, below which a network has not learnt, so that it says nothing of a method."""


def _cifarnet(setting: Setting, workers: int, coder: str, seed: int = SEEDS[0]) -> Json:
    # 4.1: both train for the same epochs, so the total of samples is the same. The model's rate is the paper's.
    iterations = (2400 if setting.is_full else 200) * 2 // workers
    more: dict[str, Any] = {"nodes": workers, "batch": 32, "iterations": iterations, "seed": seed}
    return learnt(settings_of(setting, "cifarnet", "cifar10", **more), CODERS[coder], say=setting.say)


def _table1(values: Mapping[str, Json]) -> Reading:
    theirs, series, ours = printed("terngrad-table1"), [], []
    found: dict[str, float] = {}
    for coder in BOTH:
        rows = {f"{n} workers": theirs[f"{n}.{coder}"] for n in TABLE1_WORKERS}
        series.append(bars(f"{coder}, printed", rows, printed=True))
        runs = {n: [one["accuracy"] for one in of_seeds(values, f"{n} {coder}")] for n in TABLE1_WORKERS}
        of = {n: 100 * fmean(accuracies) for n, accuracies in runs.items() if accuracies}
        found |= {f"{workers}.{coder}": accuracy for workers, accuracy in of.items()}
        ours.append(bars(coder, {f"{workers} workers": accuracy for workers, accuracy in of.items()}))
    for workers in TABLE1_WORKERS:
        both = [found.get(f"{workers}.{coder}", 0.0) for coder in BOTH]
        if min(both) > 0 and both[0] >= LEARNT:
            found[f"{workers}.lost"] = float(both[0] - both[1] < 1)
    return Reading(found, [Panel("bars", "CifarNet", "accuracy, %", (*series, *ours))])


TABLES: Final = Item(
    "terngrad-table1",
    "Tables 1, 2 and 3: CifarNet, AlexNet, GoogLeNet",
    "Paper: CifarNet on all of CIFAR-10 with crops and flips, Adam at 0.0002, 300,000 and 18,750 "
    "iterations, 64 and 128 samples per worker. Here: unchanged images of CIFAR-10 or of a part "
    "of it; in full three seeds.",
    lambda is_full: [
        Step.of(_cifarnet, workers, coder, *seed, data="cifar10")
        for seed in seeds_of(is_full)
        for workers in TABLE1_WORKERS
        for coder in BOTH
    ],
    _table1,
)

PAPER: Final = Paper(
    "terngrad",
    "Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NIPS 2017",
    "The method is as printed, and its means are unbiased without clipping. On LeNet, at the printed length, it costs "
    "5 to 17 of 10,000 test images with 2 to 16 workers. Clipping changes real gradients far more than "
    "section 3.3's Gaussian. The throughput model lacks printed inputs, so only its form is compared. "
    "CifarNet, far from its end, loses 0.6 points with 2 workers, 0.2 with 16; seeds differ by 4. "
    "`train --exchange papers` keeps the last layer as floats (section 4.2).",
    (FIG2, FIG3, FIG4, FIG5, TABLES),
)
