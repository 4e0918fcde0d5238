"""A field of a dataclass that is an option, and its metadata."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any, Final

BUILDING: Final = ("up", "run")
"""The commands that build a testbed and show all options of its NICs."""


@dataclass(frozen=True)
class Option:
    """How an option appears to people.

    Attributes:
        help: a sentence without its full stop.
        metavar: placeholder of the value in help texts; empty: the choices.
        check: raises ``UsageError`` for an impossible value.
        unit_variable: environment variable of the systemd unit; None: the flag's name, as in METRICS_PORT; empty: the
            unit itself decides about the option.
        commands: the commands of ``netoffload`` that show a field of
            :class:`~netoffload.nic_options.settings.NicSettings`; ``nic`` shows all of
            :class:`~netoffload.nic_options.settings.NicProcess`.
        more: text behind ``help`` in the table of the docs.
    """

    flag: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    check: Callable[[Any], object] | None = None
    unit_variable: str | None = None
    commands: tuple[str, ...] = BUILDING
    more: str = ""

    @property
    def variable(self) -> str:
        """The environment variable of the systemd unit; empty: none."""
        return self.flag.lstrip("-").upper().replace("-", "_") if self.unit_variable is None else self.unit_variable

    @property
    def value(self) -> str:
        """The placeholder of the value; empty for a switch."""
        return self.metavar or "|".join(self.choices)

    @property
    def help_text(self) -> str:
        """The help with the choices."""
        return f"{self.help}: {', '.join(self.choices)}." if self.choices else f"{self.help}."


def option(flag: str, help_text: str, default: Any = MISSING, **more: Any) -> Any:
    """Return a field that is an option; ``more`` are attributes of :class:`Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(flag, help_text, **more)})


def options_of(settings: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield every field of a class of settings with its option; options without a default come first."""
    fields = dataclasses.fields(settings)
    for field in sorted(fields, key=lambda field: field.default is not MISSING):
        yield field, field.metadata["option"]


def types_of(settings: type[Any]) -> dict[str, type]:
    """Return the type of every field's value, by name; for ``int | None`` it is ``int``."""
    found = typing.get_type_hints(settings)
    return {
        name: next(each for each in typing.get_args(hint) if each is not types.NoneType)
        if isinstance(hint, types.UnionType)
        else hint
        for name, hint in found.items()
    }
