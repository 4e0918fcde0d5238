"""NIC options as parameters of commands: a function takes one ``nic``, its command shows an option per field."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from netoffload.cli.grouped import with_groups
from netoffload.nic_options import NicSettings, Option, options_of, types_of


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of the NIC options that a command shows, by the name of their parameters."""
    return {field.name: asked.flag for field, asked in options_of(NicSettings) if command in asked.commands}


def shows_nic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter ``nic`` of a command by one parameter for every NIC option that the command shows.

    :attr:`~netoffload.nic_options.Option.commands` names the commands that show an option. The command's function gets
    all options together, as :class:`~netoffload.nic_options.NicSettings`.
    """
    kinds, flags = types_of(NicSettings), flags_of(command.__name__)
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            field.name,
            place,
            default=field.default,
            annotation=Annotated[kinds[field.name], _typer_option(asked)],
        )
        for field, asked in options_of(NicSettings)
        if field.name in flags
    ]
    return with_groups(command, {"nic": (parameters, NicSettings)})


def _typer_option(asked: Option) -> Any:
    return typer.Option(asked.flag, help=asked.help_text, metavar=asked.value or None, rich_help_panel="NICs")
