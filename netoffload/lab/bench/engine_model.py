"""A gradient through models of the paper's 256-bit engine (``lab.models.hardware``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from netoffload.compiled.arrays import Float32Array
from netoffload.errors import UsageError
from netoffload.lab.bench.experiment import AllOrNothing, Finding, Progress
from netoffload.lab.bench.vectors import gaussian
from netoffload.lab.models import hardware
from netoffload.lab.models.hardware.blocks import blocks_of

LINES_BPS: Final = (10_000_000_000, 25_000_000_000, 100_000_000_000)
"""Ethernet links that an engine is compared with."""

CIRCUITS: Final[dict[str, type[hardware.Engine]]] = {
    "compressor, tags": hardware.Compressor,
    "decompressor, tags": hardware.Decompressor,
}
"""Both engines, whose circuits are listed."""


@dataclass(frozen=True)
class Asked:
    """What to model.

    Attributes:
        codec: one of ``hardware.MODELLED``.
        bound_k: error bound 2^-bound_k.
        clock_hz: clock of the engine.
        gradients: FILE.npy, FILE.bin (float32, little-endian), or gaussian:SIGMA.
        count: floats to draw for gaussian.
        bursts: number of bursts (8 floats each) to take from the start; None: all.
        seed: seed of the values drawn.

    Raises:
        UsageError: a codec without an engine, or a bound outside 1..16.
    """

    codec: str
    bound_k: int
    clock_hz: int
    gradients: str
    count: int
    bursts: int | None
    seed: int

    def __post_init__(self) -> None:
        """Refuse before anything is modelled."""
        blocks_of(self.codec, self.bound_k)


@dataclass(frozen=True)
class Stall:
    """Cycles in which no floats crossed, their share of all cycles, and the reason."""

    cycles: int
    share: float
    reason: str
    meaning: str


@dataclass(frozen=True)
class Activity(Finding):
    """An engine's counts; ``stalls`` are the waits of the port with floats, ``wire_waits`` those of the other port."""

    cycles: int
    beats_in: int
    beats_out: int
    input_bps: float
    output_bps: float
    stalls: dict[str, int]
    wire_waits: dict[str, int]

    def explained_stalls(self) -> Iterator[Stall]:
        """Yield the stalls with their meaning."""
        for reason, cycles in self.stalls.items():
            yield Stall(cycles, cycles / self.cycles, reason, hardware.MEANING[hardware.Wait(reason)])


@dataclass(frozen=True)
class Line(Finding):
    """How fast gradients cross a line between two such engines; headers are left out."""

    line_bps: int
    gradient_bps: float
    speedup: float
    limited_by: str
    clock_to_fill_hz: float


@dataclass(frozen=True)
class Shift(Finding):
    """A shifter: it has a row of ``bits`` for each power of two of ``places``."""

    what: str
    bits: int
    places: int
    copies: int


@dataclass(frozen=True)
class Cost(Finding):
    """The circuit of an engine, which moves up to ``width_bits`` in a cycle."""

    engine: str
    register_bits: int
    width_bits: int
    multiplexers: int
    shifters: list[Shift]


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


class EngineModel(AllOrNothing[Findings]):
    """One gradient through a compressor, and through a decompressor."""

    def __init__(self, asked: Asked) -> None:
        """Read or draw the gradient.

        Raises:
            UsageError: it cannot be read, or holds no float.
        """
        self._asked = asked
        self._values = _gradient(asked)[: None if asked.bursts is None else 8 * asked.bursts]
        if not self._values.size:
            raise UsageError(f"gradients {asked.gradients!r} hold no float")

    def measure(self, progress: Progress) -> None:
        """Clock the values through both engines."""
        asked, values = self._asked, self._values
        progress(f"compressing {values.size} floats, cycle by cycle")
        payload, compressor = hardware.compress(values, asked.codec, asked.bound_k)
        progress(f"decompressing {payload.size} octets")
        _, decompressor = hardware.decompress(payload, values.size, asked.codec, asked.bound_k)
        ratio, clock_hz = values.nbytes / payload.size, asked.clock_hz
        engine_bps = min(compressor.intake.rate_bps(clock_hz), decompressor.outlet.rate_bps(clock_hz))
        self.found = Findings(
            configuration={
                "codec": asked.codec,
                "bound_k": asked.bound_k,
                "clock_hz": clock_hz,
                "gradients": asked.gradients,
                "seed": asked.seed,
            },
            floats=values.size,
            bursts=compressor.intake.beats,
            ratio=ratio,
            compressor=_activity(compressor, compressor.intake.waits, compressor.outlet.waits, clock_hz),
            decompressor=_activity(decompressor, decompressor.outlet.waits, decompressor.intake.waits, clock_hz),
            lines=[_line(line_bps, engine_bps, ratio, clock_hz) for line_bps in LINES_BPS],
            circuits=[_cost(name, machine.circuit) for name, machine in CIRCUITS.items()],
        )


def _gradient(asked: Asked) -> Float32Array:
    """Return float32[n]."""
    text = asked.gradients
    path = Path(text)
    if path.suffix not in (".npy", ".bin"):
        return gaussian(text, asked.count, asked.seed)
    try:
        values = np.memmap(path, "<f4", "r") if path.suffix == ".bin" else np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read gradients {text}: {error}") from error
    if values.dtype != np.float32:
        raise UsageError(f"gradients {text} are {values.dtype}: save float32")
    return values.reshape(-1)


def _activity(
    engine: hardware.Engine, stalls: Mapping[Any, int], wire_waits: Mapping[Any, int], clock_hz: int
) -> Activity:
    return Activity(
        cycles=engine.intake.cycles,
        beats_in=engine.intake.beats,
        beats_out=engine.outlet.beats,
        input_bps=engine.intake.rate_bps(clock_hz),
        output_bps=engine.outlet.rate_bps(clock_hz),
        stalls={str(reason): cycles for reason, cycles in stalls.items()},
        wire_waits={str(reason): cycles for reason, cycles in wire_waits.items()},
    )


def _cost(name: str, circuit: hardware.Circuit) -> Cost:
    shifters = [Shift(**shifter._asdict()) for shifter in circuit.shifters]
    return Cost(name, circuit.register_bits, circuit.width_bits, circuit.multiplexers, shifters)


def _line(line_bps: int, engine_bps: float, ratio: float, clock_hz: int) -> Line:
    gradient_bps = min(engine_bps, line_bps * ratio)
    return Line(
        line_bps=line_bps,
        gradient_bps=gradient_bps,
        speedup=gradient_bps / line_bps,
        limited_by="engine" if engine_bps < line_bps * ratio else "line",
        clock_to_fill_hz=clock_hz * line_bps * ratio / engine_bps,
    )
