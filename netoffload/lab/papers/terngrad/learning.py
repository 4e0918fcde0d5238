"""TernGrad's figures on learning: Fig. 2, 3 and 4, Table 1; Tables 2 and 3 are not reproducible here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.lab.papers.claim import Claim, Standing, holds, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import bars, curve, settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training.inprocess import Seen, learnt

NO_IMAGENET: Final = "ImageNet is not here, and two cores would take months"
CODERS: Final[Mapping[str, str | None]] = {
    "floating": None,
    "TernGrad": "terngrad",
    "TernGrad-noclip": "terngrad:clip_factor=0",
}
SEEDS: Final = (1, 2, 3)
LENET: Final = (
    "Paper: LeNet on MNIST, 10,000 iterations, mini-batch 64, polynomial learning rate, moving average of the "
    "weights. "
    "Here: LeNet-5, some hundred iterations, constant learning rate 0.01, momentum 0.9, no average; gradient "
    "replicas."
)

CLIP: Final = 2.5
BINS: Final = 61


def _histograms(setting: Setting) -> Json:
    iterations = 2000 if setting.is_full else 200
    settings = settings_of(setting, "lenet5", "mnist", nodes=2, batch=32, iterations=iterations)
    sizes = settings.model_spec.layer_sizes(settings.sample_shape)
    starts = np.cumsum((0, *sizes))
    layers = {"third convolution": 4, "first fully connected layer": 6}
    kept: dict[str, Any] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration != iterations:
            return
        gradient, coded = seen.own[0], seen.coded()
        for name, layer in layers.items():
            part = slice(starts[layer], starts[layer + 1])
            own = gradient[part]
            limit = CLIP * float(own.std())
            clipped = np.clip(own, -limit, limit)
            vectors: dict[str, Float32Array] = {"a original": own, "b clipped": clipped, "c ternary": coded[part]}
            vectors["d averaged"] = seen.total[part] / np.float32(2)
            edges = np.linspace(-1, 1, BINS + 1) * float(np.abs(own).max())
            cosine = float(own @ clipped) / float(np.linalg.norm(own) * np.linalg.norm(clipped))
            kept[name] = {
                "edges": edges.tolist(),
                "counts": {what: np.histogram(vector, edges)[0].tolist() for what, vector in vectors.items()},
                "levels": {what: int(np.unique(vectors[what]).size) for what in ("c ternary", "d averaged")},
                "zeros": float(np.mean(coded[part] == 0)),
                "length": 100 * (1 - float(np.linalg.norm(clipped) / np.linalg.norm(own))),
                "degrees": float(np.degrees(np.arccos(min(1.0, cosine)))),
            }

    learnt(settings, CODERS["TernGrad"], observe=observe)
    return kept


def _fig2(values: Mapping[str, Json]) -> Reading:
    kept: dict[str, Any] = values.get("lenet5", {})
    panels, remarks = [], []
    for name, one in kept.items():
        edges = one["edges"]
        middles = tuple((low + high) / 2 for low, high in itertools.pairwise(edges))
        series = tuple(Series(what, middles, tuple(float(n) for n in counts)) for what, counts in one["counts"].items())
        panels.append(Panel("steps", name, "gradients", series, "value", log_y=True))
        remarks.append(
            f"{name}: clipping takes {one['length']:.1f} % of the gradient's length and turns it by "
            f"{one['degrees']:.1f} "
            f"degrees; {100 * one['zeros']:.1f} % become 0."
        )
    found = {}
    if kept:
        found = {
            "ternary": float(all(one["levels"]["c ternary"] <= 3 for one in kept.values())),
            "averaged": float(max(one["levels"]["d averaged"] for one in kept.values())),
            "length": max(one["length"] for one in kept.values()),
            "degrees": max(one["degrees"] for one in kept.values()),
        }
    return Reading(found, panels, remarks)


FIG2: Final = Item(
    "terngrad-fig2",
    "Fig. 2: histograms of original, clipped, ternary and averaged gradients",
    [
        holds("ternary", "a layer's ternary gradient has three levels at most", "3.1", Standing.COMPARABLE),
        Claim("averaged", "levels of the average of two workers: 2N + 1 at most", 5.0, "levels", "3.1", within=0.0),
        scaled("length", "clipping at 2.5 sigma changes the length by", 1.5, "%", "3.3: 1.0 to 1.5", within=0.5),
        scaled("degrees", "clipping at 2.5 sigma turns the gradient by", 3.0, "degrees", "3.3: 2 to 3", within=1.0),
    ],
    "Paper: AlexNet on two workers, by iteration. Here: LeNet-5 on MNIST on two workers, the last iteration. The "
    "paper's 1.0 to 1.5 % hold for a Gaussian gradient; LeNet's gradient has heavier tails.",
    lambda _is_full: [Step("lenet5", _histograms, ("mnist",))],
    _fig2,
)

WORKERS: Final = (2, 8, 64)
TOTAL_BATCH: Final = 64
OPTIMIZERS: Final = {"momentum SGD": (0.01, 0.9), "vanilla SGD": (0.1, 0.0)}


def _by_workers(setting: Setting, optimizer: str, workers: int, coder: str) -> Json:
    rate, momentum = OPTIMIZERS[optimizer]
    more: dict[str, Any] = {"nodes": workers, "batch": TOTAL_BATCH // workers}
    more |= {"learning_rate": rate, "momentum": momentum}
    settings = settings_of(setting, "lenet5", "mnist", iterations=3000 if setting.is_full else 150, **more)
    return learnt(settings, CODERS[coder])


def _fig3(values: Mapping[str, Json]) -> Reading:
    panels, found = [], {}
    for optimizer in OPTIMIZERS:
        by_coder = {
            coder: {
                workers: values[key]["accuracy"]
                for workers in WORKERS
                if (key := f"{optimizer} {workers} {coder}") in values
            }
            for coder in ("floating", "TernGrad")
        }
        series = tuple(
            Series(coder, tuple(of), tuple(100 * accuracy for accuracy in of.values()))
            for coder, of in by_coder.items()
        )
        panels.append(Panel("lines", optimizer, "accuracy, %", series, "workers", log_x=True))
        gaps = [
            100 * (by_coder["TernGrad"][n] - by_coder["floating"][n])
            for n in by_coder["TernGrad"]
            if n in by_coder["floating"]
        ]
        if gaps:
            found[f"{optimizer}.worst"] = min(gaps)
            found[f"{optimizer}.best"] = max(gaps)
    return Reading(found, panels)


FIG3: Final = Item(
    "terngrad-fig3",
    "Fig. 3: accuracy by number of workers",
    [
        claim
        for optimizer in OPTIMIZERS
        for claim in (
            scaled(
                f"{optimizer}.worst",
                f"{optimizer}: TernGrad's accuracy minus that of floats, worst",
                -0.22,
                "points",
                "4.1",
                within=1.0,
            ),
            scaled(
                f"{optimizer}.best",
                f"{optimizer}: TernGrad's accuracy minus that of floats, best",
                0.15,
                "points",
                "4.1",
                within=1.0,
            ),
        )
    ],
    LENET,
    lambda _is_full: [
        Step(f"{optimizer} {workers} {coder}", bound(_by_workers, optimizer, workers, coder), ("mnist",))
        for optimizer in OPTIMIZERS
        for workers in WORKERS
        for coder in ("floating", "TernGrad")
    ],
    _fig3,
)

TABLE1: Final = {2: (86.56, 85.64), 16: (83.19, 82.80)}


def _cifarnet(setting: Setting, workers: int, coder: str) -> Json:
    iterations = (2400 if setting.is_full else 40) * 2 // workers
    settings = settings_of(
        setting, "cifarnet", "cifar10", nodes=workers, batch=32, iterations=iterations, learning_rate=0.01
    )
    return learnt(settings, CODERS[coder])


def _table1(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    by_coder: dict[str, dict[str, float]] = {}
    for coder in ("floating", "TernGrad"):
        of = {workers: 100 * values[key]["accuracy"] for workers in TABLE1 if (key := f"{workers} {coder}") in values}
        found |= {f"{workers}.{coder}": accuracy for workers, accuracy in of.items()}
        by_coder[coder] = {f"{workers} workers": accuracy for workers, accuracy in of.items()}
    series = [
        bars(f"{coder}, printed", {f"{n} workers": row[i] for n, row in TABLE1.items()}, printed=True)
        for i, coder in enumerate(by_coder)
    ]
    series += [bars(coder, of) for coder, of in by_coder.items()]
    for workers in TABLE1:
        if f"{workers}.TernGrad" in found and f"{workers}.floating" in found:
            found[f"{workers}.gap"] = found[f"{workers}.TernGrad"] - found[f"{workers}.floating"]
    return Reading(found, [Panel("bars", "CifarNet", "accuracy, %", tuple(series))])


TABLES: Final = Item(
    "terngrad-table1",
    "Tables 1, 2 and 3: CifarNet, AlexNet, GoogLeNet",
    [
        *(
            scaled(f"{workers}.{coder}", f"CifarNet, {workers} workers, {coder}", accuracy, "%", "Table 1")
            for workers, row in TABLE1.items()
            for coder, accuracy in zip(("floating", "TernGrad"), row, strict=True)
        ),
        *(
            scaled(
                f"{workers}.gap",
                f"CifarNet, {workers} workers: TernGrad minus floating",
                row[1] - row[0],
                "points",
                "Table 1",
                within=2.0,
            )
            for workers, row in TABLE1.items()
        ),
        *(
            not_here(
                f"alexnet.{batch}.{what}",
                f"AlexNet, mini-batch {batch}, {what}: top-1",
                accuracy,
                "%",
                "Table 2",
                NO_IMAGENET,
            )
            for batch, what, accuracy in (
                (256, "floating", 57.33),
                (256, "TernGrad", 57.61),
                (256, "TernGrad-noclip", 54.63),
                (512, "floating", 57.32),
                (512, "TernGrad", 57.28),
                (1024, "floating", 56.62),
                (1024, "TernGrad", 57.54),
            )
        ),
        *(
            not_here(
                f"googlenet.{batch}.{what}",
                f"GoogLeNet, mini-batch {batch}, {what}: top-5",
                accuracy,
                "%",
                "Table 3",
                NO_IMAGENET,
            )
            for batch, row in ((128, (88.30, 86.77)), (256, (87.82, 85.96)), (512, (89.00, 86.47)))
            for what, accuracy in zip(("floating", "TernGrad"), row, strict=True)
        ),
    ],
    "Paper: CifarNet on all of CIFAR-10 with crops and flips, Adam, 300,000 and 18,750 iterations. Here: "
    "momentum SGD, learning rate 0.01, some dozen iterations of batch 32 per worker, unchanged images of CIFAR-10 or "
    "of a part of it.",
    lambda _is_full: [
        Step(f"{workers} {coder}", bound(_cifarnet, workers, coder), ("cifar10",))
        for workers in TABLE1
        for coder in ("floating", "TernGrad")
    ],
    _table1,
)


def _sparsity(setting: Setting, coder: str, seed: int) -> Json:
    iterations = 2000 if setting.is_full else 200
    settings = settings_of(setting, "lenet5", "mnist", nodes=4, batch=32, iterations=iterations, seed=seed)
    sizes = settings.model_spec.layer_sizes(settings.sample_shape)
    starts = np.cumsum((0, *sizes))
    part, zeros = slice(starts[6], starts[7]), {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration % max(1, iterations // 30) == 0:
            zeros[str(iteration)] = float(np.mean(seen.coded()[part] == 0))

    return learnt(settings, CODERS[coder], every=max(1, iterations // 15), observe=observe) | {"zeros": zeros}


def _fig4(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    first = {coder: values[f"{coder} 1"] for coder in CODERS if f"{coder} 1" in values}
    panels = [
        Panel(
            "lines",
            "accuracy, mini-batch 128",
            "% of the test set",
            tuple(curve(c, one["accuracies"], 100) for c, one in first.items()),
            "iterations",
        ),
        Panel(
            "lines",
            "training loss",
            "cross entropy",
            tuple(curve(c, one["losses"]) for c, one in first.items()),
            "iterations",
        ),
    ]
    if "TernGrad" in first:
        zeros = first["TernGrad"]["zeros"]
        panels.append(
            Panel(
                "lines",
                "ternary gradients that are 0, first fully connected layer",
                "%",
                (curve("TernGrad", zeros, 100),),
                "iterations",
            )
        )
        found["zeros"] = 100 * float(np.mean(list(zeros.values())))
    by_coder = {
        coder: [values[f"{coder} {seed}"]["accuracy"] for seed in SEEDS if f"{coder} {seed}" in values]
        for coder in CODERS
    }
    remarks = []
    if all(len(of) == len(SEEDS) for of in by_coder.values()):
        means = {coder: 100 * float(np.mean(of)) for coder, of in by_coder.items()}
        found |= {"gap": means["TernGrad"] - means["floating"], "clip": means["TernGrad-noclip"] - means["TernGrad"]}
        texts = [
            f"{coder} {means[coder]:.2f} % ({100 * min(of):.2f} to {100 * max(of):.2f})"
            for coder, of in by_coder.items()
        ]
        remarks.append(f"Accuracy of three seeds, mean and range: {', '.join(texts)}.")
    return Reading(found, panels, remarks)


FIG4: Final = Item(
    "terngrad-fig4",
    "Fig. 4: accuracy, loss and sparsity; with three seeds",
    [
        scaled("zeros", "ternary gradients that are 0, first fully connected layer, mean", 71.32, "%", "4.2"),
        scaled(
            "gap",
            "TernGrad's accuracy minus that of floats at equal iterations, three seeds",
            0.0,
            "points",
            "abstract: less than 2 lost",
            within=2.0,
        ),
        scaled("clip", "accuracy without clipping minus that with it", -2.98, "points", "Table 2"),
    ],
    "Paper: AlexNet on ImageNet, 4 workers, mini-batch 512. Here: LeNet-5 on MNIST, 4 workers of batch 32, "
    "learning rate 0.01.",
    lambda _is_full: [
        Step(f"{coder} {seed}", bound(_sparsity, coder, seed), ("mnist",)) for seed in SEEDS for coder in CODERS
    ],
    _fig4,
)
