"""A case: a call whose result is known, and the values that it is made on.

A case makes its arguments twice from the same random values. The ``_comp`` call gets them as drawn. mpi4py's own call
gets them as they would arrive: values that the codec rounds on the way are rounded first. So plain MPI gives the right
result of all calls that move values. For calls that reduce it does so if every order of adding is exact (whole
numbers). For other values the *model* gives the right result, ``netoffload.collectives.reference``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from netoffload.collectives.reference import RoundTrip
from netoffload.compiled.arrays import Float32Array

OPS: Final = (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD)
WEIGHTS: Final = (2, 0, 1, 3)  # weights of uneven blocks, in thirds, by rank
SIGMA: Final = 0.05
"""Standard deviation of values for the codec: they become zeros, 8-bit and 16-bit forms."""

Observed = tuple[Any, ...]
"""The results of a call on this rank that are compared: float32 vectors, and statuses as tuples."""


def _as_it_is(values: Float32Array) -> Float32Array:
    return values


@dataclass(frozen=True)
class Rounding:
    """How values are rounded: on a hop (a pair of NICs), and by their owner. Both functions return another vector."""

    hop: RoundTrip = _as_it_is
    owner: RoundTrip = _as_it_is


EXACT: Final = Rounding()


@dataclass(frozen=True)
class Prepared:
    """A call's arguments, and those of them that are compared after the call."""

    arguments: tuple[Any, ...]
    observed: tuple[Float32Array, ...]


@dataclass(frozen=True)
class Case:
    """One call.

    ``make`` makes the arguments, with the inputs rounded by its argument; ``options`` are those of the ``_comp`` call
    only. ``model`` returns the right result if plain MPI cannot give it, whose result is divided by ``divisor``. The
    report counts the case under ``label``. ``ours`` names the method, if it is not ``call`` with ``_comp``.
    """

    call: str
    variant: str
    make: Callable[[Rounding], Prepared]
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[], Observed] | None = None
    divisor: int = 1
    label: str = ""
    ours: str = ""

    @property
    def method(self) -> str:
        return self.ours or f"{self.call}_comp"

    @property
    def background(self) -> str | None:
        return None if self.ours else f"I{self.call.lower()}_comp"


@dataclass
class Place:
    """The communicator and the values for a set of cases.

    ``count`` is of a vector that is reduced, or of one block that is moved. Sums and products of ``exact`` values are
    exact, and a codec leaves them exact if ``is_coded``: if every hop is coded, by a pair of NICs or by its ranks.
    """

    rank: int
    size: int
    count: int
    rounding: Rounding
    exact: bool
    is_coded: bool
    seed: int

    def __post_init__(self) -> None:
        """Keep the values that were drawn: three calls or more use them."""
        self._drawn: dict[tuple[str, int, int], Float32Array] = {}

    def draw(self, kind: str, rank: int, count: int) -> Float32Array:
        """Return a read-only vector of ``rank``, the same on every rank that asks.

        Its kind is ``terms`` to add or compare, ``factors`` to multiply, or ``cargo`` to move.
        """
        key = kind, rank, count
        if key not in self._drawn:
            rng = np.random.default_rng([self.seed, ("terms", "factors", "cargo").index(kind), rank, count])
            self._drawn[key] = values = self._values(rng, kind, count)
            values.setflags(write=False)
        return self._drawn[key]

    def _values(self, rng: np.random.Generator, kind: str, count: int) -> Float32Array:
        if not self.exact:
            values: Float32Array = rng.standard_normal(count, dtype=np.float32) * np.float32(SIGMA)
            values[::7] *= 30  # some reach 1
            return values
        if kind == "factors":
            return rng.choice(np.array([-2, -1, 1, 2], np.float32), count)
        if kind == "terms" or self.is_coded:
            return rng.integers(-1000, 1001, count, dtype=np.int32).astype(np.float32)
        return np.frombuffer(bytearray(rng.bytes(4 * count)), np.float32)  # any bits at all, NaN among them

    def own(self, op: MPI.Op) -> Float32Array:
        return self.vectors(op)[self.rank]

    def vectors(self, op: MPI.Op, count: int | None = None) -> list[Float32Array]:
        """Return all ranks' vectors for a reduction, perhaps of another number of floats."""
        kind = "factors" if op == MPI.PROD else "terms"
        return [self.draw(kind, rank, self.count if count is None else count) for rank in range(self.size)]

    @property
    def hop(self) -> RoundTrip | None:
        """How a hop rounds, in the form that the oracle takes: None if it does not."""
        return None if self.rounding.hop is _as_it_is else self.rounding.hop


def nothing(count: int) -> Float32Array:
    """Return a vector to receive into, filled with a value that no call writes by chance."""
    return np.full(count, -77.25, np.float32)
