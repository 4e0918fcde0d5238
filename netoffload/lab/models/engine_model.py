"""A gradient through models of the paper's 256-bit engine (``hardware``)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from netoffload.collectives.samples import gradient_of
from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.declared import AllOrNothing, Column, Finding, Progress, Table, mega, words
from netoffload.lab.models import hardware
from netoffload.lab.models.gradients import parse_sigma
from netoffload.lab.models.settings import EngineSettings
from netoffload.lab.units import parse_clock_hz

LINES_BPS: Final = (10_000_000_000, 25_000_000_000, 100_000_000_000)
"""Ethernet links that an engine is compared with."""

CIRCUITS: Final = {"compressor, tags": hardware.COMPRESSOR, "decompressor, tags": hardware.DECOMPRESSOR}


@dataclass(frozen=True)
class Activity(Finding):
    """An engine's counts; ``stalls`` are the waits of the port with floats, ``wire_waits`` those of the other port."""

    cycles: Annotated[int, Column("cycles")]
    beats_in: Annotated[int, Column("beats in")]
    beats_out: Annotated[int, Column("beats out")]
    input_bps: Annotated[float, Column("in Gb/s", ".2f", 1e9)]
    output_bps: Annotated[float, Column("out Gb/s", ".2f", 1e9)]
    stalls: dict[str, int]
    wire_waits: dict[str, int]


def _megahertz(clock_hz: float) -> str:
    return f"{mega(clock_hz, '.0f')} MHz"


@dataclass(frozen=True)
class Line(Finding):
    """How fast gradients cross a line between two such engines; headers are left out."""

    line_bps: Annotated[int, Column("line Gb/s", ".4g", 1e9)]
    gradient_bps: Annotated[float, Column("gradients Gb/s", ".4g", 1e9)]
    speedup: Annotated[float, Column("times the line", ".2f")]
    limited_by: Annotated[str, Column("limited by")]
    clock_to_fill_hz: Annotated[float, Column("clock to fill it", _megahertz)]


@dataclass(frozen=True)
class Cost(Finding):
    """The circuit of an engine, which moves up to ``width_bits`` in a cycle."""

    engine: Annotated[str, words("engine")]
    register_bits: Annotated[int, Column("register bits")]
    width_bits: Annotated[int, Column("shifter bits")]
    multiplexers: Annotated[int, Column("multiplexers")]
    shifters: tuple[hardware.Shifter, ...]


@dataclass(frozen=True)
class Findings(Finding):
    """What compressor and decompressor did, and the circuits of all engines."""

    configuration: dict[str, Any]
    floats: int
    bursts: int
    ratio: float
    compressor: Activity
    decompressor: Activity
    lines: list[Line]
    circuits: list[Cost]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        asked = self.configuration
        what = f"{self.bursts} bursts of {asked['gradients']}, {asked['codec']} 2^-{asked['bound_k']}"
        yield f"{what}: ratio {self.ratio:.2f}"
        both = {"compressor": self.compressor, "decompressor": self.decompressor}
        engines = Table.of(Activity, both.values(), f"256-bit engines at {mega(asked['clock_hz'], 'g')} MHz")
        named = [[name, *cells] for name, cells in zip(both, engines.rows, strict=True)]
        yield replace(engines, columns=[words("engine"), *engines.columns], rows=named)
        for name, did in both.items():
            for reason, cycles in did.stalls.items():
                share, meaning = cycles / did.cycles, hardware.Wait[reason.upper()].meaning
                yield f"{name} stalled {cycles} cycles ({share:.2%}), {reason}: {meaning}"
        yield Table.of(Line, self.lines, "Gradients across a line between two such engines, without headers")
        yield Table.of(Cost, self.circuits, "What the engines are made of, without the blocks of the lanes")


class EngineModel(AllOrNothing[Findings]):
    """One gradient through a compressor, and through a decompressor."""

    def __init__(self, asked: EngineSettings) -> None:
        self._asked, self._clock_hz = asked, parse_clock_hz(asked.clock)
        self._values = _gradient(asked)[: None if asked.bursts is None else 8 * asked.bursts]
        self._bursts = hardware.bursts_of(self._values, asked.codec, asked.bound)
        if not self._bursts:
            raise UsageError(f"gradients {asked.gradients!r} hold no float")

    def measure(self, progress: Progress) -> None:
        """Clock the values through both engines."""
        asked, clock_hz = self._asked, self._clock_hz
        progress(f"compressing and decompressing {self._values.size} floats, cycle by cycle")
        compressor = hardware.clocked(hardware.compressor(self._bursts))
        decompressor = hardware.clocked(hardware.decompressor(self._bursts))
        ratio = self._values.nbytes / compressor.outlet.octets
        engine_bps = min(compressor.intake.rate_bps(clock_hz), decompressor.outlet.rate_bps(clock_hz))
        self.found = Findings(
            configuration={
                "codec": asked.codec,
                "bound_k": asked.bound,
                "clock_hz": clock_hz,
                "gradients": asked.gradients,
                "seed": asked.seed,
            },
            floats=self._values.size,
            bursts=len(self._bursts),
            ratio=ratio,
            compressor=_activity(compressor, clock_hz, floats=compressor.intake, wire=compressor.outlet),
            decompressor=_activity(decompressor, clock_hz, floats=decompressor.outlet, wire=decompressor.intake),
            lines=[_line(line_bps, engine_bps, ratio, clock_hz) for line_bps in LINES_BPS],
            circuits=[
                Cost(name, made.register_bits, made.width_bits, made.multiplexers, made.shifters)
                for name, made in CIRCUITS.items()
            ],
        )


def _gradient(asked: EngineSettings) -> Float32Array:
    """Return float32[n]."""
    text = asked.gradients
    path = Path(text)
    if path.suffix not in (".npy", ".bin"):
        if text.startswith("gaussian"):
            return gradient_of(0, asked.count, parse_sigma(text), asked.seed)
        raise UsageError(f"gradients {text!r} are no .npy or .bin file of float32: name one, or write gaussian:0.002")
    try:
        values = np.memmap(path, "<f4", "r") if path.suffix == ".bin" else np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read gradients {text}: {error}") from error
    if values.dtype != np.float32:
        raise UsageError(f"gradients {text} are {values.dtype}: save float32")
    return values.reshape(-1)


def _activity(engine: hardware.Engine, clock_hz: int, *, floats: hardware.Port, wire: hardware.Port) -> Activity:
    return Activity(
        cycles=engine.intake.cycles,
        beats_in=engine.intake.beats,
        beats_out=engine.outlet.beats,
        input_bps=engine.intake.rate_bps(clock_hz),
        output_bps=engine.outlet.rate_bps(clock_hz),
        stalls={str(reason): cycles for reason, cycles in floats.waits.items()},
        wire_waits={str(reason): cycles for reason, cycles in wire.waits.items()},
    )


def _line(line_bps: int, engine_bps: float, ratio: float, clock_hz: int) -> Line:
    gradient_bps = min(engine_bps, line_bps * ratio)
    return Line(
        line_bps=line_bps,
        gradient_bps=gradient_bps,
        speedup=gradient_bps / line_bps,
        limited_by="engine" if engine_bps < line_bps * ratio else "line",
        clock_to_fill_hz=clock_hz * line_bps * ratio / engine_bps,
    )
