"""Dettmers' 8-bit paper: Table 2, the predicted speed-ups (Tables 1 and 3 to 7), and training with the types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.compressors import Layout, registry
from netoffload.lab.bench import eight_bit as table2
from netoffload.lab.bench.settings import EightBitSettings
from netoffload.lab.models.cost import eight_bit as model
from netoffload.lab.papers.claim import Claim, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import bars, settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training.inprocess import Seen, learnt

TYPES: Final = ("8bit-dynamic", "8bit-linear", "8bit-mantissa", "8bit-static")
MNIST_RELATIVE: Final = {
    "8bit-dynamic": (3.0, 4.0, 5.0),
    "8bit-linear": (5.0, 6.0, 6.0),
    "8bit-mantissa": (4.5, 4.5, 6.0),
    "8bit-static": (4.0, 4.0, 5.0),
}
"""Table 2, MNIST data parallel: mean relative error of three layers, per cent."""
MNIST_MODEL: Final = {
    "8bit-dynamic": (0.5, 2.0, 2.0),
    "8bit-linear": (1.0, 2.0, 3.0),
    "8bit-mantissa": (1.5, 2.0, 8.0),
    "8bit-static": (1.0, 2.0, 6.0),
}
"""Table 2, MNIST model parallel: likewise."""
PARALLEL: Final = {"data": MNIST_RELATIVE, "model": MNIST_MODEL}
WEIGHTS: Final = (0, 2, 4)
"""Indices of the layers' weights among the model's tensors."""


def _errors(setting: Setting) -> Json:
    experiment = table2.EightBit(EightBitSettings(table2.PAPER_SAMPLE))
    experiment.measure(lambda said, _share=None: setting.say(said))
    assert experiment.found is not None
    return {f"{row.distribution} {row.type}": row.to_record()["errors"] for row in experiment.found.rows}


def _relative_errors(values: Float32Array) -> dict[str, float]:
    """Return the mean relative error of every type over values other than 0, in per cent."""
    some, layout = np.abs(values) > 0, Layout.flat(values.size)
    found = {}
    for kind in TYPES:
        coder = registry.parse(kind)
        back = coder.decode(coder.encode(values, coder.make_state(layout)), layout)
        found[kind] = 100 * float(np.mean(np.abs(back[some] - values[some]) / np.abs(values[some])))
    return found


def _layer_errors(setting: Setting) -> Json:
    iterations = 1000 if setting.is_full else 150
    settings = settings_of(setting, "dettmers-mnist", "mnist", nodes=1, batch=100, iterations=iterations)
    starts = np.cumsum((0, *settings.model_spec.layer_sizes(settings.sample_shape)))
    kept: dict[str, list[dict[str, float]]] = {}

    def observe(iteration: int, seen: Seen) -> None:
        if iteration == iterations:
            parts = [seen.own[0][starts[layer] : starts[layer + 1]].copy() for layer in WEIGHTS]
            kept["data"] = [_relative_errors(part) for part in parts]

    def see(outputs: list[Float32Array]) -> None:
        kept["model"] = [_relative_errors(output.ravel()) for output in outputs]

    learnt(settings, observe=observe, see_outputs=see)
    return kept


def _table2(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels, remarks = [], []
    if "random" in values:
        rows = values["random"]
        for (distribution, kind), (absolute, relative) in table2.PRINTED.items():
            errors = rows[f"{distribution} {kind}"]
            name = f"{distribution} {kind}"
            found[f"relative.{name}"] = errors["search"]["mean_relative_percent"]
            found[f"absolute.{name}"] = errors["search"]["mean_squared"]
            assert absolute
            assert relative
        for kind in dict.fromkeys(kind for _, kind in table2.PRINTED):
            printed = {d: table2.PRINTED[d, kind][1] for d in table2.DISTRIBUTIONS}
            ours = {d: rows[f"{d} {kind}"]["search"]["mean_relative_percent"] for d in printed}
            nearest = {d: rows[f"{d} {kind}"]["nearest"]["mean_relative_percent"] for d in printed}
            series = (
                bars("printed", printed, printed=True),
                bars("the paper's search", ours),
                bars("nearest number", nearest),
            )
            panels.append(Panel("bars", f"8-bit {kind}", "mean relative error, %", series))
        remarks.append(
            "The printed figures are those of a binary search that misses the nearest number one time in four. The "
            "column of absolute errors has mean squared errors. This program takes the nearest number, whose errors "
            "are a third smaller."
        )
    if "mnist" in values:
        for way, layers in values["mnist"].items():
            for number, errors in enumerate(layers, 1):
                found |= {f"{way}.{kind}.{number}": error for kind, error in errors.items()}
            places = tuple(f"layer {number}" for number in range(1, len(layers) + 1))
            by_kind = tuple(Series(kind, places, tuple(errors[kind] for errors in layers)) for kind in TYPES)
            panels.append(Panel("bars", f"MNIST, {way} parallel", "mean relative error, %", by_kind))
    return Reading(found, panels, remarks)


TABLE2: Final = Item(
    "eightbit-table2",
    "Table 2: errors of the types",
    [
        *(
            Claim(
                f"relative.{distribution} {kind}",
                f"{distribution}, {kind}: mean relative error",
                relative,
                "%",
                "Table 2",
                within=0.09 * relative,
            )
            for (distribution, kind), (_, relative) in table2.PRINTED.items()
        ),
        *(
            Claim(
                f"absolute.{distribution} {kind}",
                f'{distribution}, {kind}: "mean absolute error"; here: mean squared',
                absolute,
                "",
                "Table 2",
                within=0.2 * absolute,
            )
            for (distribution, kind), (absolute, _) in table2.PRINTED.items()
        ),
        *(
            scaled(
                f"{way}.{kind}.{number}",
                f"MNIST {way} parallel, {kind}, layer {number}: mean relative error",
                error,
                "%",
                "Table 2",
            )
            for way, printed in PARALLEL.items()
            for kind, errors in printed.items()
            for number, error in enumerate(errors, 1)
        ),
    ],
    "Paper: 25 million numbers of each distribution, and gradients of a 784x1024x1024x10 network with RMSProp. "
    "Here: as many numbers, and the same network with momentum SGD. The paper does not say how a matrix of gradients "
    "is scaled for mantissa and static; here the scale is 10^1, far above the gradients. Most gradients here are so "
    "small beside the largest one that the linear type turns them into 0.",
    lambda _is_full: [Step("random", _errors), Step("mnist", _layer_errors, ("mnist",))],
    _table2,
)


def _speedups(_setting: Setting) -> Json:
    made: dict[str, float] = {}
    for kernels, total_ms in model.TOTAL_MS.items():
        for bits in model.BITS:
            made[f"4 {kernels} {bits}"] = model.four_gpu_speedup(total_ms, model.PRINTED_PENALTY_MS[bits])
            for batch, passes in model.PRINTED_PASS_MS.items():
                sync_ms = passes[model.BITS.index(bits)]
                made[f"96 {kernels} {batch} {bits}"] = model.cluster_speedup(total_ms, batch, sync_ms)
    for bits in model.BITS:
        made[f"penalty {bits}"] = model.fc_penalty_ms(bits)
        for batch, syncs in model.PRINTED_SYNC_MS.items():
            made[f"pass {batch} {bits}"] = model.pass_sync_ms(syncs[model.BITS.index(bits)])
            made[f"sync {batch} {bits}"] = model.message_ms(batch, bits)
    made["gradient"] = model.gradient_sync_ms()
    made["fc"], made["parallel fc"] = sum(model.FC_PARTS_MS), sum(model.PARALLEL_FC_PARTS_MS)
    made["transfer"], made["transfers"] = model.alexnet_transfer_ms()
    return made


def _half_unit(printed: str) -> float:
    """Return half of the last printed digit, for the paper's rounding, and a little more for that of binary numbers."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2]) * (1 + 1e-9)


