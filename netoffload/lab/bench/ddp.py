"""Training under torch's DDP over shaped links: time, octets and accuracy of its own exchange, its hooks and ours.

All contenders without NICs take turns in one job of ranks (``rank_ddp``). For each NIC codec there is one more job, on
a testbed with NICs. In each job replicas that exchange nothing take turns as well. Communication time is
step time minus that of replicas that exchange nothing. That includes waiting for slower ranks, compressing, and the
hook's own work, but not what is hidden behind backward.

With an accuracy to reach, each contender has a job of its own, and the findings are :class:`Race`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from netoffload.config import check_bound_k, check_choice
from netoffload.errors import UsageError
from netoffload.lab.bench.jobs import (
    DDP_HOOKS,
    RACERS,
    TORCHS,
    DdpRecord,
    DdpResult,
    RacePoint,
    RaceResult,
    check_nodes,
    record_of_ranks,
)
from netoffload.lab.bench.rank_ddp import UNTIMED_STEPS, DdpJob
from netoffload.lab.bench.settings import DdpSettings, training_of
from netoffload.lab.declared import Finding, Progress, Table, rates
from netoffload.lab.machine import cpu_model
from netoffload.lab.reports.figure import draw_rows
from netoffload.lab.reports.panels import Panel, Series, draw_panels
from netoffload.lab.results import write_file
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id, prepared_ranks
from netoffload.lab.testbed.nics import NIC_IMPORTS
from netoffload.lab.training import IMPORTED, data
from netoffload.lab.training.data import save
from netoffload.lab.training.run import time_limit_s
from netoffload.lab.units import parse_rate_bps

REFERENCE: Final = "fp16"
"""The contender whose octets all others are compared with: the fewest that torch's own hooks send reliably."""

QUIET: Final = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Hides gloo's warnings about host names that it cannot look up."""

OF_RANKS: Final = (*IMPORTED, "netoffload.lab.bench.jobs", "netoffload.lab.training.ddp")
"""What the ranks of all contenders import; see :mod:`netoffload.lab.testbed.forks`."""


@dataclass(frozen=True)
class Conditions(Finding):
    """Under what all contenders were measured; ``failed`` has those without a result, and why."""

    configuration: dict[str, Any]
    rate_bps_measured: float
    load_1min: float
    cpu: str
    versions: dict[str, str]
    failed: dict[str, str | None]

    @property
    def title(self) -> str:
        """Model, data, accuracy to reach, nodes, batch, number of timed steps, and rates."""
        asked, training = self.configuration, self.configuration["training"]
        goal, steps = (
            (f" to {asked['until']:.4g}", "") if "until" in asked else ("", f", {training['iterations']} steps")
        )
        return (
            f"{training['model']} on {training['data']}{goal}, {asked['nodes']} nodes, batch {training['batch']}"
            f"{steps}, {rates(asked['rate_bps'], self.rate_bps_measured)}"
        )

    def missing(self) -> Iterator[str]:
        """Yield a line for each contender without a result."""
        for name, reason in self.failed.items():
            yield f"{name}: missing: {reason}"


@dataclass(frozen=True)
class Findings(Conditions):
    """Everything that was measured."""

    results: list[DdpResult]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        yield Table.of(DdpResult, self.results, self.title, caption="medians in ms per step; accuracy in %")
        yield from self.missing()

    def draw(self, path: Path) -> None:
        """Draw the table, the fastest first."""
        rows = sorted(self.results, key=lambda row: row.s_per_iteration)
        draw_rows([(row.what, row) for row in rows], "DDP's gradients", self.title, path)


