"""Tables, and the units in which they show figures."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.table import Table

from netoffload.cli.app import add_columns


def table(
    title: str | None, headings: tuple[str, ...], words: Collection[str], caption: str | None = None, padding: int = 1
) -> Table:
    """Return an empty table.

    Args:
        title: above it.
        headings: of all columns.
        words: headings of the columns that hold words; all others hold numbers.
        caption: below it.
        padding: blanks behind each column.
    """
    made = Table(box=box.SIMPLE, pad_edge=False, padding=(0, padding, 0, 0), title=title, caption=caption)
    add_columns(made, headings, words)
    return made


def mega(count: float, form: str = ".4g") -> str:
    """Write a count in millions, a rate in Mb/s."""
    return f"{count / 1e6:{form}}"


def giga(rate_bps: float, form: str = ".4g") -> str:
    """Write a rate in Gb/s."""
    return f"{rate_bps / 1e9:{form}}"


def milli(time_s: float) -> str:
    """Write a time in milliseconds."""
    return f"{time_s * 1e3:.1f}"


def percent(share: float, form: str = ".1f") -> str:
    """Write a share in per cent, without the sign."""
    return f"{100 * share:{form}}"
