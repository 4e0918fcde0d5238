"""The journal of a run: a list of everything it makes, written before each thing is made.

One directory per run under the state directory (``/run/netoffload``, or ``$NETOFFLOAD_STATE_DIR``), with one file of
JSON lines::

    {"event": "run", "run": "3fa9c1", "owner": {...}, "settings": {...}, "mark": "NETOFFLOAD_RUN=3fa9c1"}
    {"event": "netns", "name": "no-3fa9c1-sw"}         appended and fsynced before the namespace is made
    {"event": "process", "name": "nic n0", "pid": ..., "start_ticks": ...}   the last one of a name counts
    {"event": "ready", "rate_bps_measured": 1.0e9}
    {"event": "detached"}                              from here on the run outlives its owner

Only namespaces and processes need listing: every link, address, route and qdisc lives in one of the run's namespaces
and disappears with it. A process is listed when its pid is known. If its starter was killed before that, the run's mark
finds the process. A last line that a kill cut short is ignored: the thing that it announced was not made.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from netoffload.errors import TestbedError
from netoffload.lab.testbed.plan import Plan, make_plan, settings_from_json, state_root
from netoffload.lab.testbed.processes import ProcessId, identify, is_alive

JOURNAL_NAME: Final = "journal.jsonl"


@dataclass(frozen=True)
class RunRecord:
    """The content of a journal."""

    run_id: str
    state_dir: Path
    settings: dict[str, Any]
    mark: str
    owner: ProcessId
    netns: tuple[str, ...]
    processes: tuple[tuple[str, ProcessId], ...]
    folders: tuple[Path, ...]
    rate_bps_measured: float | None
    ready: bool
    detached: bool

    @property
    def is_stale(self) -> bool:
        """Whether the process that built the run has ended, and the run is not detached."""
        return not self.detached and not is_alive(self.owner)

    @property
    def state(self) -> str:
        """The state of the run in a word or two: up, being built, or left behind."""
        return "owner gone" if self.is_stale else "up" if self.ready else "being built"


class Journal:
    """The journal of one run, open for writing."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / JOURNAL_NAME

    @classmethod
    def create(cls, plan: Plan) -> Journal:
        """Make the run's directory, owned by this process."""
        owner = identify(os.getpid())
        if owner is None:
            raise TestbedError("/proc does not show this process: mount it, `mount -t proc proc /proc`")
        header = {
            "event": "run",
            "run": plan.run_id,
            "owner": asdict(owner),
            "settings": asdict(plan.settings),
            "mark": plan.mark,
        }
        # A rename puts it in place, so no process sees a run without its first line.
        unborn = plan.state_dir.with_name(f".{plan.run_id}.{owner.pid}")
        try:
            unborn.mkdir(mode=0o700, parents=True)
            _append(unborn / JOURNAL_NAME, header)
            unborn.rename(plan.state_dir)
        except OSError as error:
            shutil.rmtree(unborn, ignore_errors=True)
            if plan.state_dir.exists():
                raise TestbedError(f"run {plan.run_id} exists already: choose another run id") from error
            raise TestbedError(f"cannot make the state directory {plan.state_dir}: {error.strerror}") from error
        return cls(plan.state_dir)

    def append(self, event: str, **values: Any) -> None:
        """Add a line, and return when a kill cannot lose it."""
        try:
            _append(self._path, {"event": event, **values})
        except OSError as error:
            raise TestbedError(f"cannot write {self._path} (was the run taken down?): {error.strerror}") from error


def read_run(state_dir: Path) -> RunRecord | None:
    """Read the journal of a run, or return None when there is none."""
    try:
        lines = (state_dir / JOURNAL_NAME).read_text().splitlines()
    except OSError:
        return None
    events = [event for line in lines if (event := _parse(line)) is not None]
    if not events or events[0]["event"] != "run":
        return None
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    header, ready = events[0], by_kind.get("ready", [])
    return RunRecord(
        run_id=header["run"],
        state_dir=state_dir,
        settings=header["settings"],
        mark=header["mark"],
        owner=ProcessId(**header["owner"]),
        netns=tuple(one["name"] for one in by_kind.get("netns", [])),
        processes=tuple((one["name"], ProcessId(one["pid"], one["start_ticks"])) for one in by_kind.get("process", [])),
        folders=tuple(Path(one["path"]) for one in by_kind.get("folder", [])),
        rate_bps_measured=ready[-1]["rate_bps_measured"] if ready else None,
        ready=bool(ready),
        detached="detached" in by_kind,
    )


def read_ready(state_dir: Path) -> RunRecord:
    """Read the journal of a run that is up; refuse any other."""
    record = read_run(state_dir)
    if record is None or not record.ready:
        raise TestbedError(f"run {state_dir.name} is not up: `netoffload status` lists those that are")
    return record


def plan_of_run(record: RunRecord) -> Plan:
    """Return the plan that a run was built from."""
    return make_plan(settings_from_json(record.settings), record.run_id, record.state_dir.parent)


def list_runs(root: Path | None = None) -> list[RunRecord]:
    """Return all runs in the state directory, by run id."""
    root = root or state_root()
    try:
        names = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
    return [record for name in names if (record := read_run(root / name)) is not None]


def _append(path: Path, event: dict[str, Any]) -> None:
    # Only the first line creates the file: a run that was taken down must not come back as a lone file.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if event["event"] == "run" else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, json.dumps(event).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