def _speedup_claims() -> Iterator[Claim]:
    for kernels, pair in model.PRINTED_FOUR.items():
        for bits, printed in zip(model.BITS, pair, strict=True):
            yield Claim(
                f"4 {kernels} {bits}",
                f"4 GPUs, {kernels}, {bits} bits: speed-up",
                float(printed),
                "x",
                "5.1.3, Table 1",
                within=_half_unit(printed),
            )
    for (kernels, batch), pair in model.PRINTED_SPEEDUPS.items():
        for bits, printed in zip(model.BITS, pair, strict=True):
            words = f"96 GPUs, {kernels}, sub-batch {batch}, {bits} bits: speed-up"
            yield Claim(
                f"96 {kernels} {batch} {bits}", words, float(printed), "x", "Table 7", within=_half_unit(printed)
            )
    for bits in model.BITS:
        printed_ms = model.PRINTED_PENALTY_MS[bits]
        yield Claim(
            f"penalty {bits}", f"4 GPUs, {bits} bits: sum of the printed terms", printed_ms, "ms", "5.1.2", within=0.005
        )
        for batch, passes in model.PRINTED_PASS_MS.items():
            text = f"{passes[model.BITS.index(bits)]:g}"
            words = f"{bits} bits, sub-batch {batch}: waiting time of a full pass, 31 (sync - 1.3)"
            yield Claim(f"pass {batch} {bits}", words, float(text), "ms", "Table 6", within=_half_unit(text))
        for batch, syncs in model.PRINTED_SYNC_MS.items():
            sync_ms = syncs[model.BITS.index(bits)]
            words = f"{bits} bits, sub-batch {batch}: one synchronisation, from Table 5"
            yield Claim(f"sync {batch} {bits}", words, sync_ms, "ms", "Tables 5 and 6", within=0.05 * sync_ms)
    yield Claim("gradient", "96 GPUs: the largest convolution's gradient", 1.9, "ms", "5.2.2", within=0.05)
    yield Claim("fc", "fully connected layers, one GPU: sum of the parts", 6.5, "ms", "Table 4", within=0.005)
    yield Claim(
        "parallel fc", "fully connected layers, four GPUs: sum of the parts", 3.34, "ms", "Table 4", within=0.005
    )
    yield Claim("transfer", "AlexNet's parameters at 7 GB/s", 32.0, "ms", "2.3.2", within=0.5)
    yield Claim("transfers", "AlexNet's parameters to three other GPUs", 128.0, "ms", "2.3.2", within=0.5)
    yield not_here("krizhevsky", "measured speed-up of 4 GPUs", 3.66, "x", "5.1.3", "no GPUs are here")


