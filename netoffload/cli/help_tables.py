"""The tables of ``--help``: in a narrow terminal typer's would end names of options, and long words, in "…"."""

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from typer import rich_utils

NAMES: Final = -2
"""A row has names of the option, and then two cells that may take several lines: the placeholder and the help."""


class _HelpTable(Table):
    """A table whose names stay whole, and whose other words are folded instead of cut."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*cells, **more)
        for column in self.columns:
            column.overflow = "fold"
        for column in self.columns[:NAMES]:
            column.no_wrap = True


def _stacked(parts: Iterable[RenderableType]) -> Group:
    return Group(*parts)


def keep_whole() -> None:
    """Let typer make such tables, with the parts of an option's help one below the other."""
    # It has no setting for this.
    rich_utils.Table = _HelpTable  # type: ignore[attr-defined]
    rich_utils.Columns = _stacked  # type: ignore[attr-defined, assignment]
