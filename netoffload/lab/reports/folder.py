"""A report as a folder: ``table.txt``, ``summary.json``, ``figure.png``, and ``curves.png`` where runs have curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netoffload.errors import UsageError
from netoffload.lab.reports.curves import draw_curves, has_curve
from netoffload.lab.reports.figure import draw_figure
from netoffload.lab.reports.summary import EXCHANGE, Axis, Summary, summarise
from netoffload.lab.reports.table import table_text
from netoffload.lab.results import Record

TABLE_FILE: Final = "table.txt"
SUMMARY_FILE: Final = "summary.json"
FIGURE_FILE: Final = "figure.png"
CURVES_FILE: Final = "curves.png"


def write_report(records: Sequence[Record], folder: Path, axis: Axis = EXCHANGE) -> Summary:
    """Write the report of some runs into a folder, made if missing; files of an earlier report are replaced."""
    summary = summarise(records, axis)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TABLE_FILE).write_text(table_text(summary), encoding="utf-8")
        (folder / SUMMARY_FILE).write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report to {folder}: {error.strerror}") from error
    draw_figure(summary, folder / FIGURE_FILE)
    (folder / CURVES_FILE).unlink(missing_ok=True)
    if any(map(has_curve, records)):
        draw_curves(records, folder / CURVES_FILE)
    return summary
