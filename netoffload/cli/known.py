"""The list of commands: each ``commands.json`` has modules and summaries, so that ``--help`` imports no command.

The laboratory registers here. Its commands stand in a table of its own (``netoffload/lab/cli/commands.json``), and its
module ``offers`` has what it adds to commands of the product. Where the folder ``lab`` is missing, both are missing.
``scripts/generate`` writes the tables from the commands themselves.
"""

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import netoffload

OWN: Final = "netoffload.cli"
LAB: Final = "netoffload.lab.cli"
ONLY_SUMMARIES: Final = "netoffload.only_summaries"
"""In a context's ``meta``: nothing is to be imported."""


def _file(package: str) -> Path:
    return Path(netoffload.__file__).parent.joinpath(*package.split(".")[1:], "commands.json")


def commands() -> dict[str, dict[str, Any]]:
    """Return the modules and the summary of every command that is installed, by name."""
    known: dict[str, dict[str, Any]] = {}
    for file in map(_file, (OWN, LAB)):
        table = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for name, row in table.items():
            before = known.get(name, {"modules": []})  # the laboratory adds commands to groups of the product
            known[name] = {**row, **before, "modules": [*before["modules"], *row["modules"]]}
    return dict(sorted(known.items()))


def lab_offer(name: str) -> Any:
    """Return what the laboratory adds to a command of the product, from its module ``offers``; None without one."""
    return getattr(importlib.import_module(f"{LAB}.offers"), name) if _file(LAB).exists() else None


class KnownCommands(TyperGroup):
    """Commands that are only names and summaries until a user calls them."""

    app: typer.Typer
    """Gets the commands as their modules are imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._known = commands()
        self._imported: set[str] = set()
        summaries = {name: TyperCommand(name, help=row["summary"]) for name, row in self._known.items()}
        self.commands = {**summaries, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it; its summary where that is enough."""
        known = {} if ctx.meta.get(ONLY_SUMMARIES) else self._known
        if cmd_name in known and cmd_name not in self._imported:  # some commands of a group may be imported
            for module in known[cmd_name]["modules"]:
                importlib.import_module(module)
            whole = {name for name, row in known.items() if sys.modules.keys() >= set(row["modules"])}
            made = typer.main.get_group(self.app).commands
            self.commands.update({name: made[name] for name in whole})
            self._imported |= whole
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help from the summaries."""
        ctx.meta[ONLY_SUMMARIES] = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a word from the summaries."""
        ctx.meta[ONLY_SUMMARIES] = True
        return super().shell_complete(ctx, incomplete)


def import_all() -> None:
    """Import every command that is installed."""
    for package in (OWN, LAB):
        if _file(package).parent.exists():
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                importlib.import_module(f"{package}.{module.name}")
