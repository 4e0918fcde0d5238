"""Anoosheh et al.: Tables 1 to 3, with thresholds that a search finds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from netoffload.lab.bench.settings import ThresholdsSettings
from netoffload.lab.bench.thresholds import Thresholds
from netoffload.lab.papers.claim import holds, not_here, scaled
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, bound
from netoffload.lab.papers.runs import settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training import data, inprocess

BASE_GB: Final = 53433.0
PRINTED: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "wgt": {
        "5e-4": (58.2681, 15583.03),
        "7.5e-4": (58.1941, 11134.76),
        "8.75e-4": (57.9464, 9691.21),
        "1e-3": (57.9424, 6572.01),
        "2.5e-3": (57.2790, 2723.90),
        "5e-3": (56.4698, 933.35),
    },
    "bgt": {
        "6.25e-4": (51.6584, 396.85),
        "8.75e-4": (54.6196, 316.63),
        "1e-3": (55.0432, 279.65),
        "5e-3": (55.6646, 31.22),
        "6.25e-3": (55.9303, 21.34),
        "8.75e-3": (55.6945, 12.15),
    },
    "qgt": {
        "5e-6": (57.1371, 12055.74),
        "1e-5": (57.8625, 11632.94),
        "5e-5": (58.3640, 9879.56),
        "1e-4": (58.1682, 8525.72),
        "5e-4": (57.9224, 4204.91),
        "8.75e-3": (56.2720, 123.88),
    },
}
"""Tables 1 to 3: top-1 accuracy in per cent and gigabytes, by threshold."""
BASE_ACCURACY: Final = 57.9175
CLAIMED: Final = {"wgt": (12.3, 0.0), "bgt": (0.023, -2.22), "qgt": (7.87, 0.0)}
"""Section 4: per cent of the octets, by the points by which the accuracy is below the baseline's."""
GRID: Final = (1e-4, 5e-4, 2e-3, 5e-3, 0.02, 0.05)
TABLES: Final = {"wgt": 1, "bgt": 2, "qgt": 3}
MODEL: Final = "hdc"


def _base(setting: Setting) -> Json:
    settings = settings_of(setting, MODEL, "mnist", iterations=640 if setting.is_full else 64, learning_rate=0.05)
    return {"accuracy": inprocess.train(settings, data.load(settings)).accuracy}


def _search(setting: Setting, grid: tuple[float, ...]) -> Json:
    settings = ThresholdsSettings(
        MODEL,
        data="mnist",
        data_dir=setting.folders.get("mnist"),
        iterations=640 if setting.is_full else 64,
        learning_rate=0.05,
        threshold=grid,
    )
    search = Thresholds(settings)
    search.measure(lambda said, _share=None: setting.say(said))
    assert search.found is not None
    return {"best": search.found.best, "trials": [vars(trial) for trial in search.found.trials]}


def _read(values: Mapping[str, Json]) -> Reading:
    if "base" not in values or "search" not in values:
        return Reading({}, [])
    base, search = values["base"]["accuracy"], values["search"]
    found: dict[str, float] = {"base": 100 * base}
    panels, remarks = [], []
    for method, number in TABLES.items():
        trials = [trial for trial in search["trials"] if trial["method"] == method]
        best = next(trial for trial in trials if trial["threshold"] == search["best"][method])
        found |= {
            f"{method}.octets": 100 * best["efficiency"],
            f"{method}.accuracy": 100 * (best["accuracy"] - base),
            f"{method}.less": float(all(a["efficiency"] >= b["efficiency"] for a, b in itertools.pairwise(trials))),
        }
        remarks.append(
            f"{method}: T = {best['threshold']:g} sends {100 * best['efficiency']:.2f} % of the octets at "
            f"{100 * best['accuracy']:.2f} % accuracy (the baseline: {100 * base:.2f})."
        )
        printed = PRINTED[method]
        series = (
            Series(
                "printed (NiN)",
                tuple(100 * gb / BASE_GB for _, gb in printed.values()),
                tuple(a - BASE_ACCURACY for a, _ in printed.values()),
                printed=True,
            ),
            Series(
                "here",
                tuple(100 * trial["efficiency"] for trial in trials),
                tuple(100 * (trial["accuracy"] - base) for trial in trials),
            ),
        )
        panels.append(
            Panel(
                "lines", f"Table {number}: {method}", "points from the baseline", series, "% of the octets", log_x=True
            )
        )
    return Reading(found, panels, remarks)


ITEM: Final = Item(
    "thresholded-tables",
    "Tables 1, 2 and 3: threshold, accuracy, octets",
    [
        scaled("base", "accuracy of the baseline", BASE_ACCURACY, "%", "3.1"),
        *(
            claim
            for method, (share, points) in CLAIMED.items()
            for claim in (
                scaled(
                    f"{method}.octets",
                    f"{method}: share of the baseline's octets with the best threshold",
                    share,
                    "%",
                    "section 4",
                ),
                scaled(
                    f"{method}.accuracy",
                    f"{method}: its accuracy minus the baseline's",
                    points,
                    "points",
                    "section 4",
                    within=2.0,
                ),
                holds(f"{method}.less", f"{method}: a larger threshold sends less", f"Table {TABLES[method]}"),
            )
        ),
        *(
            not_here(
                f"nin.{method}.{threshold}",
                f"NiN on ImageNet, {method}, T = {threshold}: top-1",
                accuracy,
                "%",
                f"Table {TABLES[method]}",
                "ImageNet is not here, and two cores would take months",
            )
            for method, rows in PRINTED.items()
            for threshold, (accuracy, _) in rows.items()
        ),
    ],
    "Paper: Network in Network on ImageNet, eight simulated nodes, 220,000 iterations, octets without positions. "
    "Here: HDC on MNIST, four workers of batch 25, 64 iterations (an early stage), octets with positions. The best "
    "threshold sends least among those within a point of the highest accuracy.",
    lambda _is_full: [Step("base", _base, ("mnist",)), Step("search", bound(_search, GRID), ("mnist",))],
    _read,
)

PAPER: Final = Paper(
    "thresholded", "Anoosheh et al., Thresholded Gradient Synchronization in Distributed ConvNets", (ITEM,)
)
