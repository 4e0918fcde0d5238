"""Groups of options: a command's function has one parameter, and the command line has an option for each field."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

Group = tuple[list[inspect.Parameter], Callable[..., Any]]
"""The parameters that replace one parameter, and the function that makes its value from theirs, by name."""


def with_groups(command: Callable[..., Any], groups: Mapping[str, Group]) -> Callable[..., Any]:
    """Return a command that shows, instead of each parameter named in ``groups``, those of its group."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += [one.replace(kind=parameter.kind) for one in groups[parameter.name][0]]
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def with_options(**words: Any) -> Any:
        values = {
            name: make(**{one.name: words.pop(one.name) for one in members}) for name, (members, make) in groups.items()
        }
        return command(**values, **words)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def parameter(field: dataclasses.Field[Any], annotation: Any) -> inspect.Parameter:
    """Return the parameter for a field."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(field.name, kind, default=field.default, annotation=annotation)
