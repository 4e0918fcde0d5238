"""What an experiment declares: settings that become options, and findings that become JSON and tables.

A *setting* is a field of a frozen dataclass. Its metadata describe the option, its value is as people write it. The
class's docstring is the help of the command, and :attr:`Settings.experiment` names what the command runs. Classes of
settings import nothing heavy, because help is made from them (``netoffload.lab.cli.bench``).

A *finding* is a field of a frozen dataclass too. Its name is a key of the JSON. ``Annotated[TYPE, Column(...)]`` makes
it a column of a table, or several. :class:`Table` is what people see, without a library that draws it.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from netoffload.config import format_rate

F = TypeVar("F", bound="Finding")
F_co = TypeVar("F_co", bound="Finding", covariant=True)


@dataclass(frozen=True)
class Setting:
    """How a setting appears on a command line; without ``flags`` an option has the field's name."""

    help: str
    flags: tuple[str, ...] = ()
    least: float | None = None
    shown_default: bool | str = True
    argument: str | None = None
    """Placeholder of a positional argument; None: it is an option."""


def setting(default: Any, help_text: str, *flags: str, **more: Any) -> Any:
    """Return a field that is a setting; ``more`` are attributes of :class:`Setting`.

    A setting that is a tuple may be given several times. Its default is taken if it is not given.
    """
    return dataclasses.field(default=default, metadata={"setting": Setting(help_text, flags, **more)})


@dataclass(frozen=True)
class Settings:
    """Base of all settings of an experiment."""

    experiment: ClassVar[str]
    """Module and class of the experiment, whose only argument is these settings."""

    def prepared(self) -> Experiment[Any]:
        """Return the experiment."""
        module, _, name = self.experiment.partition(":")
        made: Experiment[Any] = getattr(import_module(module), name)(self)
        return made


def add_arguments(parser: argparse.ArgumentParser, settings: type[Settings], names: str) -> None:
    """Give a program of ranks the options of some settings, whose names stand with blanks between them."""
    kinds, fields = typing.get_type_hints(settings), {field.name: field for field in dataclasses.fields(settings)}
    for name in names.split():
        given, kind, default = fields[name].metadata["setting"], kinds[name], fields[name].default
        several = typing.get_origin(kind) is tuple
        kind = next(iter(typing.get_args(kind)), kind)  # of a tuple, or of one that may be None
        note = "" if several or default is None else f" Default: {default}."
        flags = given.flags or (_flag(name),)
        parser.add_argument(
            *flags,
            type=kind,
            action="append" if several else "store",
            default=None if several else default,
            metavar=kind.__name__.upper(),
            help=given.help + note,
        )


def words_of(asked: Settings, names: str) -> list[str]:
    """Return the arguments that :func:`add_arguments` reads as these settings."""
    words = []
    for name in names.split():
        value = getattr(asked, name)
        for one in value if isinstance(value, tuple) else () if value is None else (value,):
            words += [_flag(name), str(one)]
    return words


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Progress(Protocol):
    """Shows the name of what begins, and the share that is done (0..1); None: the share is not known."""

    def __call__(self, said: str, share: float | None = None) -> None:
        """Show it."""


class Experiment(Protocol[F_co]):
    """What a command runs: it measures, and then has findings, also if measuring ended early."""

    def measure(self, progress: Progress) -> None:
        """Measure everything; raises a ``NetOffloadError`` if it cannot be measured."""

    def findings(self, reason: str | None) -> F_co | None:
        """Return the findings so far, if any; ``reason``: why measuring ended early, None if it did not."""


class AllOrNothing(Generic[F]):
    """Base of experiments that have findings only after everything is measured."""

    found: F | None = None

    def findings(self, reason: str | None) -> F | None:
        """Return the findings; None: not everything is measured."""
        return self.found if reason is None else None


NOTHING: Final = "-"
"""Stands in a table for None."""


