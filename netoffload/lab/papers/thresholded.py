"""Anoosheh et al.: Tables 1 to 3, with thresholds that a search finds."""

import itertools
from collections.abc import Mapping
from typing import Final

from netoffload.lab.bench.settings import ThresholdsSettings
from netoffload.lab.bench.thresholds import Thresholds
from netoffload.lab.papers.item import Item, Json, Paper, Reading, Setting, Step, rows
from netoffload.lab.papers.runs import settings_of
from netoffload.lab.reports.panels import Panel, Series
from netoffload.lab.training import data, inprocess
from netoffload.lab.training.config import TrainSettings

KEEPING: Final[Mapping[str, int | None]] = {"wgt": 3, "bgt": None, "qgt": 4}
"""The methods of Tables 1 to 3, with the row that keeps the baseline's accuracy by section 4."""
GRID: Final = (1e-4, 5e-4, 2e-3, 5e-3, 0.02, 0.05)
MODEL: Final = "hdc"


def _settings(setting: Setting) -> TrainSettings:
    return settings_of(setting, MODEL, "mnist", iterations=640 if setting.is_full else 64, learning_rate=0.05)


def _base(setting: Setting) -> Json:
    settings = _settings(setting)
    return {"accuracy": inprocess.train(settings, data.load(settings), say=setting.say).accuracy}


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
    base, search, theirs = values["base"]["accuracy"], values["search"], rows("thresholded-tables")
    (nin_base,), (nin_gb,) = theirs["base"], theirs["nin.base"]
    found: dict[str, float] = {"base": 100 * base, "ratios": 0.0}
    panels, best_of = [], []
    for number, method in enumerate(KEEPING, 1):
        accuracies, gigabytes, quotients = (theirs[f"nin.{method}{column}"] for column in ("", ".gb", ".ratio"))
        of_nin = [accuracy - nin_base for accuracy in accuracies]
        shares = tuple(100 * octets / nin_gb for octets in gigabytes)
        if (place := KEEPING[method]) is not None:
            found[f"nin.{method}.kept"] = shares[place]
        found |= {f"nin.{method}.least": shares[-1], f"nin.{method}.least.lost": -of_nin[-1]}
        exact = (accuracy / octets for accuracy, octets in zip(accuracies, gigabytes, strict=True))
        found["ratios"] += sum(abs(a - b) > 0.5e-4 for a, b in zip(exact, quotients, strict=True))
        trials = [trial for trial in search["trials"] if trial["method"] == method]
        best = next(trial for trial in trials if trial["threshold"] == search["best"][method])
        found |= {
            f"{method}.octets": 100 * best["efficiency"],
            f"{method}.accuracy": 100 * (best["accuracy"] - base),
            f"{method}.less": float(all(a["efficiency"] >= b["efficiency"] for a, b in itertools.pairwise(trials))),
        }
        best_of.append(f"{method} {best['threshold']:g}")
        ours = tuple(100 * (trial["accuracy"] - base) for trial in trials)
        series = (
            Series("printed (NiN)", shares, tuple(of_nin), printed=True),
            Series("here", tuple(100 * trial["efficiency"] for trial in trials), ours),
        )
        title, unit = f"Table {number}: {method}", "points from the baseline"
        panels.append(Panel("lines", title, unit, series, "% of the octets", log_x=True))
    return Reading(found, panels, [f"Best thresholds here: {', '.join(best_of)}."])


ITEM: Final = Item(
    "thresholded-tables",
    "Tables 1, 2 and 3: threshold, accuracy, octets",
    "Paper: Network in Network on ImageNet, eight simulated nodes, 220,000 iterations, octets without positions. "
    "Here: HDC, an early stage, octets with positions. The best threshold sends least among those within a point of "
    "the highest accuracy, which is measured on the test data.",
    lambda _is_full: [Step("base", _base, "mnist"), Step("search", _search, "mnist")],
    _read,
)

PAPER: Final = Paper(
    "thresholded",
    "Anoosheh et al., Thresholded Gradient Synchronization in Distributed ConvNets",
    "The three methods are as printed, and section 4's shares and losses follow from its tables. Their network and "
    "their 220,000 iterations are out of reach here. On HDC, after 640 iterations, 0.25, 0.07 and 0.12 % of "
    "the octets (wgt, bgt, qgt) cost a point of accuracy. Thresholds are chosen on the test data, there and here, so "
    "equal accuracy proves nothing.",
    (ITEM,),
)
