"""Reports: records in; a table, a summary and a figure out.

A report has an axis, along which its bars differ: method, error bound, or number of workers. Records of two machines,
or that differ in something else, are refused; only seeds may differ in repeated runs. A report says in which versions
and learning rates its bars differ. Numbers per iteration are medians of the iterations. Repeated runs of one bar are
merged by the median, but a table has the mean of their accuracies and losses. Every speed-up is over the uncompressed
ring, without NICs if it was run so.

============================  =======================================================================================
``s_per_iteration``           median wall time of an iteration, mean over the workers
``compute_s``                 median of forward, backward and update
``communicate_s``             the rest: ``s_per_iteration - compute_s``
``forward_s`` and others      ``backward_s`` and ``update_s`` are the other parts of ``compute_s``; ``sum_s``, adding
                              gradients, is a part of ``communicate_s``
``hidden_s``                  time in which buckets of gradients travelled during backward
``peak_memory_bytes``         the largest resident memory of a rank, libraries included
``codec_s``                   time of the busiest NIC for compressing and decompressing per iteration; it overlaps
                              with communication and is not added to it
``wire_bytes_per_iteration``  octets that all nodes sent, every header counted (``wire_frames_per_iteration`` likewise)
``ratio``                     payload octets that NICs compressed, before over after; 1 without compression
``over_runs``                 mean and sample standard deviation over the runs of a bar, of time, accuracy and loss
``classes``                   shares of floats that became 0, 8, 16, 32 bits; absent without compression
============================  =======================================================================================

Files: ``summary`` has the axes and merges records into numbers, ``table`` writes them as text, ``figure`` draws them,
``curves`` draws accuracy over time and octets, ``panels`` any numbers, also those of the papers. A report is a folder:
``table.txt``, ``summary.json``, ``figure.png``, and ``curves.png`` where runs have curves.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from netoffload.errors import UsageError
from netoffload.lab.reports.curves import draw_curves, has_curve
from netoffload.lab.reports.figure import draw_figure
from netoffload.lab.reports.summary import EXCHANGE, Axis, Summary, get, summarise
from netoffload.lab.reports.table import WIDEST, describe_run, table_of, table_text
from netoffload.lab.results import Record

__all__ = ["WIDEST", "Summary", "describe_run", "draw_curves", "get", "summarise", "table_of", "table_text"]


def write_report(records: Sequence[Record], folder: Path, axis: Axis = EXCHANGE) -> Summary:
    """Write the report of some runs into a folder, made if missing; files of an earlier report are replaced."""
    summary = summarise(records, axis)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.txt").write_text(table_text(summary), encoding="utf-8")
        (folder / "summary.json").write_text(json.dumps(summary.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the report to {folder}: {error.strerror}") from error
    draw_figure(summary, folder / "figure.png")
    (folder / "curves.png").unlink(missing_ok=True)
    if any(map(has_curve, records)):
        draw_curves(records, folder / "curves.png")
    return summary
