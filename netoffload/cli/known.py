"""The list of commands: ``commands.json`` has their modules and summaries, so that ``--help`` imports no command.

``scripts/generate`` writes the file from the commands themselves.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

FILE: Final = Path(__file__).with_name("commands.json")


def _read() -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return known


class KnownCommands(TyperGroup):
    """Commands that are only names and summaries until a user calls them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._known = _read()
        self._imported: set[str] = set()
        summaries = {name: TyperCommand(name, help=said["summary"]) for name, said in self._known.items()}
        self.commands = {**summaries, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, imported."""
        if cmd_name in self._known and cmd_name not in self._imported:  # some commands of a group may be imported
            from netoffload.cli.app import app

            for module in self._known[cmd_name]["modules"]:
                importlib.import_module(f"netoffload.cli.{module}")
            whole = {name for name, said in self._known.items() if _are_imported(said["modules"])}
            made = typer.main.get_group(app).commands
            self.commands.update({name: made[name] for name in whole})
            self._imported |= whole
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help from the summaries."""
        self._summarised().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what may stand here, from the summaries."""
        ctx.command = self._summarised()
        return ctx.command.shell_complete(ctx, incomplete)

    def _summarised(self) -> TyperGroup:
        """Return a group like this one that imports nothing."""
        return TyperGroup(
            name=self.name,
            commands=dict(self.commands),
            params=self.params,
            help=self.help,
            no_args_is_help=self.no_args_is_help,
            rich_markup_mode=self.rich_markup_mode,
            context_settings=self.context_settings,
        )


def _are_imported(modules: list[str]) -> bool:
    return all(f"netoffload.cli.{module}" in sys.modules for module in modules)


def commands_text() -> str:
    """Return the content of ``commands.json``, made from the commands in their modules."""
    import netoffload.cli as package
    from netoffload.cli.app import app

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"netoffload.cli.{module.name}")
    found = typer.main.get_group(app).commands.items()
    commands = {name: one for name, one in found if one.callback is not None}  # the others are in the file only
    lines = [f"{json.dumps(name)}: {json.dumps(_said(commands[name]))}" for name in sorted(commands)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _said(command: Any) -> dict[str, Any]:
    inner = [command, *getattr(command, "commands", {}).values()]
    modules = dict.fromkeys(one.callback.__module__.rpartition(".")[2] for one in inner)
    paragraph = (command.help or "").split("\n\n")[0]
    return {"modules": list(modules), "summary": " ".join(paragraph.split())}
