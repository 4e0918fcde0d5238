"""NIC options as parameters of commands: a function takes one ``nic``, its command shows an option per field."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from netoffload.lab.cli.grouped import parameter, with_groups
from netoffload.nic_options import NicSettings, Option, options_of, types_of


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of the NIC options that a command shows, by the name of their parameters."""
    return {field.name: option.flag for field, option in options_of(NicSettings) if command in option.commands}


def shows_nic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter ``nic`` of a command, a :class:`NicSettings`, by one for every option that it shows.

    :attr:`~netoffload.nic_options.Option.commands` names the commands that show an option.
    """
    kinds, shown = types_of(NicSettings), flags_of(command.__name__)
    parameters = [
        parameter(field, Annotated[kinds[field.name], _typer_option(option)])
        for field, option in options_of(NicSettings)
        if field.name in shown
    ]
    return with_groups(command, {"nic": (parameters, NicSettings)})


def _typer_option(option: Option) -> Any:
    return typer.Option(option.flag, help=option.help_text, metavar=option.value or None, rich_help_panel="NICs")
