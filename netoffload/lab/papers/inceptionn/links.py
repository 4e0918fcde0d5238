"""INCEPTIONN's figures that need links: Table II and Fig. 7, 12 and 13, on emulated links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netoffload.lab.papers.claim import holds, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import bars, curve, on_links, settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.testbed import NicSettings
from netoffload.lab.training.config import TrainSettings

FOUR: Final = ("wa", "wa+c", "inc", "inc+c")
GIGABIT: Final = 1_000_000_000
LINKS: Final = (
    "Paper: five hosts with GPUs, 10 Gb/s Ethernet, NICs with an FPGA (their compressed link times are scaled, "
    "VII-C). Here: five emulated nodes with their NICs, a switch and the training on two cores; each item names the "
    "rate of its links. NICs are processes. Uncompressed methods run without NICs."
)

TABLE2_HDC: Final = {"Communicate": 80.2, "Forward and backward pass, update, sum": 19.7}


def _breakdown(setting: Setting) -> Json:
    runs = [settings_of(setting, "hdc", "mnist", "wa", iterations=100 if setting.is_full else 40)]
    return on_links(setting, runs, 10 * GIGABIT if setting.is_full else GIGABIT)


def _table2(values: Mapping[str, Json]) -> Reading:
    if not values:
        return Reading({}, [])
    wa = next(iter(values.values()))["wa"]
    share = 100 * wa["communicate_s"] / wa["s_per_iteration"]
    ours = {"Communicate": share, "Forward and backward pass, update, sum": 100 - share}
    panel = Panel(
        "bars",
        "HDC, worker-aggregator",
        "% of the time",
        (bars("printed", TABLE2_HDC, printed=True), bars("here", ours)),
    )
    found = {"communicate": share, "total": 100 * wa["s_per_iteration"]}
    return Reading(found, [panel], ["The aggregator's sum is part of communication here: workers wait for it."])


TABLE2: Final = Item(
    "inceptionn-table2",
    "Table II: where the time goes",
    [
        scaled("communicate", "HDC: share of communication", 80.2, "%", "Table II", within=15.0),
        scaled("total", "HDC: 100 iterations", 1.7, "s", "Table II"),
        *(
            not_here(
                f"{model}.communicate",
                f"{model}: share of communication",
                share,
                "%",
                "Table II",
                "its forward and backward passes need a GPU",
            )
            for model, share in (("AlexNet", 75.7), ("ResNet-50", 80.2), ("VGG-16", 70.9))
        ),
    ],
    LINKS + " HDC of 4.6 MB on 1 Gb/s links (10 in a full run); the paper prints 2.5 MB for it.",
    lambda _is_full: [Step("hdc", _breakdown, ("mnist",), needs_root=True)],
    _table2,
)

SOFTWARE_GBIT: Final = {False: (1,), True: (1, 10)}
SOFTWARE: Final = ("inc", "snappy", "zfp", "16b-T", "24b-T")


def _software(setting: Setting, rate_gbit: int) -> Json:
    iterations = 100 if setting.is_full else 24
    runs = [settings_of(setting, "hdc", "mnist", method, iterations=iterations) for method in SOFTWARE]
    runs.append(settings_of(setting, "hdc", "mnist", "inc+c", iterations=iterations, offload="inline"))
    return on_links(setting, runs, rate_gbit * GIGABIT, NicSettings(codec="bounded"))


def _fig7(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels = []
    for gbit, costs in values.items():
        base = costs["inc"]["s_per_iteration"]
        relative = {_short(name): cost["s_per_iteration"] / base for name, cost in costs.items()}
        computing = {_short(name): cost["compute_s"] / base for name, cost in costs.items()}
        rest = {name: relative[name] - computing[name] for name in relative}
        heaps = (bars("computation", computing), bars("communication, coding", rest))
        panels.append(Panel("heaps", f"HDC, {gbit} Gb/s links", "training time over Base", heaps))
        found |= {f"{gbit}.{name}": factor for name, factor in relative.items() if name != "Base"}
    return Reading(found, panels)


def _short(name: str) -> str:
    return {"inc": "Base", "inc+c inline": "inline codec", "zfp": "zfp (for SZ)"}.get(name, name)


FIG7: Final = Item(
    "inceptionn-fig7",
    "Fig. 7: compressing in software",
    [
        *(
            scaled(f"{gbit}.{name}", f"HDC, {gbit} Gb/s: training time with {name} over Base", printed, "x", place)
            for gbit in SOFTWARE_GBIT[True]
            for name, printed, place in (
                ("snappy", 2.0, "III-A: a factor of 2; VI: 2 to 4"),
                ("zfp (for SZ)", 4.0, "VI: 2 to 4 with Snappy and SZ"),
                ("16b-T", None, "Fig. 7: slightly below Base"),
                ("24b-T", None, "Fig. 7: slightly below Base"),
                ("inline codec", None, "ours, not in the figure"),
            )
        ),
        not_here(
            "alexnet", "AlexNet's training time with software compressors", None, "x", "Fig. 7", "its passes need a GPU"
        ),
    ],
    LINKS + " HDC on a ring; snappy and zfp gather payloads; the inline codec is `bounded`, compiled, in the ranks. "
    "At 10 Gb/s in full runs only.",
    lambda is_full: [
        Step(str(gbit), bound(_software, gbit), ("mnist",), needs_root=True) for gbit in SOFTWARE_GBIT[is_full]
    ],
    _fig7,
)

FIG12_MODELS: Final[Mapping[str, tuple[str, float, str | None]]] = {
    "hdc": ("HDC", 1.0, "mnist"),
    "resnet50": ("ResNet-50", 1.0, None),
    "alexnet": ("AlexNet", 1.0, None),
    "vgg16": ("VGG-16", 1.0, None),
}
"""By model: its name in the paper, the links in Gb/s, and its data; None: noise."""
INC_SHORTER: Final = {"alexnet": 52.0, "hdc": 38.0, "resnet50": 49.0, "vgg16": 31.0}


def _four(setting: Setting, model: str) -> Json:
    _name, gbit, data_set = FIG12_MODELS[model]
    if data_set is not None:
        runs = [settings_of(setting, model, data_set, way, iterations=200 if setting.is_full else 40) for way in FOUR]
    else:
        data = "synthetic:side=64"
        runs = [
            TrainSettings(way, model=model, data=data, batch=1, iterations=5 if setting.is_full else 1) for way in FOUR
        ]
    return on_links(setting, runs, int(gbit * GIGABIT))


def _fig12(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels = []
    for model, costs in values.items():
        times = {way: costs[way]["s_per_iteration"] for way in FOUR if way in costs}
        computing = {way: costs[way]["compute_s"] for way in times}
        rest = {way: times[way] - computing[way] for way in times}
        title = f"{FIG12_MODELS[model][0]}, {FIG12_MODELS[model][1]:g} Gb/s"
        heaps = (bars("computation", computing, 1e3), bars("communication", rest, 1e3))
        panels.append(Panel("heaps", title, "ms per iteration", heaps))
        if len(times) == len(FOUR):
            in_order = [times[way] for way in FOUR]
            found[f"{model}.order"] = float(in_order == sorted(in_order, reverse=True))
            found[f"{model}.inc"] = 100 * (1 - times["inc"] / times["wa"])
            found[f"{model}.speedup"] = times["wa"] / times["inc+c"]
            found[f"{model}.comm"] = 100 * (1 - rest["inc+c"] / rest["wa"])
    return Reading(found, panels)


FIG12: Final = Item(
    "inceptionn-fig12",
    "Fig. 12: WA, WA+C, INC and INC+C, four models",
    [
        claim
        for model, (name, *_) in FIG12_MODELS.items()
        for claim in (
            holds(f"{model}.order", f"{name}: WA > WA+C > INC > INC+C", "Fig. 12"),
            scaled(f"{model}.inc", f"{name}: INC's time is shorter than WA's by", INC_SHORTER[model], "%", "VIII-A"),
            scaled(
                f"{model}.speedup", f"{name}: WA's time over INC+C's; printed: 2.2 to 3.1", 2.2, "x or more", "VIII-A"
            ),
            scaled(
                f"{model}.comm",
                f"{name}: INC+C's communication is shorter than WA's by; printed: 70.9 to 80.7",
                70.9,
                "% or more",
                "VIII-A",
            ),
        )
    ],
    LINKS + " HDC trains on MNIST. The others have their real sizes and train on noise of 64x64 with one sample per "
    "worker: their gradients cross the links as they would, computing is next to nothing, gradients are no "
    "ImageNet's.",
    lambda _is_full: [
        Step(model, bound(_four, model), tuple(filter(None, [data_set])), needs_root=True)
        for model, (*_, data_set) in FIG12_MODELS.items()
    ],
    _fig12,
)

TARGET: Final = 0.95


def _equal_accuracy(setting: Setting) -> Json:
    iterations, every = (1200, 40) if setting.is_full else (320, 20)
    runs = [
        settings_of(
            setting, "hdc", "mnist", way, iterations=iterations, eval_every=every, loss_scale=8.0, learning_rate=0.05
        )
        for way in ("wa", "inc+c")
    ]
    return on_links(setting, runs, GIGABIT)


def reached(accuracies: Mapping[str, float], target: float) -> int | None:
    """Return the iteration after which an accuracy is first at least the target."""
    return next((int(at) for at, accuracy in accuracies.items() if accuracy >= target), None)


def _fig13(values: Mapping[str, Json]) -> Reading:
    costs = values.get("hdc", {})
    if len(costs) < 2:
        return Reading({}, [])
    at = {way: reached(cost["accuracies"], TARGET) for way, cost in costs.items()}
    panels = [
        Panel(
            "lines",
            "HDC: accuracy over time",
            "% of the test set",
            tuple(
                Series(
                    way,
                    tuple(int(i) * cost["s_per_iteration"] for i in cost["accuracies"]),
                    tuple(100 * a for a in cost["accuracies"].values()),
                )
                for way, cost in costs.items()
            ),
            "seconds of training",
            log_x=True,
        ),
        Panel(
            "lines",
            "HDC: accuracy by iteration",
            "% of the test set",
            tuple(curve(way, cost["accuracies"], 100) for way, cost in costs.items()),
            "iterations",
        ),
    ]
    found = {}
    wa, inc_c = at["wa"], at["inc+c"]
    if wa is not None and inc_c is not None:
        found["more"] = 100 * (inc_c / wa - 1)
        found["speedup"] = wa * costs["wa"]["s_per_iteration"] / (inc_c * costs["inc+c"]["s_per_iteration"])
    return Reading(found, panels)


FIG13: Final = Item(
    "inceptionn-fig13",
    "Fig. 13: equal accuracy, epochs and speed-up",
    [
        scaled(
            "speedup",
            f"HDC: time of WA over INC+C's, until {100 * TARGET:g} % accuracy; printed: 2.2 to 3.1",
            2.2,
            "x or more",
            "VIII-B",
        ),
        scaled("more", "HDC: additional iterations of INC+C; printed: 1 or 2 epochs", None, "%", "VIII-B"),
        *(
            not_here(
                f"{model}.speedup",
                f"{model}: speed-up at equal accuracy",
                speedup,
                "x",
                "VIII-B",
                "ImageNet is not here",
            )
            for model, speedup in (("AlexNet", 3.1), ("VGG-16", 2.2))
        ),
    ],
    LINKS + " HDC on MNIST at 1 Gb/s, loss scale 8, learning rate 0.05, up to 95 % instead of the final accuracy.",
    lambda _is_full: [Step("hdc", _equal_accuracy, ("mnist",), needs_root=True)],
    _fig13,
)
