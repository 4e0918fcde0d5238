"""INCEPTIONN's figures that need no link: Fig. 4, 5 and 14 with Table III, and the engine of Fig. 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.lab.models.engine_model import EngineModel
from netoffload.lab.models.settings import EngineSettings
from netoffload.lab.papers.claim import Claim, holds, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import bars, settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training.inprocess import Seen, learnt

NO_IMAGENET: Final = "ImageNet is not here, and two cores would take months"

TRUNCATIONS: Final = ("16b-T", "22b-T", "24b-T")
BOUNDS: Final = (10, 8, 6)
MODELS: Final[Mapping[str, tuple[str, int, int]]] = {"hdc": ("mnist", 300, 2000), "cnn": ("cifar10", 60, 1500)}
"""By model: its data set, and iterations of a quick and of a full run."""
MODEL_SETTING: Final = (
    "Paper: AlexNet on ImageNet and HDC on MNIST, trained to the end (Table I). Here: HDC on MNIST, and a small "
    "convolutional network on CIFAR-10 (or a part of it) instead of AlexNet, some hundred iterations with four "
    "workers of batch 25, whose gradients are averaged; each model has its own learning rate."
)


def _truncated(setting: Setting, model: str, what: str, kind: str) -> Json:
    data_set, quick, full = MODELS[model]
    settings = settings_of(setting, model, data_set, iterations=full if setting.is_full else quick)
    coder = kind if what in ("g", "both") else None
    return learnt(settings, coder, weights=kind if what in ("w", "both") else None)


def _fig4_steps(_is_full: bool) -> list[Step]:
    return [
        Step(f"{model} {what} {kind}", bound(_truncated, model, what, kind), (data_set,))
        for model, (data_set, *_) in MODELS.items()
        for what, kind in (("none", ""), *((what, kind) for what in ("w", "g", "both") for kind in TRUNCATIONS))
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
    [
        holds("hdc.order", "HDC: truncating g costs no more accuracy than truncating w (24b-T)", "Fig. 4, III-A"),
        holds("cnn.order", "a CNN: truncating g costs no more accuracy than truncating w (24b-T)", "Fig. 4, III-A"),
        *(
            scaled(f"{model}.{what}", f"{model}: points lost with 24b-T of {what} alone", None, "points", "Fig. 4")
            for model in MODELS
            for what in ("w", "g")
        ),
        not_here("alexnet", "AlexNet's accuracy with truncated w and g", None, "%", "Fig. 4", NO_IMAGENET),
    ],
    MODEL_SETTING + " The paper's bars have no numbers.",
    _fig4_steps,
    _fig4,
)

HISTOGRAM_EDGES: Final = np.linspace(-1, 1, 81)
PHASES: Final = (0.02, 0.5, 1.0)
PHASE_NAMES: Final = ("early", "middle", "final")


def _distribution(setting: Setting) -> Json:
    iterations = 3000 if setting.is_full else 400
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations)
    chosen = {max(1, round(share * iterations)): name for share, name in zip(PHASES, PHASE_NAMES, strict=True)}
    kept: dict[str, Any] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration in chosen:
            gradient = seen.own[0]
            inside = np.abs(gradient) < 1
            counts, _ = np.histogram(gradient[inside], HISTOGRAM_EDGES)
            near = float(np.mean(np.abs(gradient) < HISTOGRAM_EDGES[1] + 1))
            kept[chosen[iteration]] = {"counts": counts.tolist(), "inside": float(inside.mean()), "near": near}

    learnt(settings, observe=observe)
    return kept


def _fig5(values: Mapping[str, Json]) -> Reading:
    kept = values.get("hdc", {})
    middles = tuple(float(x) for x in (HISTOGRAM_EDGES[1:] + HISTOGRAM_EDGES[:-1]) / 2)
    panels = [
        Panel(
            "steps",
            f"{name} stage",
            "% of the gradients",
            (Series(name, middles, tuple(100 * n / sum(one["counts"]) for n in one["counts"])),),
            "value",
            log_y=True,
        )
        for name, one in kept.items()
    ]
    found = {}
    if kept:
        found = {"inside": 100 * min(one["inside"] for one in kept.values()), "near": 100 * kept["final"]["near"]}
    return Reading(found, panels)


FIG5: Final = Item(
    "inceptionn-fig5",
    "Fig. 5: distribution of gradients at three stages",
    [
        scaled("inside", "gradients between -1 and 1, least of the stages", 100.0, "%", "III-B", within=0.1),
        scaled("near", "gradients within 0.025 of 0, final stage", None, "%", "Fig. 5"),
    ],
    "Paper: AlexNet on ImageNet. Here: HDC on MNIST, four workers of batch 25; the gradient of one worker.",
    lambda _is_full: [Step("hdc", _distribution, ("mnist",))],
    _fig5,
)

TABLE3_HDC: Final = {10: (92.0, 6.5, 1.5, 0.0), 8: (95.7, 3.4, 0.9, 0.0), 6: (98.1, 1.6, 0.4, 0.0)}
TABLE3_OTHERS: Final = {
    "AlexNet": {10: (74.9, 3.9, 21.1, 0.1), 8: (82.5, 14.8, 2.6, 0.1), 6: (93.0, 7.0, 0.0, 0.1)},
    "ResNet-50": {10: (81.6, 17.9, 0.5, 0.0), 8: (92.3, 7.7, 0.1, 0.0), 6: (97.6, 2.4, 0.0, 0.0)},
    "VGG-16": {10: (94.2, 0.9, 4.9, 0.0), 8: (96.2, 3.8, 0.0, 0.0), 6: (97.3, 2.7, 0.0, 0.0)},
}
CLASS_BITS: Final = (2, 10, 18, 34)
CODERS: Final[Mapping[str, str | None]] = {
    "Base": None,
    **{kind: kind for kind in TRUNCATIONS},
    **{f"2^-{k}": f"inceptionn:bound={k}" for k in BOUNDS},
}


def printed_ratio(shares: Sequence[float]) -> float:
    """Return the ratio that follows from a row of Table III: 11.6 for HDC with 2^-10, as VIII-C prints."""
    return 32 / sum(bits * share / 100 for bits, share in zip(CLASS_BITS, shares, strict=True))


def class_shares(values: Float32Array, k: int) -> list[float]:
    """Return the shares of floats that become 2, 10, 18 and 34 bits (Algorithm 2; thresholds as in the codec)."""
    magnitudes = np.abs(values)
    at_least = [float(np.mean(magnitudes >= limit)) for limit in (2.0**-k, 2.0 ** -(k // 2), 1.0)]
    return [1 - at_least[0], at_least[0] - at_least[1], at_least[1] - at_least[2], at_least[2]]


def _compressed(setting: Setting, name: str) -> Json:
    iterations = 3000 if setting.is_full else 500
    settings = settings_of(setting, "hdc", "mnist", iterations=iterations)
    own: dict[int, list[list[float]]] = {k: [] for k in BOUNDS}
    sums: dict[int, list[list[float]]] = {k: [] for k in BOUNDS}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration % max(1, iterations // 25) == 0:
            for k in BOUNDS:
                own[k].append(class_shares(seen.own[0], k))
                sums[k].append(class_shares(seen.total, k))

    said = learnt(settings, CODERS[name], observe=observe)
    means = {
        kind: {str(k): np.mean(of[k], axis=0).tolist() for k in BOUNDS} for kind, of in (("own", own), ("sums", sums))
    }
    thirds = {str(k): [float(part[:, 0].mean()) for part in np.array_split(np.array(own[k]), 3)] for k in BOUNDS}
    return said | {"classes": means, "zeros_by_third": thirds}


def _fig14(values: Mapping[str, Json]) -> Reading:
    if "Base" not in values:
        return Reading({}, [])
    base = values["Base"]["accuracy"]
    ratios = {name: one["ratio"] for name, one in values.items()}
    relative = {name: one["accuracy"] / base for name, one in values.items()}
    found = {"base": 100 * base}
    found |= {f"ratio.{name}": ratio for name, ratio in ratios.items()}
    found |= {f"relative.{name}": 100 * share for name, share in relative.items()}
    remarks = []
    panels = [
        Panel("bars", "compression ratio", "octets of float32 per octet sent", (bars("ratio", ratios),)),
        Panel("bars", "accuracy relative to Base", "%", (bars("accuracy", relative, 100),)),
    ]
    for k in BOUNDS:
        if (one := values.get(f"2^-{k}")) is None:
            continue
        shares = {
            f"{bits}-bit": 100 * share for bits, share in zip(CLASS_BITS, one["classes"]["own"][str(k)], strict=True)
        }
        found |= {f"table3.{k}.{name}": share for name, share in shares.items()}
        printed = dict(zip(shares, TABLE3_HDC[k], strict=True))
        panels.append(
            Panel(
                "bars",
                f"Table III, HDC, 2^-{k}",
                "% of gradients",
                (bars("printed", printed, printed=True), bars("here", shares)),
            )
        )
        sums, thirds = one["classes"]["sums"][str(k)], one["zeros_by_third"][str(k)]
        remarks.append(
            f"2^-{k}: {100 * thirds[0]:.1f}, {100 * thirds[1]:.1f} and {100 * thirds[2]:.1f} % of a worker's "
            f"gradient "
            "become 2 bits in the first, second and last third of the run; of the sum of four workers' coded "
            "gradients "
            f"{100 * sums[0]:.1f} % do over the whole run."
        )
    return Reading(found, panels, remarks)


FIG14: Final = Item(
    "inceptionn-fig14",
    "Fig. 14: ratio and accuracy of truncation and of INC; Table III: classes",
    [
        scaled("base", "HDC's accuracy without compression", None, "%", "Fig. 14 (b)"),
        *(
            Claim(f"ratio.{kind}", f"HDC: compression ratio of {kind}", ratio, "x", "Fig. 14 (a)", within=0.1)
            for kind, ratio in (("16b-T", 2.0), ("22b-T", 3.2), ("24b-T", 4.0))
        ),
        *(
            scaled(
                f"ratio.2^-{k}",
                f"HDC: compression ratio of INC(2^-{k}); printed: from Table III's shares",
                ratio,
                "x",
                "Fig. 14 (a), Table III",
                within=1.5,
            )
            for k, ratio in ((k, printed_ratio(shares)) for k, shares in TABLE3_HDC.items())
        ),
        *(
            scaled(
                f"relative.2^-{k}",
                f"HDC: accuracy of INC(2^-{k}) relative to Base",
                100.0,
                "%",
                "VIII-C: less than 2 points below",
                within=2.0,
            )
            for k in BOUNDS
        ),
        *(
            scaled(
                f"table3.{k}.{bits}-bit",
                f"HDC: gradients of {bits} bits, INC(2^-{k})",
                share,
                "%",
                "Table III",
                within=3.0,
            )
            for k, shares in TABLE3_HDC.items()
            for bits, share in zip(CLASS_BITS, shares, strict=True)
        ),
        *(
            not_here(
                f"table3.{model}.{k}.{bits}",
                f"{model}: gradients of {bits} bits, INC(2^-{k})",
                share,
                "%",
                "Table III",
                NO_IMAGENET,
            )
            for model, rows in TABLE3_OTHERS.items()
            for k, shares in rows.items()
            for bits, share in zip(CLASS_BITS, shares, strict=True)
        ),
    ],
    "Paper: four models, trained to the end; HDC for 10,000 iterations. Here: HDC on MNIST with Table I's batch, "
    "momentum and learning rate, some hundred iterations, four workers. Here each worker's gradient is coded once, but "
    "a ring codes partial sums. The paper subtracts the sum of gradients, we subtract the mean.",
    lambda _is_full: [Step(name, bound(_compressed, name), ("mnist",)) for name in CODERS],
    _fig14,
)


def _engine(setting: Setting, spread: float) -> Json:
    count = 400_000 if setting.is_full else 40_000
    model = EngineModel(EngineSettings(gradients=f"gaussian:{spread}", count=count))
    model.measure(lambda said, _share=None: setting.say(said))
    assert model.found is not None
    both = {"compressor": model.found.compressor, "decompressor": model.found.decompressor}
    return {name: {"in": one.input_bps, "out": one.output_bps} for name, one in both.items()} | {
        "ratio": model.found.ratio
    }


SPREADS: Final = (0.0005, 0.002, 0.01, 0.1)


def _engine_reading(values: Mapping[str, Json]) -> Reading:
    found = {}
    by_spread = {spread: values[f"{spread:g}"] for spread in SPREADS if f"{spread:g}" in values}
    if by_spread:
        least = min(one["compressor"]["in"] for one in by_spread.values())
        found = {"rate": least / 1e9, "line": float(least >= 10e9)}
    series = tuple(
        Series(name, tuple(by_spread), tuple(one[name][side] / 1e9 for one in by_spread.values()))
        for name, side in (("compressor", "in"), ("decompressor", "out"))
    )
    return Reading(
        found, [Panel("lines", "float32 through the engines at 100 MHz", "Gb/s", series, "sigma", log_x=True)]
    )


ENGINE: Final = Item(
    "inceptionn-engine",
    "VI-A, VII-C: the engine keeps up with the line",
    [
        Claim(
            "rate",
            "float32 that the compressor takes at 100 MHz, least",
            25.6,
            "Gb/s",
            "VI-A: 256 bits per cycle",
            within=0.3,
        ),
        holds("line", "the engine does not slow a 10 Gb/s line down", "VII-C"),
    ],
    "Paper: an FPGA at 100 MHz. Here: a model of its engines, clocked cycle by cycle, on random gradients.",
    lambda _is_full: [Step(f"{spread:g}", bound(_engine, spread)) for spread in SPREADS],
    _engine_reading,
)
