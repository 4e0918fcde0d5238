"""Anoosheh et al.: Tables 1 to 3, with thresholds that a search finds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

from netoffload.lab.bench.settings import ThresholdsSettings
from netoffload.lab.bench.thresholds import Thresholds
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, printed
from netoffload.lab.papers.runs import settings_of
from netoffload.lab.reports import Panel, Series
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.config import TrainSettings

BASE_GB: Final = 53433.0
PRINTED_GB: Final[Mapping[str, tuple[float, ...]]] = {
    "wgt": (15583.03, 11134.76, 9691.21, 6572.01, 2723.90, 933.35),
    "bgt": (396.85, 316.63, 279.65, 31.22, 21.34, 12.15),
    "qgt": (12055.74, 11632.94, 9879.56, 8525.72, 4204.91, 123.88),
}
"""Tables 1 to 3: gigabytes, in the order of the thresholds among the claims, which have the accuracies."""
GRID: Final = (1e-4, 5e-4, 2e-3, 5e-3, 0.02, 0.05)
MODEL: Final = "hdc"


def _settings(setting: Setting) -> TrainSettings:
    return settings_of(setting, MODEL, "mnist", iterations=640 if setting.is_full else 64, learning_rate=0.05)


def _base(setting: Setting) -> Json:
    settings = _settings(setting)
    return {"accuracy": inprocess.train(settings, data.load(settings)).accuracy}


def _search(setting: Setting) -> Json:
    base = _settings(setting)
    settings = ThresholdsSettings(
        base.model,
        data=base.data,
        data_dir=setting.folders.get("mnist"),
        iterations=base.iterations,
        learning_rate=base.learning_rate,
        threshold=GRID,
    )
    search = Thresholds(settings)
    search.measure(setting.say)
    assert search.found is not None
    return {"best": search.found.best, "trials": [vars(trial) for trial in search.found.trials]}


def _read(values: Mapping[str, Json]) -> Reading:
    if "base" not in values or "search" not in values:
        return Reading({}, [])
    base, search, theirs = values["base"]["accuracy"], values["search"], printed("thresholded-tables")
    found: dict[str, float] = {"base": 100 * base}
    panels, remarks = [], []
    for number, (method, gigabytes) in enumerate(PRINTED_GB.items(), 1):
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
        of_nin = [accuracy - theirs["base"] for name, accuracy in theirs.items() if name.startswith(f"nin.{method}.")]
        shares = tuple(100 * octets / BASE_GB for octets in gigabytes)
        ours = tuple(100 * (trial["accuracy"] - base) for trial in trials)
        series = (
            Series("printed (NiN)", shares, tuple(of_nin), printed=True),
            Series("here", tuple(100 * trial["efficiency"] for trial in trials), ours),
        )
        title, unit = f"Table {number}: {method}", "points from the baseline"
        panels.append(Panel("lines", title, unit, series, "% of the octets", log_x=True))
    return Reading(found, panels, remarks)


ITEM: Final = Item(
    "thresholded-tables",
    "Tables 1, 2 and 3: threshold, accuracy, octets",
    "Paper: Network in Network on ImageNet, eight simulated nodes, 220,000 iterations, octets without positions. "
    "Here: HDC on MNIST, four workers of batch 25, 64 iterations (an early stage), octets with positions. The best "
    "threshold sends least among those within a point of the highest accuracy.",
    lambda _is_full: [Step("base", _base, "mnist"), Step("search", _search, "mnist")],
    _read,
)

PAPER: Final = Paper(
    "thresholded", "Anoosheh et al., Thresholded Gradient Synchronization in Distributed ConvNets", (ITEM,)
)
