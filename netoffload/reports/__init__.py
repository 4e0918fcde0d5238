"""Reports: records in; a table, a summary and a figure out.

A report compares runs that differ in their exchange alone (and in their seed, if runs were repeated); anything else
in one report is refused, and so are records of two machines. Numbers per iteration come from the median of the
iterations; repeated runs of one exchange are merged by the median of theirs. Every speed-up stands beside the
uncompressed ring, without NICs if it was run so.

============================  =======================================================================================
``s_per_iteration``           median wall time of an iteration, mean over the workers
``compute_s``                 median of forward, backward and update
``communicate_s``             the rest: ``s_per_iteration - compute_s``
``codec_s``                   what the busiest NIC spent compressing and decompressing per iteration; it overlaps
                              with communication and is not added to it
``wire_bytes_per_iteration``  octets that all nodes sent, every header counted (``wire_frames_per_iteration`` likewise)
``ratio``                     payload octets that NICs compressed, before over after; 1 without compression
``classes``                   shares of floats that became 0, 8, 16, 32 bits; absent without compression
============================  =======================================================================================

Files: ``summary`` merges records into numbers, ``table`` writes them as text, ``figure`` draws them, ``folder``
puts all three into a folder.
"""

from netoffload.reports.figure import draw_figure
from netoffload.reports.folder import write_report
from netoffload.reports.summary import VIA_NICS, ExchangeSummary, Summary, bar_name, summarise
from netoffload.reports.table import WIDEST, describe_run, table_header, table_rows, table_text

__all__ = [
    "VIA_NICS",
    "WIDEST",
    "ExchangeSummary",
    "Summary",
    "bar_name",
    "describe_run",
    "draw_figure",
    "summarise",
    "table_header",
    "table_rows",
    "table_text",
    "write_report",
]
