"""INCEPTIONN: Fig. 4, 5, 7, 12 to 15, Tables II and III, and the engine of Fig. 9 and 10."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.config import format_rate
from netoffload.errors import RunError
from netoffload.lab.bench.allreduce import Allreduce
from netoffload.lab.bench.settings import AllreduceSettings
from netoffload.lab.models.engine_model import EngineModel
from netoffload.lab.models.exchange import Link, TimeFormula, aggregator_s, ring_s, star_s
from netoffload.lab.models.settings import EngineSettings
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, rows
from netoffload.lab.papers.runs import (
    SEEDS,
    accuracies,
    accuracies_over_time,
    bars,
    first_at,
    heaps,
    of_seeds,
    on_links,
    settings_of,
)
from netoffload.lab.reports.panels import Panel, Series
from netoffload.lab.testbed import NicSettings
from netoffload.lab.training.inprocess import Seen, learnt

TRUNCATIONS: Final = ("16b-T", "22b-T", "24b-T")
BOUNDS: Final = (10, 8, 6)
MODELS: Final[Mapping[str, tuple[str, int, int]]] = {"hdc": ("mnist", 300, 2000), "cnn": ("cifar10", 60, 1500)}
"""By model: its data set, and iterations of a quick and of a full run."""


def _truncated(setting: Setting, model: str, what: str, kind: str) -> Json:
    data_set, quick, full = MODELS[model]
    settings = settings_of(setting, model, data_set, iterations=full if setting.is_full else quick)
    coder = kind if what in ("g", "both") else None
    return learnt(settings, coder, weights=kind if what in ("w", "both") else None, say=setting.say)


def _fig4_steps(_is_full: bool) -> list[Step]:
    cases = (("none", ""), *((what, kind) for what in ("w", "g", "both") for kind in TRUNCATIONS))
    return [
        Step.of(_truncated, model, what, kind, data=data_set)
        for model, (data_set, *_) in MODELS.items()
        for what, kind in cases
    ]


def _fig4(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels = []
    for model in MODELS:
        if f"{model} none " not in values:
            continue
        base = values[f"{model} none "]["accuracy"]
        by_what: dict[str, dict[str, float]] = {}
        for what in ("w", "g", "both"):
            kinds = {kind: values.get(f"{model} {what} {kind}") for kind in TRUNCATIONS}
            by_what[what] = {"none": base} | {kind: one["accuracy"] for kind, one in kinds.items() if one}
        series = tuple(bars(f"{what} only" if what != "both" else what, one, 100) for what, one in by_what.items())
        panels.append(Panel("bars", f"{model}: accuracy", "% of the test set", series))
        loss = {what: base - one["24b-T"] for what, one in by_what.items() if "24b-T" in one}
        if len(loss) == 3:
            found[f"{model}.order"] = float(loss["g"] <= loss["w"])
            found[f"{model}.w"], found[f"{model}.g"] = 100 * loss["w"], 100 * loss["g"]
    return Reading(found, panels)


FIG4: Final = Item(
    "inceptionn-fig4",
    "Fig. 4: truncating weights or gradients",
    "Paper: AlexNet and HDC, trained to the end; its bars have no numbers. Here: HDC, and a small convolutional "
    "network instead of AlexNet; gradients are averaged.",
    _fig4_steps,
    _fig4,
)

HISTOGRAM_EDGES: Final = np.linspace(-1, 1, 81)
STAGES: Final = {"early": 0.02, "middle": 0.5, "final": 1.0}


def _distribution(setting: Setting) -> Json:
    iterations = 3000 if setting.is_full else 400
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations)
    chosen = {max(1, round(share * iterations)): name for name, share in STAGES.items()}
    kept: dict[str, Any] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration in chosen:
            gradient = seen.own[0]
            inside = np.abs(gradient) < 1
            counts, _ = np.histogram(gradient[inside], HISTOGRAM_EDGES)
            near = float(np.mean(np.abs(gradient) < HISTOGRAM_EDGES[1] + 1))
            kept[chosen[iteration]] = {"counts": counts.tolist(), "inside": float(inside.mean()), "near": near}

    learnt(settings, observe=observe, say=setting.say)
    return kept


def _fig5(values: Mapping[str, Json]) -> Reading:
    kept = values.get("hdc", {})
    middles = tuple(float(x) for x in (HISTOGRAM_EDGES[1:] + HISTOGRAM_EDGES[:-1]) / 2)
    panels = []
    for name, one in kept.items():
        shares = Series(name, middles, tuple(100 * n / sum(one["counts"]) for n in one["counts"]))
        panels.append(Panel("steps", f"{name} stage", "% of the gradients", (shares,), "value", log_y=True))
    found = {}
    if kept:
        found = {"inside": float(all(one["inside"] == 1 for one in kept.values())), "near": 100 * kept["final"]["near"]}
    return Reading(found, panels)


FIG5: Final = Item(
    "inceptionn-fig5",
    "Fig. 5: distribution of gradients at three stages",
    "Paper: AlexNet. Here: HDC; the gradient of one worker.",
    lambda _is_full: [Step("hdc", _distribution, "mnist")],
    _fig5,
)

CLASS_BITS: Final = (2, 10, 18, 34)
TABLE1_ITERATIONS: Final = 10_000
ONCE, PER_HOP, SUM = "once", "per hop", "sum"
"""How workers' gradients become the update: each coded once and averaged; coded by every hop of a ring; summed."""
CODERS: Final[Mapping[str, str | None]] = {
    "Base": None,
    **{kind: kind for kind in TRUNCATIONS},
    **{f"2^-{k}": f"inceptionn:bound={k}" for k in BOUNDS},
}


