"""What measurements leave: a file of JSON lines for each item, a line for each step.

A line has the step's key and value, and where it comes from: command, date, machine, commit, versions. A step whose
line is there is done. Lines of a quick run do not stand in for those of a full one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from netoffload.errors import UsageError
from netoffload.results import decode_dataclass

FORMAT: Final = 1
SUFFIX: Final = ".jsonl"


@dataclass(frozen=True)
class StepRecord:
    """One measurement and where it comes from.

    Attributes:
        format: of this line.
        item: its item's name.
        step: its key.
        effort: quick or full.
        started: UTC, ISO 8601.
        wall_s: how long it took.
        load_1min: of the machine when it began; None: not known.
        command: that did it.
        machine: CPU and cores.
        commit: of the program's source; ``unknown`` where it is not a checkout.
        versions: of programs and packages.
        value: what was measured, as JSON.
    """

    format: int
    item: str
    step: str
    effort: str
    started: str
    wall_s: float
    load_1min: float | None
    command: str
    machine: str
    commit: str
    versions: dict[str, str]
    value: str

    def measured(self) -> Any:
        """Return the value."""
        return json.loads(self.value)


def path_of(folder: Path, item: str) -> Path:
    """Return the file of an item's records."""
    return folder / f"{item}{SUFFIX}"


def append(folder: Path, record: StepRecord) -> None:
    """Append a record to its item's file; a line that was cut off goes.

    Raises:
        UsageError: it cannot be written.
    """
    line = asdict(record) | {"value": record.measured()}
    try:
        path = path_of(folder, record.item)
        before = path.read_bytes() if path.exists() else b""
        if not before.endswith(b"\n"):
            path.write_bytes(before[: before.rfind(b"\n") + 1])
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write records to {folder}: {error.strerror}") from error


def read(folder: Path, item: str) -> dict[str, StepRecord]:
    """Return the records of an item by their steps, the last one of each; none where there is no file.

    A last line that was cut off, by a program that was killed, is left out.

    Raises:
        UsageError: a line that is no record.
    """
    path = path_of(folder, item)
    if not path.exists():
        return {}
    found: dict[str, StepRecord] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        where = f"{path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where} is not JSON: {error}") from error
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise UsageError(f"{where} is not a record of format {FORMAT}")
        record = decode_dataclass(StepRecord, value | {"value": json.dumps(value.get("value"))}, where)
        found[record.step] = record
    return found


def values(records: Mapping[str, StepRecord]) -> dict[str, Any]:
    """Return what was measured, by step."""
    return {step: record.measured() for step, record in records.items()}


def origins(records: Iterable[StepRecord]) -> dict[str, list[str]]:
    """Return where records come from: each of command, day, machine and commit, once."""
    listed = list(records)
    made = {
        "command": [record.command for record in listed],
        "date": [record.started[:10] for record in listed],
        "machine": [record.machine for record in listed],
        "commit": [record.commit for record in listed],
    }
    return {name: list(dict.fromkeys(texts)) for name, texts in made.items()}
