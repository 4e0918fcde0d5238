"""Jiang and Agrawal (PQASGD): Fig. 1, linear speed-up, and q against its bounds."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from netoffload.compressors import registry
from netoffload.lab.bench.compressors import quality
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step
from netoffload.lab.papers.runs import (
    SEEDS,
    accuracies,
    accuracies_over_time,
    bars,
    curve,
    first_at,
    mean_and_range,
    of_seeds,
    on_links,
    seeds_of,
    settings_of,
)
from netoffload.lab.reports.panels import Panel, Series
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
BOTH: Final = ("FULLSGD", "PQASGD p=8")
SHARED: Final = {"QSGD-S": "qsgd:rule=n,norm=l2,bucket=0", "PQASGD-S": "pqasgd:p=8"}
"""On shared data s = sqrt(N)/2 suffices (section 3.3)."""
LARGE: Final = ("vgg16-cifar", "resnet110")


def _cifar(setting: Setting) -> Json:
    iterations, every = (960, 60) if setting.is_full else (160, 20)
    more = {"iterations": iterations, "eval_every": every, "learning_rate": 0.02}
    runs = [settings_of(setting, "cnn", "cifar10", method, **more) for method in METHODS.values()]
    return on_links(setting, runs, RATE_BPS)


SHARINGS: Final = ("partitioned", "dirichlet:alpha=0.1")
COMPARED: Final = (
    "fullsgd",
    METHODS["QSGD-P"],
    SHARED["QSGD-S"],
    *(f"{name}:p={p}" for name in ("psgd", "pqasgd") for p in (2, 4, 8)),
)


def _shared(setting: Setting, name: str) -> Json:
    more = {"iterations": 960 if setting.is_full else 160, "learning_rate": 0.02, "sharing": "shared"}
    settings = settings_of(setting, "cnn", "cifar10", SHARED[name], **more)
    found = inprocess.train(settings, data.load(settings), say=setting.say)
    return {"accuracy": found.accuracy, "efficiency": found.efficiency}


def _unlike(setting: Setting, method: str, sharing: str, seed: int = SEEDS[0]) -> Json:
    """Train the CNN with classes that the workers share evenly, or hardly."""
    more = {"iterations": 4000, "learning_rate": 0.02, "sharing": sharing, "seed": seed}
    settings = settings_of(setting, "cnn", "cifar10", method, **more)
    return {"accuracy": inprocess.train(settings, data.load(settings), say=setting.say).accuracy}


def _large(setting: Setting, model: str) -> Json:
    methods = [METHODS[name] for name in ("FULLSGD", "QSGD-P", "PQASGD p=8")]
    runs = [settings_of(setting, model, "cifar10", method, iterations=8, batch=8) for method in methods]
    return on_links(setting, runs, 10 * RATE_BPS)


def _seeds(setting: Setting, name: str, seed: int) -> Json:
    more = {"iterations": 1000 if setting.is_full else 200, "seed": seed, "learning_rate": 0.05}
    settings = settings_of(setting, "hdc", "mnist", METHODS[name], **more)
    found = inprocess.train(settings, data.load(settings), say=setting.say)
    return {"accuracy": found.accuracy, "efficiency": found.efficiency, "final_loss": found.final_loss}


def _steps(is_full: bool) -> list[Step]:
    steps = [Step("cnn", _cifar, "cifar10", needs_root=True)]
    steps += [Step.of(_shared, name, data="cifar10") for name in SHARED]
    steps += [Step.of(_seeds, name, seed, data="mnist") for seed in SEEDS for name in BOTH]
    steps += [Step.of(_large, model, data="cifar10", needs_root=True) for model in LARGE]
    if is_full:
        steps += [
            Step.of(_unlike, method, sharing, *seed, data="cifar10")
            for seed in seeds_of(is_full)
            for sharing in SHARINGS
            for method in COMPARED
        ]
    return steps


def _fig1(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels: list[Panel] = []
    remarks: list[str] = []
    costs = values.get("cnn", {})
    made = {name: costs[method] for name, method in METHODS.items() if costs.get(method)}
    if made:
        if losses := tuple(curve(name, cost["losses"]) for name, cost in made.items() if cost.get("losses")):
            panels.append(Panel("lines", "a: loss", "mean loss of worker 0", losses, "iterations"))
        efficiency = {name: cost["efficiency"] for name, cost in made.items()}
        panels += [
            accuracies(made, "b: accuracy"),
            Panel("bars", "c: compression efficiency", "% of FULLSGD's octets", (bars("here", efficiency, 100),)),
            accuracies_over_time(made, "d: accuracy over time, 100 Mb/s", "seconds"),
        ]
        found |= {f"efficiency.{name}": 100 * share for name, share in efficiency.items()}
        reached = {name: 100 * cost["accuracy"] for name, cost in made.items()}
        for name in ("PSGD p=8", "RSGD p=8", "PQASGD p=8"):
            if {name, "FULLSGD"} <= reached.keys():
                found[f"cnn.{name}"] = float(reached[name] >= reached["FULLSGD"] - 1)
        said = ", ".join(f"{name} {accuracy:.1f} %" for name, accuracy in reached.items())
        remarks.append(f"The CNN's accuracy: {said}.")
        if {"FULLSGD", "PQASGD p=8", "QSGD-P"} <= made.keys():
            own = made["PQASGD p=8"]["s_per_iteration"]
            found["fullsgd"] = made["FULLSGD"]["s_per_iteration"] / own
            found["qsgd"] = made["QSGD-P"]["s_per_iteration"] / own
    found |= {f"efficiency.{name}": 100 * values[name]["efficiency"] for name in SHARED if name in values}
    by_name = {name: of_seeds(values, name) for name in BOTH}
    if all(len(of) == len(SEEDS) for of in by_name.values()):
        shares = {name: [one["accuracy"] for one in of] for name, of in by_name.items()}
        found["kept"] = float(abs(fmean(shares["PQASGD p=8"]) - fmean(shares["FULLSGD"])) <= 0.01)
        found["share"] = 100 * fmean(one["efficiency"] for one in by_name["PQASGD p=8"])
        remarks.append(f"HDC on MNIST, three seeds, mean and range: {mean_and_range(shares)}.")
    unlike = {
        method: [[100 * one["accuracy"] for one in of_seeds(values, f"{method} {sharing}")] for sharing in SHARINGS]
        for method in COMPARED
    }
    runs = [of for both in unlike.values() for of in both]
    if all(len(of) == len(SEEDS) for of in runs):
        said = ", ".join(f"{method} {'/'.join(f'{fmean(of):.1f}' for of in both)} %" for method, both in unlike.items())
        apart = max(max(of) - min(of) for of in runs)
        remarks.append(
            f"The CNN, 4000 iterations, three seeds' mean (within {apart:.1f} points), "
            f"{' and '.join(SHARINGS)} data: {said}."
        )
    for model in LARGE:
        if model in values:
            full, own = (values[model][METHODS[name]]["s_per_iteration"] for name in BOTH)
            found[f"{model}.fullsgd"] = full / own
    return Reading(found, panels, remarks)


FIG1: Final = Item(
    "pqasgd-fig1",
    "Fig. 1: accuracy, compression efficiency, time at a shaped rate",
    "Paper: ResNet-32 and 110 and VGG-16 on CIFAR-10, 8 and 16 GPUs, 5 Gb/s, 160 to 200 epochs, batch 32. Here: "
    "a small convolutional network on 100 Mb/s links, and HDC.",
    _steps,
    _fig1,
)

BATCH, PERIOD = 25, 8
Q_CASES: Final = {
    "shared, s = sqrt(N)/2: q <= 1": "qsgd:rule=n,norm=l2,bucket=0",
    "partitioned, s = sqrt(mN)/2: q <= 1/m": f"qsgd:rule=mn,batch={BATCH},norm=l2,bucket=0",
    "PQASGD, s = sqrt(mpN)/2: q <= 1/(mp)": f"qsgd:rule=mpn,batch={BATCH},period={PERIOD},norm=l2,bucket=0",
    "TernGrad": "terngrad:clip_factor=0",
}
"""The last one has no bound."""


def _q(setting: Setting) -> Json:
    iterations = 400 if setting.is_full else 100
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations, learning_rate=0.05)
    kept: dict[str, dict[str, float]] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration in (1, iterations // 2, iterations):
            kept[str(iteration)] = {
                name: quality(registry.parse(text), seen.own[0], seen.layout, repeats=4).variance_ratio
                for name, text in Q_CASES.items()
            }

    learnt(settings, observe=observe, say=setting.say)
    return kept


def _q_reading(values: Mapping[str, Json]) -> Reading:
    kept: dict[str, dict[str, float]] = values.get("hdc", {})
    if not kept:
        return Reading({}, [])
    worst = {name: max(of[name] for of in kept.values()) for name in Q_CASES}
    limits = dict(zip(Q_CASES, (1.0, 1 / BATCH, 1 / (BATCH * PERIOD)), strict=False))
    found = {f"q{number}": worst[name] for number, name in enumerate(limits)}
    found |= {f"below{number}": float(worst[name] <= limit) for number, (name, limit) in enumerate(limits.items())}
    found["terngrad"] = worst["TernGrad"]
    series = (
        bars("here", {name.partition(",")[0]: q for name, q in worst.items()}),
        bars("bound", {name.partition(",")[0]: limit for name, limit in limits.items()}, printed=True),
    )
    return Reading(found, [Panel("bars", "q of HDC's gradients, largest of three", "q", series, log_y=True)])


Q: Final = Item(
    "pqasgd-q",
    "Section 3.3: measured q against its bounds",
    "The bounds hold for any vector. Here: gradients of HDC, layer by layer, at the first, middle and last "
    "iteration; m is 25, the paper's 32.",
    lambda _is_full: [Step("hdc", _q, "mnist")],
    _q_reading,
)

COUNTS: Final = (1, 2, 4, 8)
ACCURACY: Final = 0.9


def _speedup(setting: Setting, workers: int) -> Json:
    """Train with batches of ``workers`` times 16 and ``workers`` times the learning rate, as section 5.1 does."""
    iterations = 600 if setting.is_full else 240
    more: dict[str, Any] = {"nodes": workers, "batch": 16, "iterations": iterations, "learning_rate": 0.005 * workers}
    return learnt(settings_of(setting, "lenet5", "mnist", **more), every=10, say=setting.say)


def _speedup_reading(values: Mapping[str, Json]) -> Reading:
    runs = {workers: values[str(workers)] for workers in COUNTS if str(workers) in values}
    needed = {workers: at for workers, one in runs.items() if (at := first_at(one, ACCURACY)) is not None}
    if 1 not in needed:
        return Reading({}, [])
    factors = {workers: needed[1] / at for workers, at in needed.items()}
    series = (
        Series("linear", COUNTS, tuple(float(count) for count in COUNTS), printed=True),
        Series("here", tuple(factors), tuple(factors.values())),
    )
    panels = [
        Panel("lines", "iterations of one worker over those of n, to 90 % accuracy", "x", series, "workers"),
        accuracies({f"{workers} workers": one for workers, one in runs.items()}, "accuracy"),
    ]
    return Reading({f"n{workers}": factor for workers, factor in factors.items() if workers > 1}, panels)


SPEEDUP: Final = Item(
    "pqasgd-speedup",
    "Linear speed-up in the number of workers",
    "The paper proves it for many iterations and learning rates that grow with the workers. Here: LeNet-5; "
    "the accuracy is measured every ten iterations.",
    lambda _is_full: [Step.of(_speedup, workers, data="mnist") for workers in COUNTS],
    _speedup_reading,
)

PAPER: Final = Paper(
    "pqasgd",
    "Jiang and Agrawal, A Linear Speedup Analysis of Distributed Deep Learning with Sparse and Quantized "
    "Communication, NeurIPS 2018",
    "The methods are as printed, and q stays below its bounds. Smaller layers give fewer octets than printed. "
    "Periodic averages cost HDC no accuracy, and a CNN none in 960 iterations. In 4,000 a period of 8 costs 1 to 2 "
    "points (3 to 4 with unlike data); seeds differ by 5. The 23.1 % are QSGD-S's; our 22 % are QSGD-P's, "
    "not printed.",
    (FIG1, Q, SPEEDUP),
)