def class_shares(values: Float32Array, k: int) -> list[float]:
    """Return the shares of floats that become 2, 10, 18 and 34 bits (Algorithm 2; thresholds as in the codec)."""
    magnitudes = np.abs(values)
    at_least = [float(np.mean(magnitudes >= limit)) for limit in (2.0**-k, 2.0 ** -(k // 2), 1.0)]
    return [1 - at_least[0], at_least[0] - at_least[1], at_least[1] - at_least[2], at_least[2]]


def _compressed(setting: Setting, name: str, way: str = ONCE, seed: int = 1) -> Json:
    iterations = TABLE1_ITERATIONS if setting.is_full else 500
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations, seed=seed)
    if way == SUM:  # the sum at Table I's rate is the mean at N times the rate
        rate = settings.nodes * settings.optimizer_spec.learning_rate
        settings = settings_of(setting, "hdc", "mnist", iterations=iterations, seed=seed, learning_rate=rate)
    own: dict[int, list[list[float]]] = {k: [] for k in BOUNDS}
    sums: dict[int, list[list[float]]] = {k: [] for k in BOUNDS}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration % max(1, iterations // 25) == 0:
            for k in BOUNDS:
                own[k].append(class_shares(seen.own[0], k))
                sums[k].append(class_shares(seen.total, k))

    via = "ring" if way == PER_HOP else None
    said = learnt(settings, CODERS[name], observe=observe, via=via, say=setting.say)
    if said["diverged"]:
        return said
    means = {
        kind: {str(k): np.mean(of[k], axis=0).tolist() for k in BOUNDS} for kind, of in (("own", own), ("sums", sums))
    }
    thirds = {str(k): [float(part[:, 0].mean()) for part in np.array_split(np.array(own[k]), 3)] for k in BOUNDS}
    return said | {"classes": means, "zeros_by_third": thirds}


def _fig14_steps(is_full: bool) -> list[Step]:
    steps = [Step.of(_compressed, name, data="mnist") for name in CODERS]
    if is_full:
        lossy = [name for name in CODERS if "^" in name]
        further = [(name, ONCE, seed) for seed in SEEDS[1:] for name in ("Base", *lossy)]
        further += [(name, way, 1) for way in (PER_HOP, SUM) for name in lossy] + [("Base", SUM, 1)]
        steps += [Step.of(_compressed, *case, data="mnist") for case in further]
    return steps


def table3_ratios(k: int) -> dict[str, float]:
    """Return the compression ratios that follow from the shares of Table III, by model."""
    table, bits = rows("inceptionn-fig14"), np.array(CLASS_BITS)
    shares = {name: table[f"table3.{name}.{k}"] for name in ("AlexNet", "ResNet-50", "VGG-16")}
    shares["HDC"] = (*(table[f"table3.{k}.{of}-bit"][0] for of in CLASS_BITS[:-1]), 0.0)
    return {name: float(32 / (np.array(of) @ bits / 100)) for name, of in shares.items()}


def _fig14(values: Mapping[str, Json]) -> Reading:
    if "Base" not in values:
        return Reading({}, [])
    runs = {name: of_seeds(values, name) + of_seeds(values, f"{name} {ONCE}") for name in CODERS}
    accuracy = {name: fmean(one["accuracy"] for one in of) for name, of in runs.items() if of}
    base, names = accuracy["Base"], list(accuracy)
    ratios = {name: values[name]["ratio"] for name in names}
    relative = {name: accuracy[name] / base for name in names}
    found = {"base": 100 * base}
    found |= {f"ratio.{name}": ratio for name, ratio in ratios.items()}
    found |= {f"relative.{name}": float(base - accuracy[name] < 0.02) for name in names}
    of_table3 = {k: table3_ratios(k) for k in BOUNDS}
    found |= {"least": min(of_table3[10].values()), "most": max(of_table3[10].values())}
    found["largest"] = max(of_table3[6].values())
    kept = ", ".join(f"{name} {100 * share:.2f} %" for name, share in relative.items())
    implied = ", ".join(f"2^-{k} {of['HDC']:.1f}" for k, of in of_table3.items())
    remarks = [
        f"Accuracy relative to Base: {kept}. Ratios from Table III's shares of HDC: {implied}.",
        "Table III contradicts Algorithm 2: of AlexNet and VGG-16 at 2^-10, 21.2 and 4.9 % are 2^-5 and more, but at "
        "2^-8 only 17.5 and 3.8 % are 2^-8 and more.",
    ]
    for way in (PER_HOP, SUM):
        others = {name: one for name in CODERS if (one := values.get(f"{name} {way} 1"))}
        if others:
            ends = {
                name: "diverges" if one["diverged"] else f"{100 * one['accuracy']:.2f} %"
                for name, one in others.items()
            }
            is_one = len(set(ends.values())) == 1
            said = f"each {ends.popitem()[1]}" if is_one else ", ".join(map(" ".join, ends.items()))
            remarks.append(f"Accuracy with gradients that are {'summed' if way == SUM else 'coded per hop'}: {said}.")
    panels = [
        Panel("bars", "compression ratio", "octets of float32 per octet sent", (bars("ratio", ratios),)),
        Panel("bars", "accuracy relative to Base", "%", (bars("accuracy", relative, 100),)),
    ]
    table3, zeros = rows("inceptionn-fig14"), []
    for k in BOUNDS:
        if "classes" not in (one := values.get(f"2^-{k}", {})):  # not measured, or diverged
            continue
        names = [f"{bits}-bit" for bits in CLASS_BITS[:-1]]  # those of 34 bits would be 1 and more: there are none
        shares = {name: 100 * share for name, share in zip(names, one["classes"]["own"][str(k)], strict=False)}
        found |= {f"table3.{k}.{name}": share for name, share in shares.items()}
        theirs = bars("printed", {name: table3[f"table3.{k}.{name}"][0] for name in names}, printed=True)
        panels.append(Panel("bars", f"Table III, HDC, 2^-{k}", "% of gradients", (theirs, bars("here", shares))))
        zeros.append(
            f"2^-{k} {', '.join(f'{100 * third:.1f}' for third in one['zeros_by_third'][str(k)])} "
            f"({100 * one['classes']['sums'][str(k)][0]:.1f})"
        )
    if zeros:
        remarks.append(f"Shares of 2 bits, %, in each third of the run (of the sum of gradients): {'; '.join(zeros)}.")
    return Reading(found, panels, remarks)


FIG14: Final = Item(
    "inceptionn-fig14",
    "Fig. 14: ratio and accuracy of truncation and of INC; Table III: classes",
    "Paper: four models, trained to the end; HDC for 10,000 iterations. Here: HDC, whose gradients are coded once and "
    "averaged; the paper's ring codes partial sums, and subtracts the sum. Full runs do that as well.",
    _fig14_steps,
    _fig14,
    is_own_when_full=True,
)

SPREADS: Final = (0.0005, 0.002, 0.01, 0.1)


def _engine(setting: Setting, spread: float) -> Json:
    count = 400_000 if setting.is_full else 40_000
    model = EngineModel(EngineSettings(gradients=f"gaussian:{spread}", count=count))
    model.measure(setting.say)
    assert model.found is not None
    both = {"compressor": model.found.compressor, "decompressor": model.found.decompressor}
    made = {name: {"in": one.input_bps, "out": one.output_bps} for name, one in both.items()}
    return made | {"ratio": model.found.ratio}


def _engine_reading(values: Mapping[str, Json]) -> Reading:
    found = {}
    by_spread = {spread: values[f"{spread:g}"] for spread in SPREADS if f"{spread:g}" in values}
    if by_spread:
        least = min(one["compressor"]["in"] for one in by_spread.values())
        found = {"rate": least / 1e9, "keeps": float(least >= 0.99 * 25.6e9)}
    series = tuple(
        Series(name, tuple(by_spread), tuple(one[name][side] / 1e9 for one in by_spread.values()))
        for name, side in (("compressor", "in"), ("decompressor", "out"))
    )
    panel = Panel("lines", "float32 through the engines at 100 MHz", "Gb/s", series, "sigma", log_x=True)
    return Reading(found, [panel])


ENGINE: Final = Item(
    "inceptionn-engine",
    "VI-A, VII-C: the engine keeps up with the line",
    "Paper: an FPGA at 100 MHz. Here: a model of its engines, clocked cycle by cycle, on random gradients.",
    lambda _is_full: [Step.of(_engine, spread) for spread in SPREADS],
    _engine_reading,
)

FOUR: Final = ("wa", "wa+c", "inc", "inc+c")
GIGABIT: Final = 1_000_000_000
LINKS: Final = (
    "Paper: five hosts with GPUs, 10 Gb/s Ethernet, link times of compressing NICs scaled (VII-C). Here: five nodes, "
    "their NICs (processes) and a switch emulated on two cores."
)


AS_TABLE2: Final = "Hosts and links as in Table II."


def _breakdown(setting: Setting) -> Json:
    runs = [settings_of(setting, "hdc", "mnist", "wa", iterations=100 if setting.is_full else 40)]
    return on_links(setting, runs, 10 * GIGABIT)


def _table2(values: Mapping[str, Json]) -> Reading:
    if not values:
        return Reading({}, [])
    wa = next(iter(values.values()))["wa"]
    share = 100 * wa["communicate_s"] / wa["s_per_iteration"]
    parts = ("Communicate", "Forward and backward pass, update, sum")
    theirs = bars("printed", dict(zip(parts, (80.2, 19.7), strict=True)), printed=True)
    ours = bars("here", dict(zip(parts, (share, 100 - share), strict=True)))
    panel = Panel("bars", "HDC, worker-aggregator", "% of the time", (theirs, ours))
    found = {"communicate": share, "total": 100 * wa["s_per_iteration"]}
    remark = (
        "The aggregator's sum is part of communication here: workers wait for it. HDC has 4.6 MB here; the paper "
        "prints 2.5 MB and five layers of 500, which cannot both be true."
    )
    return Reading(found, [panel], [remark])


TABLE2: Final = Item(
    "inceptionn-table2",
    "Table II: where the time goes",
    LINKS + " Links of 10 Gb/s.",
    lambda _is_full: [Step("hdc", _breakdown, "mnist", needs_root=True)],
    _table2,
)

SOFTWARE: Final = ("inc", "snappy", "zfp", "16b-T", "24b-T")
NAMES_IN_FIG7: Final = {"inc": "Base", "inc+c inline": "inline codec", "zfp": "zfp (for SZ)"}


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
        named = {NAMES_IN_FIG7.get(name, name): cost for name, cost in costs.items()}
        title, unit = f"HDC, {gbit} Gb/s links", "training time over Base"
        panels.append(heaps(named, title, unit, 1 / base, above="communication, coding"))
        found |= {f"{gbit}.{name}": cost["s_per_iteration"] / base for name, cost in named.items() if name != "Base"}
    return Reading(found, panels)


FIG7: Final = Item(
    "inceptionn-fig7",
    "Fig. 7: compressing in software",
    AS_TABLE2
    + " HDC on a ring; snappy and zfp gather payloads; the inline codec is `bounded`, compiled, in the ranks.",
    lambda _is_full: [Step.of(_software, gbit, data="mnist", needs_root=True) for gbit in (1, 10)],
    _fig7,
)

FIG12_MODELS: Final[Mapping[str, tuple[str, str | None]]] = {
    "hdc": ("HDC", "mnist"),
    "resnet50": ("ResNet-50", None),
    "alexnet": ("AlexNet", None),
    "vgg16": ("VGG-16", None),
}
"""By model: its name in the paper, and its data; None: noise."""


def _four(setting: Setting, model: str, rate_gbit: int) -> Json:
    _, data_set = FIG12_MODELS[model]
    if data_set is not None:
        more = {"iterations": 200 if setting.is_full else 40}
    else:
        data_set, more = "synthetic:side=64", {"batch": 1, "iterations": 5 if setting.is_full else 1}
    runs = [settings_of(setting, model, data_set, way, **more) for way in FOUR]
    return on_links(setting, runs, rate_gbit * GIGABIT)


def _printed_computing_s(name: str) -> float:
    """Return the seconds of an iteration that are neither communication nor sum in Table II."""
    *passes, _, _, update_s = rows("inceptionn-table2")[f"{name}.s"][:6]  # a seventh is the total
    return (sum(passes) + update_s) / 100


def _fig12(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels, shorter, at_10 = [], [], []
    for key, costs in values.items():
        model, _, gbit = key.partition(" ")
        name, _ = FIG12_MODELS[model]
        if not costs.keys() >= set(FOUR):
            continue
        rest = {way: costs[way]["s_per_iteration"] - costs[way]["compute_s"] for way in FOUR}
        if gbit != "1":
            at_10.append(f"{name} {', '.join(f'{1e3 * s:.0f}' for s in rest.values())}")
            continue
        # The links have a tenth of the paper's rate, so computing takes ten times what the paper's GPUs took.
        computing_s = 10 * _printed_computing_s(name)
        times = {way: computing_s + s for way, s in rest.items()}
        paced = {way: {"compute_s": computing_s, "s_per_iteration": s} for way, s in times.items()}
        panels.append(heaps(paced, f"{name}, 1 Gb/s, computing as printed, x 10", "ms per iteration", 1e3))
        found[f"{model}.order"] = float(list(times.values()) == sorted(times.values(), reverse=True))
        found[f"{model}.inc"] = 100 * (1 - times["inc"] / times["wa"])
        found[f"{model}.speedup"] = times["wa"] / times["inc+c"]
        for claim, (less, than) in {"comm": ("inc+c", "wa"), "inc.comm": ("inc", "wa")}.items():
            found[f"{model}.{claim}"] = 100 * (1 - rest[less] / rest[than])
        shorter.append((1 - rest["wa+c"] / rest["wa"], 1 - rest["inc+c"] / rest["inc"]))
    if shorter:
        found |= {name: 100 * fmean(of) for name, of in zip(("wac", "incc"), zip(*shorter, strict=True), strict=True)}
    ways = ", ".join(FOUR)
    said = f"At 10 Gb/s two cores are the limit; ms of an iteration without computing, {ways}: {'; '.join(at_10)}."
    return Reading(found, panels, [said] if at_10 else [])


FIG12: Final = Item(
    "inceptionn-fig12",
    "Fig. 12: WA, WA+C, INC and INC+C, four models",
    AS_TABLE2 + " The larger models train on noise of 64x64, one sample per worker. At 1 Gb/s, a tenth of the "
    "paper's rate, computing counts ten times as long as Table II prints.",
    lambda _is_full: [
        Step.of(_four, model, gbit, data=data_set, needs_root=True)
        for gbit in (1, 10)
        for model, (_, data_set) in FIG12_MODELS.items()
    ],
    _fig12,
)

TARGET: Final = 0.95


def _equal_accuracy(setting: Setting) -> Json:
    iterations, every = (1200, 40) if setting.is_full else (320, 20)
    more = {"iterations": iterations, "eval_every": every, "loss_scale": 8.0, "learning_rate": 0.05}
    runs = [settings_of(setting, "hdc", "mnist", way, **more) for way in ("wa", "inc+c")]
    return on_links(setting, runs, GIGABIT)


def _fig13(values: Mapping[str, Json]) -> Reading:
    costs = values.get("hdc", {})
    if len(costs) < 2:
        return Reading({}, [])
    panels = [
        accuracies_over_time(costs, "HDC: accuracy over time", "seconds of training", log_x=True),
        accuracies(costs, "HDC: accuracy by iteration"),
    ]
    found = {}
    wa, inc_c = (first_at(costs[way], TARGET) for way in ("wa", "inc+c"))
    if wa is not None and inc_c is not None:
        found["more"] = 100 * (inc_c / wa - 1)
        found["speedup"] = wa * costs["wa"]["s_per_iteration"] / (inc_c * costs["inc+c"]["s_per_iteration"])
    return Reading(found, panels)


FIG13: Final = Item(
    "inceptionn-fig13",
    "Fig. 13: equal accuracy, epochs and speed-up",
    AS_TABLE2 + " HDC at 1 Gb/s, to 95 % instead of the final accuracy, measured every 20 (in full 40) iterations.",
    lambda _is_full: [Step("hdc", _equal_accuracy, "mnist", needs_root=True)],
    _fig13,
)

OCTETS: Final = {0.1: (1_000_000, 2_500_000), 1.0: (10_000_000, 40_000_000)}
"""By rate in Gb/s: the vectors that are summed."""
LINEAR: Final = 7 / 3
"""WA's time with 8 nodes over that with 4, if it is linear in the vectors that the aggregator's link carries."""
BEYOND: Final = tuple(2**power for power in range(2, 14))


def _exchange_times(setting: Setting, gbit: float) -> Json:
    nodes = (2, 3, 4, 6, 8) if setting.is_full else (2, 4, 8)
    sizes = tuple(map(str, OCTETS[gbit]))
    experiment = Allreduce(AllreduceSettings(nodes, f"{gbit * 1000:g}mbit", sizes, repeat=3, what=("ring", "wa")))
    experiment.measure(setting.say)
    found = experiment.findings(None)
    if found is None:
        raise RunError("no exchange was measured")
    measured = [[row.what, row.nodes, row.size_octets, row.median_s] for row in found.results]
    return {"rate_bps": found.rate_bps_measured, "rows": measured}


FORMULAS: Final[Mapping[str, tuple[str, TimeFormula]]] = {
    "ring": ("ring", ring_s),
    "star": ("wa", lambda link, nodes, octets: star_s(link, nodes - 1, octets)),
    "aggregator": ("wa", aggregator_s),
}
"""By name: the way that a formula is for. The paper prints those of the ring and of the aggregator."""


def calibrated(measured: Sequence[Sequence[Any]], name: str) -> tuple[Link, float]:
    """Fit a formula's latency and time per octet to measured exchanges; return them with the largest error (0..1).

    A row of ``measured`` is way, nodes, octets and seconds.
    """
    way, formula = FORMULAS[name]
    own = [row for row in measured if row[0] == way]
    terms = [(formula(Link(1, 0), p, n), formula(Link(0, 1), p, n)) for _, p, n, _ in own]
    times = np.array([seconds for *_, seconds in own])
    weighted = np.array(terms) / times[:, None]
    alpha_s, beta_s = np.linalg.lstsq(weighted, np.ones(len(own)), rcond=None)[0]
    link = Link(float(alpha_s), float(beta_s))
    errors = [abs(formula(link, p, n) / seconds - 1) for _, p, n, seconds in own]
    return link, float(max(errors))


def _fig15(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels, fits = [], []
    for key, value in values.items():
        measured, rate = value["rows"], format_rate(float(key) * GIGABIT)
        largest = max(octets for _, _, octets, _ in measured)
        times = {way: {p: s for what, p, n, s in measured if what == way and n == largest} for way in ("wa", "ring")}
        base = times["wa"][4]
        series = tuple(
            Series(name, tuple(times[way]), tuple(s / base for s in times[way].values()))
            for way, name in (("wa", "WA"), ("ring", "INC"))
        )
        links = {name: calibrated(measured, name) for name in FORMULAS}
        title = f"{rate}, {largest / 1e6:g} MB: over WA with 4"
        panels.append(Panel("lines", title, "exchange time", series, "nodes"))
        beyond = (
            Series("WA", BEYOND, tuple(star_s(links["star"][0], p - 1, largest) for p in BEYOND)),
            Series("INC", BEYOND, tuple(ring_s(links["ring"][0], p, largest) for p in BEYOND)),
        )
        title = f"{rate}: the calibrated model beyond"
        panels.append(Panel("lines", title, "seconds", beyond, "nodes", log_x=True, log_y=True))
        found |= {
            f"wa.{key}": times["wa"][8] / base,
            f"inc.{key}": times["ring"][8] / times["ring"][4],
        }
        found[f"wa.grows.{key}"] = float(abs(found[f"wa.{key}"] / LINEAR - 1) <= 0.1)
        found[f"inc.flat.{key}"] = float(found[f"inc.{key}"] <= 1.25)
        found |= {f"{name}.{key}": 100 * error for name, (_, error) in links.items()}
        fits.append(f"{rate} {', '.join(f'{name} {1e3 * of.alpha_s:.1f}' for name, (of, _) in links.items())}")
    remarks = []
    if fits:
        remarks.append(
            f"Latencies that fit, ms: {'; '.join(fits)}. Below 0 they have no meaning: the links' token bucket lets "
            "128 KiB pass at once. The paper's aggregator sends weights down a tree, ours to each in turn."
        )
    return Reading(found, panels, remarks)


FIG15: Final = Item(
    "inceptionn-fig15",
    "Fig. 15: exchange time from 4 to 8 nodes, and the model beyond",
    "Paper: gradient exchange of four models on 4 to 8 hosts with 10 Gb/s. Here: vectors of up to 40 MB on "
    "slower links. The aggregator's link carries 3 vectors with 4 nodes and 7 with 8, so linear "
    "growth is 7/3.",
    lambda _is_full: [Step.of(_exchange_times, gbit, needs_root=True) for gbit in OCTETS],
    _fig15,
)

PAPER: Final = Paper(
    "inceptionn",
    "Li et al., A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural "
    "Networks, MICRO 2018",
    "The algorithms are as printed, and the order of the four systems in Fig. 12 is the same. With the printed "
    "computing times our gains are the paper's for VGG-16, and larger for the others, because a ring saves more here. "
    "After 10,000 iterations each bound costs HDC less than 2 points, as printed. A sum in place of the mean diverges. "
    "HDC's gradients are smaller than Table III prints. "
    "Two of its columns contradict Algorithm 2, and two printed ratios do not follow from it.",
    (FIG4, FIG5, FIG14, ENGINE, TABLE2, FIG7, FIG12, FIG13, FIG15),
)
