"""Jiang and Agrawal (PQASGD): Fig. 1, linear speed-up, and q against its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from netoffload.compressors import Layout, registry
from netoffload.lab.bench.compressors import quality
from netoffload.lab.papers.claim import Standing, holds, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import curve, on_links, settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.inprocess import Seen, learnt

METHODS: Final = {
    "FULLSGD": "fullsgd",
    "PSGD p=8": "psgd:p=8",
    "RSGD p=8": "rsgd:p=8",
    "QSGD-P": "qsgd:rule=mn,norm=l2,bucket=0",
    "TernGrad": "terngrad",
    "PQASGD p=8": "pqasgd:p=8",
}
RATE_BPS: Final = 100_000_000
SEEDS: Final = (1, 2, 3)
EFFICIENCY: Final = {"QSGD-P": 23.1, "TernGrad": 6.3, "PQASGD p=8": 4.4}


def _cifar(setting: Setting) -> Json:
    iterations, every = (960, 60) if setting.is_full else (160, 20)
    more = {"iterations": iterations, "eval_every": every, "learning_rate": 0.02}
    runs = [settings_of(setting, "cnn", "cifar10", method, **more) for method in METHODS.values()]
    return on_links(setting, runs, RATE_BPS)


def _large(setting: Setting, model: str) -> Json:
    methods = [METHODS[name] for name in ("FULLSGD", "QSGD-P", "PQASGD p=8")]
    runs = [settings_of(setting, model, "cifar10", method, iterations=8, batch=8) for method in methods]
    return on_links(setting, runs, 10 * RATE_BPS)


def _seeds(setting: Setting, name: str, seed: int) -> Json:
    more = {"iterations": 1000 if setting.is_full else 200, "seed": seed, "learning_rate": 0.05}
    settings = settings_of(setting, "hdc", "mnist", METHODS[name], **more)
    found = inprocess.train(settings, data.load(settings))
    return {"accuracy": found.accuracy, "efficiency": found.efficiency, "final_loss": found.final_loss}


def _steps(is_full: bool) -> list[Step]:
    steps = [Step("cnn", _cifar, ("cifar10",), needs_root=True)]
    steps += [
        Step(f"{name} {seed}", bound(_seeds, name, seed), ("mnist",))
        for seed in SEEDS
        for name in ("FULLSGD", "PQASGD p=8")
    ]
    if is_full:
        steps += [
            Step(model, bound(_large, model), ("cifar10",), needs_root=True) for model in ("vgg16-cifar", "resnet110")
        ]
    return steps


def _fig1(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels: list[Panel] = []
    remarks: list[str] = []
    costs = {name: values.get("cnn", {}).get(method) for name, method in METHODS.items()}
    made = {name: cost for name, cost in costs.items() if cost}
    if made:
        at = "iterations"
        losses = tuple(curve(name, cost["losses"]) for name, cost in made.items() if cost.get("losses"))
        if losses:
            panels.append(Panel("lines", "a: loss", "mean loss of worker 0", losses, at))
        panels.append(
            Panel(
                "lines",
                "b: accuracy",
                "% of the test set",
                tuple(curve(n, c["accuracies"], 100) for n, c in made.items()),
                at,
            )
        )
        efficiency = tuple(Series(n, (n,), (100 * c["efficiency"],)) for n, c in made.items())
        panels.append(
            Panel(
                "bars",
                "c: compression efficiency",
                "% of FULLSGD's octets",
                (Series("here", tuple(n for n in made), tuple(s.ys[0] for s in efficiency)),),
            )
        )
        over_time = tuple(
            Series(
                n,
                tuple(int(i) * c["s_per_iteration"] for i in c["accuracies"]),
                tuple(100 * a for a in c["accuracies"].values()),
            )
            for n, c in made.items()
        )
        panels.append(Panel("lines", "d: accuracy over time, 100 Mb/s", "% of the test set", over_time, "seconds"))
        found |= {f"efficiency.{name}": 100 * made[name]["efficiency"] for name in EFFICIENCY if name in made}
        if {"FULLSGD", "PQASGD p=8", "QSGD-P"} <= made.keys():
            own = made["PQASGD p=8"]["s_per_iteration"]
            found["fullsgd"] = made["FULLSGD"]["s_per_iteration"] / own
            found["qsgd"] = made["QSGD-P"]["s_per_iteration"] / own
    by_name = {
        name: [values[f"{name} {seed}"] for seed in SEEDS if f"{name} {seed}" in values]
        for name in ("FULLSGD", "PQASGD p=8")
    }
    if all(len(of) == len(SEEDS) for of in by_name.values()):
        means = {name: 100 * float(np.mean([one["accuracy"] for one in of])) for name, of in by_name.items()}
        found["gap"] = means["PQASGD p=8"] - means["FULLSGD"]
        found["share"] = 100 * float(np.mean([one["efficiency"] for one in by_name["PQASGD p=8"]]))
        spread = {name: sorted(100 * one["accuracy"] for one in of) for name, of in by_name.items()}
        texts = [f"{name} {means[name]:.2f} % ({of[0]:.2f} to {of[-1]:.2f})" for name, of in spread.items()]
        remarks.append(f"HDC on MNIST, three seeds, mean and range: {', '.join(texts)}.")
    for model in ("vgg16-cifar", "resnet110"):
        if model in values:
            full, own = (values[model][METHODS[name]]["s_per_iteration"] for name in ("FULLSGD", "PQASGD p=8"))
            found[f"{model}.fullsgd"] = full / own
    return Reading(found, panels, remarks)


FIG1: Final = Item(
    "pqasgd-fig1",
    "Fig. 1: accuracy, compression efficiency, time at a shaped rate",
    [
        *(
            scaled(
                f"efficiency.{name}",
                f"{name}: compression efficiency, partitioned data",
                printed,
                "%",
                "5.1, Fig. 1 (c)",
                within=4.0,
            )
            for name, printed in EFFICIENCY.items()
        ),
        scaled("fullsgd", "time of FULLSGD over that of PQASGD", 2.7, "x", "5.1, Fig. 1 (d)"),
        scaled("qsgd", "time of QSGD over that of PQASGD", 1.7, "x", "5.1, Fig. 1 (d)"),
        scaled("gap", "PQASGD's accuracy minus FULLSGD's, three seeds", 0.0, "points", "5.1: not impaired", within=1.0),
        scaled("share", "PQASGD's octets over FULLSGD's, three seeds", 3.5, "%", "5.1", within=1.5),
        scaled(
            "vgg16-cifar.fullsgd",
            "VGG-16: time of FULLSGD over that of PQASGD, 1 Gb/s (full runs only)",
            None,
            "x",
            "Fig. 1",
        ),
        scaled(
            "resnet110.fullsgd",
            "ResNet-110: time of FULLSGD over that of PQASGD, 1 Gb/s (full runs only)",
            2.7,
            "x",
            "Fig. 1 (d)",
        ),
        not_here(
            "error",
            "ResNet-110: PQASGD's test error after 200 epochs",
            6.35,
            "%",
            "5.1",
            "200 epochs take weeks on two cores",
        ),
        not_here("lstm", "LSTM on AN4", None, "-", "5.2", "AN4 is not here"),
    ],
    "Paper: ResNet-32 and 110 and VGG-16 on CIFAR-10, 8 and 16 GPUs, 5 Gb/s, 160 to 200 epochs, batch 32. Here: "
    "a small convolutional network on CIFAR-10 (or a part of it), four workers of batch 25 on 100 Mb/s links, some "
    "epochs; three seeds of HDC on MNIST. The layers are smaller than VGG's, so QSGD's s = sqrt(mN)/2 levels need "
    "fewer bits.",
    _steps,
    _fig1,
)

Q_CASES: Final = {
    "shared, s = sqrt(N)/2: q <= 1": ("qsgd:rule=n,norm=l2,bucket=0", 1.0),
    "partitioned, s = sqrt(mN)/2: q <= 1/m": ("qsgd:rule=mn,batch=25,norm=l2,bucket=0", 1 / 25),
    "PQASGD, s = sqrt(mpN)/2: q <= 1/(mp)": ("qsgd:rule=mpn,batch=25,period=8,norm=l2,bucket=0", 1 / 200),
}


def _q(setting: Setting) -> Json:
    iterations = 400 if setting.is_full else 100
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations, learning_rate=0.05)
    layout = Layout(settings.model_spec.layer_sizes(settings.sample_shape))
    kept: dict[str, dict[str, float]] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration in (1, iterations // 2, iterations):
            of = {
                name: quality(registry.parse(text), seen.own[0], layout, repeats=4).variance_ratio
                for name, (text, _) in Q_CASES.items()
            }
            of["TernGrad"] = quality(
                registry.parse("terngrad:clip_factor=0"), seen.own[0], layout, repeats=4
            ).variance_ratio
            kept[str(iteration)] = of

    learnt(settings, observe=observe)
    return kept


def _q_reading(values: Mapping[str, Json]) -> Reading:
    kept: dict[str, dict[str, float]] = values.get("hdc", {})
    if not kept:
        return Reading({}, [])
    names = [*Q_CASES, "TernGrad"]
    worst = {name: max(of[name] for of in kept.values()) for name in names}
    short = {name: name.partition(",")[0] for name in names}
    series = (
        Series("here", tuple(short[name] for name in names), tuple(worst[name] for name in names)),
        Series(
            "bound", tuple(short[name] for name in Q_CASES), tuple(limit for _, limit in Q_CASES.values()), printed=True
        ),
    )
    found = {f"q{number}": worst[name] for number, name in enumerate(Q_CASES)}
    found |= {
        f"below{number}": float(worst[name] <= limit) for number, (name, (_, limit)) in enumerate(Q_CASES.items())
    }
    found["terngrad"] = worst["TernGrad"]
    return Reading(found, [Panel("bars", "q of HDC's gradients, largest of three", "q", series, log_y=True)])


Q: Final = Item(
    "pqasgd-q",
    "Section 3.3: measured q against its bounds",
    [
        *(
            claim
            for number, (name, (_, limit)) in enumerate(Q_CASES.items())
            for claim in (
                scaled(f"q{number}", f"{name}; the bound", limit, "q", "3.3, section 4"),
                holds(f"below{number}", f"{name}: the bound holds", "3.3, section 4", Standing.COMPARABLE),
            )
        ),
        scaled("terngrad", "TernGrad's q, which has no bound", None, "q", "3.3"),
    ],
    "The bounds hold for any vector. Here: gradients of HDC on MNIST, layer by layer, at the first, middle and "
    "last iteration.",
    lambda _is_full: [Step("hdc", _q, ("mnist",))],
    _q_reading,
)

COUNTS: Final = (1, 2, 4, 8)
LOSS: Final = 0.4


def _speedup(setting: Setting, workers: int) -> Json:
    """Train with batches of ``workers`` times 16 and ``workers`` times the learning rate, as section 5.1 does."""
    iterations = 600 if setting.is_full else 240
    more: dict[str, Any] = {"nodes": workers, "batch": 16, "iterations": iterations, "learning_rate": 0.005 * workers}
    return learnt(settings_of(setting, "lenet5", "mnist", **more), every=10)


def _speedup_reading(values: Mapping[str, Json]) -> Reading:
    runs = {workers: values[str(workers)] for workers in COUNTS if str(workers) in values}
    needed = {}
    for workers, one in runs.items():
        at = next((int(i) for i, accuracy in one["accuracies"].items() if accuracy >= 1 - LOSS / 4), None)
        if at is not None:
            needed[workers] = at
    if 1 not in needed:
        return Reading({}, [])
    factors = {workers: needed[1] / at for workers, at in needed.items()}
    series = (
        Series("linear", COUNTS, tuple(float(count) for count in COUNTS), printed=True),
        Series("here", tuple(factors), tuple(factors.values())),
    )
    curves = tuple(curve(f"{workers} workers", one["accuracies"], 100) for workers, one in runs.items())
    panels = [
        Panel("lines", "iterations of one worker over those of n, to 90 % accuracy", "x", series, "workers"),
        Panel("lines", "accuracy", "% of the test set", curves, "iterations"),
    ]
    return Reading({f"n{workers}": factor for workers, factor in factors.items() if workers > 1}, panels)


SPEEDUP: Final = Item(
    "pqasgd-speedup",
    "Linear speed-up in the number of workers",
    [
        scaled(
            f"n{count}",
            f"{count} workers: iterations of one worker over theirs, to 90 % accuracy",
            float(count),
            "x",
            "3.2: asymptotically linear",
        )
        for count in COUNTS
        if count > 1
    ],
    "The paper proves it for many iterations and learning rates that grow with the workers. Here: LeNet-5 on "
    "MNIST, batch 16 per worker, learning rate 0.005 times the number of workers, gradient replicas; the accuracy is "
    "measured every ten iterations.",
    lambda _is_full: [Step(str(workers), bound(_speedup, workers), ("mnist",)) for workers in COUNTS],
    _speedup_reading,
)

PAPER: Final = Paper(
    "pqasgd",
    "Jiang and Agrawal, A Linear Speedup Analysis of Distributed Deep Learning with Sparse and Quantized "
    "Communication, "
    "NeurIPS 2018",
    (FIG1, Q, SPEEDUP),
)
