"""Tables."""

from __future__ import annotations

from collections.abc import Collection

from rich import box
from rich.table import Table

from netoffload.cli.app import add_columns
from netoffload.lab import declared


def table(
    title: str | None, headings: tuple[str, ...], words: Collection[str], caption: str | None = None, padding: int = 1
) -> Table:
    """Return an empty table; ``words`` are the headings of columns of words, all others hold numbers."""
    made = Table(box=box.SIMPLE, pad_edge=False, padding=(0, padding, 0, 0), title=title, caption=caption)
    add_columns(made, headings, words)
    return made


def drawn(of: declared.Table) -> Table:
    """Return a declared table as it is printed."""
    headings = tuple(column.heading for column in of.columns)
    words = [column.heading for column in of.columns if column.is_words]
    made = table(of.title, headings, words, of.caption, of.padding)
    for row in of.rows:
        made.add_row(*row)
    return made
