"""Reports: records in; a table, a summary and a figure out.

A report declares its axis: what varies from bar to bar (method, error bound, or number of workers). Everything else
agrees, or the records are refused, and so are records of two machines; seeds may differ, if runs were repeated. A
report says in which versions and learning rates its bars differ. Numbers per iteration come from the median of the
iterations; repeated runs of one bar are merged by the median of theirs, but a table has the mean of their accuracies
and losses. Every speed-up of a method stands beside the
uncompressed ring, without NICs if it was run so.

============================  =======================================================================================
``s_per_iteration``           median wall time of an iteration, mean over the workers
``compute_s``                 median of forward, backward and update
``communicate_s``             the rest: ``s_per_iteration - compute_s``
``forward_s`` and others      ``backward_s`` and ``update_s`` are the other parts of ``compute_s``; ``sum_s``, adding
                              gradients, is a part of ``communicate_s``
``hidden_s``                  how long buckets of gradients travelled while backward went on
``peak_memory_bytes``         the most that was resident of a rank, libraries included
``codec_s``                   what the busiest NIC spent compressing and decompressing per iteration; it overlaps
                              with communication and is not added to it
``wire_bytes_per_iteration``  octets that all nodes sent, every header counted (``wire_frames_per_iteration`` likewise)
``ratio``                     payload octets that NICs compressed, before over after; 1 without compression
``over_runs``                 mean and sample standard deviation over the runs of a bar, of time, accuracy and loss
``classes``                   shares of floats that became 0, 8, 16, 32 bits; absent without compression
============================  =======================================================================================

Files: ``axis`` what varies, ``summary`` merges records into numbers, ``table`` writes them as text, ``figure`` draws
them, ``curves`` draws accuracy over what it cost, ``folder`` puts all into a folder. ``panels`` draws any numbers,
those of the papers among them.
"""

from netoffload.reports.axis import INLINE, VIA_NICS, get, method_name, split_name
from netoffload.reports.curves import draw_curves
from netoffload.reports.figure import draw_figure, draw_rows
from netoffload.reports.folder import write_report
from netoffload.reports.panels import Panel, Series, draw_panels
from netoffload.reports.summary import Bar, Summary, summarise
from netoffload.reports.table import WIDEST, describe_run, table_header, table_rows, table_text

__all__ = [
    "INLINE",
    "VIA_NICS",
    "WIDEST",
    "Bar",
    "Panel",
    "Series",
    "Summary",
    "describe_run",
    "draw_curves",
    "draw_figure",
    "draw_panels",
    "draw_rows",
    "get",
    "method_name",
    "split_name",
    "summarise",
    "table_header",
    "table_rows",
    "table_text",
    "write_report",
]
