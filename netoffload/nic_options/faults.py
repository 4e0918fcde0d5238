"""Faults on purpose: how a NIC is to damage the frames that it gives to its wire.

One text describes all faults: ``loss=0.01,dup=0.01,reorder=0.01,flip=1e-4,truncate=0.001,delay=5ms,seed=7``. The
command line, the testbed's plan and the NIC process read it with :func:`parse_faults` and pass it on with
:meth:`FaultSettings.text`. ``netoffload_daemon.faults`` applies the faults to frames.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from netoffload.errors import UsageError

PROBABILITIES: Final = ("loss", "dup", "reorder", "flip", "truncate")
DELAY_NS_MAX: Final = 10 * 10**9
SEED_MAX: Final = 2**63 - 1

_DELAY = re.compile(r"(\d+(?:\.\d+)?)(s|ms|us)")
_FIELD: Final = {"delay": "delay_ns", "seed": "seed"}
_UNIT_NS: Final = {"s": 1e9, "ms": 1e6, "us": 1e3}
_EXAMPLE: Final = "write loss=0.01,dup=0.01,reorder=0.01,flip=1e-4,truncate=0.001,delay=5ms,seed=7"


@dataclass(frozen=True)
class FaultSettings:
    """Probabilities per frame, a delay of all frames, and the seed that decides which frames are hit.

    A lost frame is not sent, a duplicated one twice. Later frames overtake a reordered one. One bit is flipped, or the
    end is cut off.
    """

    loss: float = 0.0
    dup: float = 0.0
    reorder: float = 0.0
    flip: float = 0.0
    truncate: float = 0.0
    delay_ns: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in PROBABILITIES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"fault {name}={getattr(self, name)} is not a probability, 0..1")
        if not 0 <= self.delay_ns <= DELAY_NS_MAX:
            raise UsageError(f"fault delay of {self.delay_ns / 1e9} s is outside 0..{DELAY_NS_MAX // 10**9} s")
        if not 0 <= self.seed <= SEED_MAX:
            raise UsageError(f"fault seed {self.seed} is outside 0..2^63-1")

    @property
    def is_on(self) -> bool:
        """Whether any fault can happen."""
        return self.delay_ns > 0 or any(getattr(self, name) > 0 for name in PROBABILITIES)

    def text(self) -> str:
        """Return the text that :func:`parse_faults` reads as the same settings; empty if no fault is on."""
        if not self.is_on:
            return ""
        parts = [f"{name}={getattr(self, name)!r}" for name in PROBABILITIES if getattr(self, name)]
        parts += [f"delay={self.delay_ns / 1e3:.3f}us"] if self.delay_ns else []
        return ",".join([*parts, f"seed={self.seed}"])


def parse_faults(text: str) -> FaultSettings:
    """Return the faults in ``text``, which may be empty."""
    fields: dict[str, Any] = {}
    for part in text.replace(" ", "").split(",") if text.strip() else []:
        name, _, value = part.partition("=")
        field = _FIELD.get(name, name)
        if field in fields:
            raise UsageError(f"fault {name} is given twice: {_EXAMPLE}")
        if name in PROBABILITIES:
            fields[field] = _parse_number(part, value)
        elif name == "delay":
            fields[field] = _parse_delay_ns(value)
        elif name == "seed":
            if not value.isdecimal():
                raise UsageError(f"fault {part!r} is not a whole number: {_EXAMPLE}")
            fields[field] = int(value)
        else:
            raise UsageError(f"fault {part!r} is unknown: {_EXAMPLE}")
    return FaultSettings(**fields)


def _parse_number(part: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UsageError(f"fault {part!r} is not a number: {_EXAMPLE}")
    return number


def _parse_delay_ns(value: str) -> int:
    match = _DELAY.fullmatch(value)
    if match is None:
        raise UsageError(f"fault delay={value} is not a time with a unit: {_EXAMPLE}")
    return round(float(match[1]) * _UNIT_NS[match[2]])
