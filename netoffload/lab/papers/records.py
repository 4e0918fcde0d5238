"""The records of measurements: a file of JSON lines for each item, a line for each step.

A line has the step's key and value, and their origin: command, date, machine, commit, versions. A step that has a line
is not repeated. Lines of a quick run do not count for a full one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from netoffload.errors import UsageError
from netoffload.lab.results import decode_dataclass

FORMAT: Final = 1
SUFFIX: Final = ".jsonl"


@dataclass(frozen=True)
class StepRecord:
    """One measurement and its origin.

    Attributes:
        format: format number of the line.
        item: name of the item.
        step: key of the step.
        effort: quick or full.
        started: time of its begin, UTC, ISO 8601.
        wall_s: time that it took.
        load_1min: load of the machine when it began; None: not known.
        command: the command that made it.
        machine: CPU and cores.
        commit: commit of the program's source; ``unknown`` if the source is no checkout.
        versions: versions of programs and packages.
        value: the measured values, as JSON.
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
    """Append a record to its item's file; an incomplete last line is replaced.

    Raises:
        UsageError: the file cannot be written.
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
    """Return the records of an item by step, the last one of each step; without a file there are none.

    A last line that is incomplete, because its program was killed, is left out.

    Raises:
        UsageError: a line is no record.
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
    """Return the measured values, by step."""
    return {step: record.measured() for step, record in records.items()}


def origins(records: Iterable[StepRecord]) -> dict[str, list[str]]:
    """Return the origin of records: each command, day, machine and commit once."""
    listed = list(records)
    made = {
        "command": [record.command for record in listed],
        "date": [record.started[:10] for record in listed],
        "machine": [record.machine for record in listed],
        "commit": [record.commit for record in listed],
    }
    return {name: list(dict.fromkeys(texts)) for name, texts in made.items()}
