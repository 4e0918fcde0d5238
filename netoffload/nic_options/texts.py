"""The words about options in the systemd unit and in the docs."""

import dataclasses
from dataclasses import MISSING
from typing import Any

from netoffload.nic_options.option import Option, options_of
from netoffload.nic_options.settings import NicProcess


def unit_words() -> tuple[str, str]:
    """Return the systemd unit's environment with its defaults, and the arguments that pass it to the NIC."""
    taken = unit_options()
    environment = " ".join(f"{option.variable}={_default(field)}" for field, option in taken)
    return environment, " ".join(f"{option.flag} ${{{option.variable}}}" for _, option in taken)


def unit_options() -> list[tuple[dataclasses.Field[Any], Option]]:
    """Return the options that the systemd unit takes from variables. A switch is none: it has no value."""
    return [
        (field, option) for field, option in options_of(NicProcess) if option.variable and field.default is not False
    ]


def unit_table() -> str:
    """Return the rows of the table of the systemd unit's variables in the docs, in Markdown."""
    rows = ["| in the file | default | option of `netoffload nic` |", "| --- | --- | --- |"]
    for field, option in unit_options():
        default = f"`{_default(field)}`" if _default(field) else ""
        rows.append(f"| `{option.variable}` | {default} | `{option.flag}`: {option.help_text} |")
    return "\n".join(rows) + "\n"


def option_table() -> str:
    """Return the rows of the table of options in the docs, in Markdown."""
    rows = ["| option | meaning | default |", "| --- | --- | --- |"]
    for field, option in options_of(NicProcess):
        words = " ".join(filter(None, (option.flag, option.value.replace("|", "\\|"))))
        default = f"`{_default(field)}`" if _default(field) else ""
        meaning = " ".join(filter(None, (option.help_text, option.more)))
        rows.append(f"| `{words}` | {meaning} | {default} |")
    return "\n".join(rows) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    """Return an option's default as text; empty: it has none, or is not set."""
    return "" if any(field.default is no_value for no_value in (MISSING, None, False)) else str(field.default)