@dataclass(frozen=True)
class Column:
    """A column of a table, in which a cell is ``of(value) / per``, written by ``form``: a format, or a function.

    ``per`` 1e6 shows a number in millions, 0.01 in per cent. ``none`` is the cell of None.
    """

    heading: str
    form: str | Callable[[Any], str] = ""
    per: float = 1
    of: Callable[[Any], Any] | None = None
    none: str = NOTHING
    is_words: bool = False

    def cell(self, value: Any) -> str:
        """Write a field's value."""
        if value is not None and self.of is not None:
            value = self.of(value)
        if value is None:
            return self.none
        if callable(self.form):
            return self.form(value)
        return format(value if self.per == 1 else value / self.per, self.form)


def words(heading: str, **more: Any) -> Column:
    """Return a column of words."""
    return Column(heading, is_words=True, **more)


def left_out() -> Any:
    """Return a field of a finding that is no key of the record while it is None."""
    return dataclasses.field(default=None, metadata={"left_out": True})


class Finding:
    """Base of the frozen dataclasses of findings; their fields are the keys of the record."""

    def to_record(self) -> dict[str, Any]:
        """Return what ``--json`` prints: dicts, lists, strings, numbers, None."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {field.name: getattr(self, field.name) for field in fields}
        optional = {field.name for field in fields if "left_out" in field.metadata}
        return {name: record_of(value) for name, value in values.items() if value is not None or name not in optional}

    def shown(self) -> Iterator[Table | str]:
        """Yield what people see: tables, and lines between them."""
        return iter(())

    def draw(self, path: Path) -> None:
        """Draw the findings into a file; only experiments with a setting ``figure`` can."""
        raise NotImplementedError

    def remarks(self) -> Iterator[str]:
        """Yield lines that belong to standard error."""
        return iter(())


def record_of(value: Any) -> Any:
    """Return a finding, or a container of findings, in the types that JSON has."""
    if isinstance(value, Finding):
        return value.to_record()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return record_of(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: record_of(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [record_of(entry) for entry in value]
    return value


@dataclass(frozen=True)
class Table:
    """Cells as they are written, a title above and a caption below; ``padding``: blanks behind each column."""

    title: str | None
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    caption: str | None = None
    padding: int = 1

    @classmethod
    def of(
        cls, kind: type[Finding], rows: Iterable[object], title: str | None, *, only: str | None = None, **more: Any
    ) -> Table:
        """Return the table that the columns of a class of findings make.

        ``rows`` are its findings, or others with some fields of the same names. ``only`` names the fields that are
        columns of this table, with blanks between them; None: all.
        """
        hints = typing.get_type_hints(kind, include_extras=True)
        declared = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        shown_as = [(name, column) for name in (only.split() if only else declared) for column in declared[name]]
        cells = [[column.cell(getattr(row, name, None)) for name, column in shown_as] for row in rows]
        return cls(title, [column for _, column in shown_as], cells, **more)

    def text(self) -> str:
        """Return the table as plain lines, as programs of ranks print it."""
        lines = [[column.heading for column in self.columns], *self.rows]
        shapes = [
            f"{'<' if column.is_words else '>'}{max(map(len, cells))}"
            for column, *cells in zip(self.columns, *lines, strict=True)
        ]
        aligned = ["  ".join(map(format, line, shapes)).rstrip() for line in lines]
        return "\n".join([*([self.title] if self.title else []), *aligned])


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers that are written already."""
    return [Column(heading) for heading in headings]


def rates(asked_bps: float | None, measured_bps: float | None) -> str:
    """Write the rate asked for, and the one measured."""
    text = "unshaped" if asked_bps is None else format_rate(asked_bps)
    return text if measured_bps is None else f"{text} (measured {format_rate(measured_bps)})"


def mega(count: float, form: str = ".4g") -> str:
    """Write a count in millions, a rate in Mb/s."""
    return f"{count / 1e6:{form}}"


def percent(share: float) -> str:
    """Write a share in per cent, without the sign."""
    return f"{100 * share:.1f}"