@dataclass(frozen=True)
class Race(Conditions):
    """The contenders' ways to an accuracy."""

    results: list[RaceResult]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`: the fastest first, and who of ours loses."""
        rows = sorted(self.results, key=lambda row: (not row.is_reached, row.time_s))
        yield Table.of(RaceResult, rows, self.title)
        if best := next((row for row in rows if row.what in TORCHS and row.is_reached), None):
            later = [row.what for row in rows[rows.index(best) :] if row.what not in TORCHS]
            yield f"later than {best.what}, the fastest of torch's: {', '.join(later) or 'none of ours'}"
        yield from self.missing()

    def draw(self, path: Path) -> None:
        """Draw accuracies over seconds and over octets."""

        def lines(place: Callable[[RacePoint], float]) -> tuple[Series, ...]:
            return tuple(
                Series(row.what, tuple(map(place, row.curve)), tuple(100 * one.accuracy for one in row.curve))
                for row in self.results
            )

        accuracy, training = "% of the test set", self.configuration["training"]
        of = f"{training['model']} on {training['data']}"
        panels = [
            Panel("lines", of, accuracy, lines(lambda one: one.time_s), "seconds of training"),
            Panel("lines", of, accuracy, lines(lambda one: one.wire_octets / 1e6), "MB on all wires", log_x=True),
        ]
        draw_panels(panels, self.title, path)


class Ddp:
    """Every contender's training; if a job fails, the results of the others are reported."""

    def __init__(self, asked: DdpSettings) -> None:
        self._settings, self._names = training_of(asked, iterations=asked.steps), asked.what or _usual(asked)
        self._bed = TestbedSettings(asked.nodes, parse_rate_bps(asked.rate), nic=None)
        for name in self._names:
            check_choice("contender", name, tuple(DDP_HOOKS))
        check_bound_k(asked.bound)
        check_nodes(asked.nodes)
        self._factors: tuple[float, ...] = ()
        if asked.until is not None:
            self._factors = _factors(asked)
            if through := [name for name in self._names if DDP_HOOKS[name].nic_codec]:
                raise UsageError(f"--until trains without NICs: leave out {', '.join(through)}")
        elif (asked.factors, asked.every) != (DdpSettings.factors, DdpSettings.every):
            raise UsageError("--factors and --every go with --until ACCURACY")
        elif asked.steps < UNTIMED_STEPS + asked.repeat:
            raise UsageError(
                f"{asked.steps} steps are too few: {UNTIMED_STEPS} are not timed, and each of {asked.repeat} rounds "
                "needs one"
            )
        self._asked = asked
        self._records: list[DdpRecord] = []
        self._measured_bps: list[float] = []
        self._load_1min = os.getloadavg()[0]

    def measure(self, progress: Progress) -> None:
        """Measure everything."""
        nics = NIC_IMPORTS if any(codec for codec, _ in self._jobs()) else ()
        with (
            prepared_ranks((*OF_RANKS, *nics), QUIET),
            tempfile.TemporaryDirectory(prefix="netoffload-ddp-") as name,
        ):
            save(data.load(self._settings), Path(name))
            for codec, names in self._jobs():
                self._run(Path(name), codec, names, progress)

    def findings(self, reason: str | None) -> Findings | Race | None:
        """Return what was found; None: nothing."""
        if not self._records:
            return None
        asked = self._asked
        configuration = {**asdict(self._bed), "training": asdict(self._settings.resolved()), "bound_k": asked.bound}
        common: dict[str, Any] = {
            "rate_bps_measured": min(self._measured_bps),
            "load_1min": self._load_1min,
            "cpu": cpu_model(),
            "versions": self._records[0].versions,
        }
        if asked.until is not None:
            configuration |= {"until": asked.until, "every": asked.every, "factors": asked.factors}
            raced = [result for record in self._records for result in record.raced]
            return Race(configuration, failed=self._failed(raced, reason), results=raced, **common)
        found = compared(self._records)
        configuration["repeat"] = asked.repeat
        return Findings(configuration, failed=self._failed(found, reason), results=found, **common)

    def _failed(self, results: Sequence[DdpResult | RaceResult], reason: str | None) -> dict[str, str | None]:
        return {name: reason for name in self._names if name not in [row.what for row in results]}

    def _jobs(self) -> Iterator[tuple[str | None, list[str]]]:
        """Yield the codec of the NICs (None: no NICs) and the contenders of each job that has some.

        In a race each has a job of its own: what it reached is not lost if a later one fails.
        """
        if self._asked.until is not None:
            yield from ((None, [name]) for name in self._names)
            return
        for codec in dict.fromkeys([None, *(hook.nic_codec for hook in DDP_HOOKS.values())]):
            if names := [name for name in self._names if DDP_HOOKS[name].nic_codec == codec]:
                yield codec, names

    def _run(self, folder: Path, codec: str | None, names: list[str], progress: Progress) -> None:
        asked = self._asked
        nic = None if codec is None else NicSettings(codec, asked.bound)
        with Testbed(make_plan(replace(self._bed, nic=nic), new_run_id()), progress=progress) as bed:
            assert bed.rate_bps_measured is not None  # two nodes at least, and probed
            own: dict[str, Any] = {"bound_k": asked.bound, "names": tuple(names), "rounds": asked.repeat}
            own |= {"until": asked.until, "every": asked.every, "factors": self._factors}
            job = folder / "job.json"
            write_file(job, DdpJob(self._settings, str(folder), **own))
            argv = ["-m", "netoffload.lab.bench.rank_ddp", "--job", str(job)]
            limit_s = (1 + len(names)) * (1 + len(self._factors)) * time_limit_s(self._settings, self._bed.rate_bps)

            def told(_rank: int, lines: bytes) -> None:
                progress(lines.decode(errors="replace").splitlines()[-1])

            self._records.append(record_of_ranks(DdpRecord, bed, argv, env=QUIET, timeout_s=limit_s, on_stdout=told))
            self._measured_bps.append(bed.rate_bps_measured)


def _usual(asked: DdpSettings) -> tuple[str, ...]:
    return RACERS if asked.until is not None else tuple(name for name, hook in DDP_HOOKS.items() if hook.is_usual)


def _factors(asked: DdpSettings) -> tuple[float, ...]:
    """Return the factors of the initial learning rate; refuses those, or an accuracy, out of range."""
    try:
        factors = tuple(float(word) for word in asked.factors.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < one < float("inf") for one in factors):
        raise UsageError(f"--factors {asked.factors!r} are not numbers above 0, with commas, like 0.5,1,2")
    if asked.until is None or not 0 < asked.until <= 1:
        raise UsageError(f"--until {asked.until} is no accuracy: give more than 0, and 1 at most")
    return factors


def compared(records: list[DdpRecord]) -> list[DdpResult]:
    """Return the results of all jobs, each beside the octets of :data:`REFERENCE`."""
    results = [result for record in records for result in record.results]
    octets = {result.what: result.wire_bytes_per_iteration for result in results}
    if REFERENCE not in octets:
        return results
    return [replace(one, ratio_to_fp16=octets[REFERENCE] / one.wire_bytes_per_iteration) for one in results]
