"""Groups of options: a command's function has one parameter, and the command line has an option for each field.

The fields are those of settings that declare options (``netoffload.lab.declared``), or of :class:`NicSettings`.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from inspect import Parameter
from typing import Annotated, Any

import typer

from netoffload import nic_options
from netoffload.nic_options import NicSettings


def shows_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter ``asked`` of a command, a class of settings, by one for each of them."""
    settings = typing.get_type_hints(command)["asked"]
    kinds, members = typing.get_type_hints(settings), []
    tuples: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        given, kind = field.metadata["setting"], kinds[field.name]
        default = Parameter.empty if field.default is MISSING else field.default
        if typing.get_origin(kind) is tuple:
            tuples[field.name] = default
            kind, default = list[typing.get_args(kind)[0]] | None, None  # type: ignore[misc]
        more = {"help": given.help, "show_default": given.shown_default}
        option = (
            typer.Option(*given.flags, min=given.least, **more)
            if given.argument is None
            else typer.Argument(metavar=given.argument or None, **more)
        )
        members.append(_parameter(field.name, default, Annotated[kind, option]))

    def made(**values: Any) -> Any:
        for name, default in tuples.items():
            values[name] = tuple(dict.fromkeys(values[name])) if values[name] else default
        return settings(**values)

    return _with_group(command, "asked", members, made)


def flags_of(command: str) -> dict[str, str]:
    """Return the flags of the NIC options that a command shows, by the name of their parameters."""
    options = nic_options.options_of(NicSettings)
    return {field.name: option.flag for field, option in options if command in option.commands}


def shows_nic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter ``nic`` of a command, a :class:`NicSettings`, by one for every option that it shows.

    :attr:`~netoffload.nic_options.Option.commands` names the commands that show an option.
    """
    kinds, members = nic_options.types_of(NicSettings), []
    for field, asked in nic_options.options_of(NicSettings):
        if command.__name__ in asked.commands:
            value = asked.value or None
            option = typer.Option(asked.flag, help=asked.help_text, metavar=value, rich_help_panel="NICs")
            members.append(_parameter(field.name, field.default, Annotated[kinds[field.name], option]))
    return _with_group(command, "nic", members, NicSettings)


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _with_group(
    command: Callable[..., Any], name: str, members: Sequence[Parameter], make: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a command that shows ``members`` instead of a parameter, whose value ``make`` makes of theirs, by name."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == name:
            parameters += [one.replace(kind=parameter.kind) for one in members]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def with_options(**words: Any) -> Any:
        return command(**{name: make(**{one.name: words.pop(one.name) for one in members})}, **words)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
