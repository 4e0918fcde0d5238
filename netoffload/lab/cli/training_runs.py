"""Does a series of training runs: progress, records, remarks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.cli.app import console, need, notes, progress_bar
from netoffload.errors import NetOffloadError
from netoffload.lab import results
from netoffload.lab.cli.report import print_summary
from netoffload.lab.training.data_spec import SYNTHETIC
from netoffload.lab.units import parse_rate_bps
from netoffload.nic_options import NicSettings

if TYPE_CHECKING:
    from netoffload.lab.results import Record
    from netoffload.lab.testbed import TestbedSettings
    from netoffload.lab.training.config import TrainSettings
    from netoffload.lab.training.outcome import Step
    from netoffload.lab.training.plan import Outputs

ZERO_SHARE_MAX: Final = 0.97
"""HDC on digits, 300 iterations: 98.3 % of floats crossed as 0 where nothing was learnt, 93 to 96 % where it was."""

RAW_SHARE_MAX: Final = 0.02
"""A connection's first octets, before its verdict, are less than that of any run."""


def prepared(*model_names: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a fork server imports what ranks need, while this command imports its own modules."""
    from netoffload.lab.training import models

    for name in model_names:
        models.get(name)
    for package in ("mpi4py", "torch"):  # at once: torch alone takes seconds to import
        need(package)
    from netoffload.lab.testbed import prepared_ranks
    from netoffload.lab.training import IMPORTED

    return prepared_ranks(IMPORTED)


@dataclasses.dataclass
class RunSeries:
    """The names of a series of runs, and so far, by name, their records and the reasons of failures."""

    names: tuple[str, ...]
    records: dict[str, Record] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, runs: Sequence[TrainSettings], baselines: str) -> RunSeries:
        """Return the state before the first run."""
        from netoffload.lab.training.plan import plan_runs

        return cls(tuple(run.name for run in plan_runs(runs, baselines)))

    def missing(self, reason: str | None) -> dict[str, str | None]:
        """Return, by name, why runs have no record: their own reason, or ``reason``, which ended the series."""
        return {name: self.failed.get(name, reason) for name in self.names if name not in self.records}


def tell(found: RunSeries, reason: str | None, *, as_json: bool) -> None:
    """Print the records that exist, and a line for each run without one."""
    from netoffload.lab import reports

    if not found.records:
        return
    summary, missing = reports.summarise([*found.records.values()]), found.missing(reason)
    if as_json:
        told = {**summary.to_json(), "missing": missing}
        print(
            json.dumps(told | {"records": [dataclasses.asdict(record) for record in found.records.values()]}, indent=2)
        )
    else:
        print_summary(summary, as_json=False)
        print_missing(missing)


def print_missing(missing: dict[str, str | None]) -> None:
    """Print a line for each run without a record: its name, and why."""
    for name, reason in missing.items():
        console.print(f"{name}: missing: {reason}", highlight=False, markup=False, soft_wrap=True)


def testbed_settings(runs: Sequence[TrainSettings], rate: str, nic: NicSettings, mtu: int) -> TestbedSettings:
    """Return a testbed with as many nodes as the runs need."""
    from netoffload.lab.testbed import TestbedSettings

    nodes = max(run.ranks for run in runs)
    return TestbedSettings(nodes=nodes, rate_bps=parse_rate_bps(rate), mtu=mtu, nic=nic)


def run_series(
    runs: Sequence[TrainSettings],
    testbed: TestbedSettings,
    found: RunSeries,
    out: Path | None,
    outputs: Outputs | None = None,
    *,
    anew: bool = False,
    baselines: str,
) -> None:
    """Do the runs with progress on standard error; append each record to ``found`` and ``out`` at the run's end.

    With ``anew`` the first record replaces the content of ``out``. A record of an earlier command's run, which ``out``
    has already, is not appended again.
    """
    from netoffload.lab.training.plan import NO_OUTPUTS
    from netoffload.lab.training.run import run_all

    if out is not None:
        results.check_writable(out)
        if out.exists() and not anew:
            results.read_lines(out)  # refuses what is no text, before an hour of training

    def keep(name: str, record: Record) -> None:
        found.records[name] = record
        if out is not None:
            if anew and len(found.records) == 1:
                out.unlink(missing_ok=True)
            if not (out.exists() and results.to_line(record) in results.read_lines(out)):
                results.append_records(out, [record])
        for remark in remarks_on(record):
            notes.print(remark, highlight=False, markup=False, soft_wrap=True)

    def note_failure(name: str, error: NetOffloadError) -> None:
        found.failed[name] = str(error)
        notes.print(f"{name} failed: {error}", highlight=False, markup=False, soft_wrap=True)

    with progress(found.names, runs[0].iterations) as (show_phase, show):
        run_all(
            runs,
            testbed,
            baselines=baselines,
            on_phase=show_phase,
            on_progress=show,
            on_record=keep,
            on_failure=note_failure,
            outputs=outputs or NO_OUTPUTS,
        )


def remarks_on(record: Record) -> list[str]:
    """Return a line for an early end, and for each reason why a run's accuracy says nothing about its method."""
    asked, classes = record.configuration, record.traffic.classes
    remarks = []
    if asked.data.startswith(SYNTHETIC):
        remarks.append(f"{asked.exchange} trained on noise ({asked.data}): its accuracy and loss say nothing")
    if record.iterations_done < asked.iterations:
        remarks.append(
            f"{asked.exchange} reached {100 * record.learning.accuracy:.1f} % after {record.iterations_done} of "
            f"{asked.iterations} iterations"
        )
    if record.learning.final_loss is None:
        remarks.append(f"{asked.exchange} diverged: its loss is not a number; try a smaller --learning-rate")
    if classes.total and classes.bits_0 >= ZERO_SHARE_MAX * classes.total:
        remarks.append(
            f"{asked.exchange}: {100 * classes.bits_0 / classes.total:.1f} % of the floats"
            " were too small for the codec and crossed as 0; if little was learnt, try a larger --loss-scale "
            f"(the demo takes 8) or {'--bound' if asked.codec == 'bounded' else '--codec bounded'}"
        )
    crossed_raw = record.traffic.crossed_raw_octets or 0
    if crossed_raw > RAW_SHARE_MAX * (record.traffic.raw_octets + crossed_raw):
        remarks.append(
            f"{asked.exchange}: {crossed_raw:,} of {record.traffic.raw_octets + crossed_raw:,} tagged octets crossed "
            "uncompressed: they would not shrink, or did not look like floats (very small gradients do not)"
        )
    return remarks


@contextlib.contextmanager
def progress(
    names: Sequence[str], iterations: int
) -> Iterator[tuple[Callable[[str], None], Callable[[str, Step], None]]]:
    """Show a bar in a terminal; elsewhere print a line whenever a tenth of a run is done."""
    with progress_bar() as say:
        tenths = dict.fromkeys(names, 0)

        def show(name: str, step: Step) -> None:
            if step.done == 0 or notes.is_terminal:
                say(f"training {name} {step.learnt}".rstrip(), step.done / iterations if notes.is_terminal else None)
            elif (tenth := 10 * step.done // iterations) > tenths[name]:
                tenths[name] = tenth
                words = ", ".join(filter(None, (f"{step.done} of {iterations}", step.learnt)))
                notes.print(f"{name}: {words}", highlight=False, markup=False, soft_wrap=True)

        yield say, show
