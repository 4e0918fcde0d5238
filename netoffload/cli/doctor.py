"""``netoffload doctor``: what this machine has and lacks."""

import dataclasses
import json
from typing import Annotated

import typer
from rich.text import Text

from netoffload.cli.app import app, console, make_table
from netoffload.cli.known import lab_offer

EXIT_REQUIRED_MISSING = 1


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what this kernel and machine have and lack; exit 1 if something that is required is missing.

    Example: netoffload doctor
    """
    from netoffload.machine.doctor import checks

    lab_checks = lab_offer("checks")
    found = [*checks(), *(lab_checks() if lab_checks else ())]
    well = all(check.ok for check in found if check.required)
    if as_json:
        print(json.dumps({"ok": well, "checks": [dataclasses.asdict(check) for check in found]}, indent=2))
    else:
        columns = ("", "what", "seen", "what to do")
        table = make_table(columns, columns, box=None)
        for check in found:
            sign = "[green]ok[/green]" if check.ok else "[red]missing[/red]" if check.required else "[yellow]-[/yellow]"
            table.add_row(sign, *map(Text, (check.name, check.detail, check.advice)))
        console.print(table)
    if not well:
        raise typer.Exit(EXIT_REQUIRED_MISSING)