def _speedup_reading(values: Mapping[str, Json]) -> Reading:
    if "model" not in values:
        return Reading({}, [])
    made: dict[str, Any] = values["model"]
    panels = []
    for kernels in model.TOTAL_MS:
        batches = tuple(str(batch) for batch in model.PRINTED_PASS_MS)
        series: list[Series] = []
        for column, bits in enumerate(model.BITS):
            printed = tuple(float(model.PRINTED_SPEEDUPS[kernels, int(batch)][column]) for batch in batches)
            ours = tuple(made[f"96 {kernels} {batch} {bits}"] for batch in batches)
            series += [
                Series(f"{bits} bits, printed", batches, printed, True),
                Series(f"{bits} bits, formula", batches, ours),
            ]
        panels.append(Panel("bars", f"96 GPUs, {kernels}", "speed-up", tuple(series), "sub-batch"))
    remark = (
        "The 32-bit penalty's printed terms add up to 7.01 ms, not to 6.81; the speed-up of 3.53 is the same "
        "with either. No "
        "formula of the text gives Table 6's synchronisations from Table 5's messages: latency and octets are 10 "
        "% less."
    )
    return Reading(made, panels, [remark])


SPEEDUPS: Final = Item(
    "eightbit-speedups",
    "Tables 1 and 3 to 7: predicted speed-ups",
    list(_speedup_claims()),
    "The same formulas on the same printed numbers. Small differences are the paper's rounding; others have no reason "
    "in its text.",
    lambda _is_full: [Step("model", _speedups)],
    _speedup_reading,
)

CODERS: Final = {"32 bits": None, **{kind: kind for kind in TYPES}}
NETWORKS: Final = {"dettmers-mnist": ("mnist", 200, 3000), "dettmers-cifar": ("cifar10", 30, 1500)}


def _accuracy(setting: Setting, network: str, coder: str) -> Json:
    data_set, quick, full = NETWORKS[network]
    settings = settings_of(setting, network, data_set, nodes=2, batch=32, iterations=full if setting.is_full else quick)
    return learnt(settings, CODERS[coder])


def _accuracy_reading(values: Mapping[str, Json]) -> Reading:
    found: dict[str, float] = {}
    panels = []
    for network in NETWORKS:
        errors = {
            coder: 100 * (1 - values[key]["accuracy"]) for coder in CODERS if (key := f"{network} {coder}") in values
        }
        if "32 bits" not in errors:
            continue
        panels.append(Panel("bars", network, "test error, %", (bars("here", errors),)))
        found |= {
            f"{network}.{coder}": error - errors["32 bits"] for coder, error in errors.items() if coder != "32 bits"
        }
        found[f"{network}.32"] = errors["32 bits"]
    return Reading(found, panels)


ACCURACY: Final = Item(
    "eightbit-accuracy",
    "Sections 3.2 and 3.4: test errors on MNIST and CIFAR-10, data parallel",
    [
        *(
            claim
            for network, place in (
                ("dettmers-mnist", "3.4: no significant difference"),
                ("dettmers-cifar", "3.4: at most 2 % relative"),
            )
            for claim in (
                scaled(f"{network}.32", f"{network}: test error with 32 bits", None, "%", "3.4"),
                *(
                    scaled(
                        f"{network}.{kind}",
                        f"{network}, {kind}: test error minus that of 32 bits",
                        0.0,
                        "points",
                        place,
                        within=2.0,
                    )
                    for kind in TYPES
                ),
            )
        ),
        not_here(
            "alexnet",
            "AlexNet: top-5 error with 8 bits",
            18.65,
            "%",
            "3.4, Fig. 2",
            "ImageNet is not here, and two cores would take months",
        ),
    ],
    "Paper: RMSProp to convergence, five runs each. Here: momentum SGD, two workers of batch 32, some hundred "
    "iterations (30 on CIFAR-10); all gradients travel in 8 bits.",
    lambda _is_full: [
        Step(f"{network} {coder}", bound(_accuracy, network, coder), (data_set,))
        for network, (data_set, *_) in NETWORKS.items()
        for coder in CODERS
    ],
    _accuracy_reading,
)

PAPER: Final = Paper(
    "eightbit",
    "Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016",
    (TABLE2, SPEEDUPS, ACCURACY),
)
