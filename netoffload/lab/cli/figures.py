"""What commands find, in a terminal: declared tables, and what is there when an error or a signal ends a command."""

import contextlib
from collections.abc import Callable, Iterator

from rich import box
from rich.table import Table

from netoffload.cli.app import Interrupted
from netoffload.lab import declared


def drawn(of: declared.Table) -> Table:
    """Return a declared table as it is printed: a narrow terminal folds headings and words, and no number."""
    made = Table(box=box.SIMPLE, pad_edge=False, padding=(0, of.padding, 0, 0), title=of.title, caption=of.caption)
    for at, column in enumerate(of.columns):
        if column.is_words:
            made.add_column(column.heading, overflow="fold")
        else:
            longest = max((len(number) for row in of.rows for number in row[at].split()), default=0)
            made.add_column(column.heading, justify="right", overflow="fold", min_width=longest)
    for row in of.rows:
        made.add_row(*row)
    return made


@contextlib.contextmanager
def report_on_exit(report: Callable[[str | None], None]) -> Iterator[None]:
    """Call ``report`` once after the body: with None, or with the reason why an error or a signal ended it early."""
    try:
        yield
    except Interrupted:
        report("interrupted")
        raise
    except Exception as error:
        report(str(error) or type(error).__name__)
        raise
    report(None)
