"""The errors of the 8-bit types: Table 2 of their paper, made again (Dettmers, ICLR 2016, section 3.4).

25 million numbers of each distribution are encoded into octets and decoded. ``dynamic`` and ``linear`` divide by the
largest magnitude of the sample; ``static`` and ``mantissa`` take the exponent offset 10^1, and 10^2 for N(0, 10^2).

The printed errors are not those of the nearest number (ours). Two assumptions explain them (docs/lab/compressors.md):
the column called "mean absolute error" holds the mean *squared* error, except for ``linear`` on U(0, 1), and the
program's binary search over the 128 sorted numbers ends at one of the two neighbours of a value and looks only at the
lower one. It starts at entry 64 and moves by 32, 16, ... 1. If the value is above the last entry, it takes that entry.
Else it takes the nearer one of that entry and the greatest entry that it found to be lower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Float32Array, Float64Array
from netoffload.compressors.tables import FIRST_CUT, MIDDLE_CUT, TYPES, magnitudes
from netoffload.lab.bench.settings import EightBitSettings
from netoffload.lab.declared import NOTHING, AllOrNothing, Finding, Progress, Table, numbers, words

PAPER_SAMPLE: Final = 25_000_000
CHUNK: Final = 1_000_000

PRINTED: Final = {
    ("U(0, 1)", "dynamic"): (0.00004, 1.39),
    ("U(0, 1)", "linear"): (0.0024, 2.16),
    ("U(0, 1)", "mantissa"): (0.0017, 7.22),
    ("U(0, 1)", "static"): (0.0007, 4.82),
    ("N(0, 1)", "dynamic"): (0.0005, 2.46),
    ("N(0, 1)", "linear"): (0.0004, 6.47),
    ("N(0, 1)", "mantissa"): (0.0104, 6.89),
    ("N(0, 1)", "static"): (0.0093, 6.3),
    ("N(0, 10^2)", "dynamic"): (0.049, 2.49),
    ("N(0, 10^2)", "linear"): (0.041, 6.44),
    ("N(0, 10^2)", "mantissa"): (1.066, 7.19),
    ("N(0, 10^2)", "static"): (0.926, 6.28),
    ("N(0, 0.2^2)", "dynamic"): (0.000018, 2.45),
    ("N(0, 0.2^2)", "linear"): (0.000015, 6.15),
    ("N(0, 0.2^2)", "mantissa"): (0.00055, 8.26),
    ("N(0, 0.2^2)", "static"): (0.00022, 6.58),
}
"""Table 2: the column "mean absolute error", and the mean relative error in per cent."""

SIGMAS: Final = {"U(0, 1)": None, "N(0, 1)": 1.0, "N(0, 10^2)": 10.0, "N(0, 0.2^2)": 0.2}
DISTRIBUTIONS: Final = tuple(SIGMAS)

Rounding = Callable[[Float64Array], Float64Array]


@dataclass(frozen=True)
class Errors(Finding):
    """Mean errors over a sample; the relative one, in per cent, over values other than 0."""

    mean_absolute: float
    mean_squared: float
    mean_relative_percent: float


@dataclass(frozen=True)
class Row(Finding):
    """One line of the table: a distribution, a type, what is printed, and our errors by reading."""

    distribution: str
    type: str
    printed_absolute: float
    printed_relative_percent: float
    errors: dict[str, Errors]


@dataclass(frozen=True)
class Findings(Finding):
    """Table 2 made again: numbers in each sample, their seed, and the rows."""

    sample: int
    seed: int
    rows: list[Row]

    def shown(self) -> Iterator[Table | str]:
        """See :meth:`Finding.shown`."""
        what = [words("distribution"), words("type")]
        relative, absolute = [], []
        for row in self.rows:
            nearest, search, other = row.errors["nearest"], row.errors["search"], row.errors.get("middle_cut")
            percents = [row.printed_relative_percent, search.mean_relative_percent, nearest.mean_relative_percent]
            cut = f"{other.mean_relative_percent:.2f}" if other else NOTHING
            relative.append([row.distribution, row.type, *(f"{one:.2f}" for one in percents), cut])
            errors = (search.mean_squared, nearest.mean_squared, nearest.mean_absolute)
            absolute.append(
                [row.distribution, row.type, f"{row.printed_absolute:g}", *(f"{one:.2g}" for one in errors)]
            )
        title = f"Mean relative error in %, {self.sample} numbers each"
        yield Table(title, [*what, *numbers("printed", "search", "nearest", "cut at 0.55")], relative)
        title = "Printed absolute error; mean squared; mean absolute"
        yield Table(title, [*what, *numbers("printed", "search²", "nearest²", "nearest")], absolute)


class EightBit(AllOrNothing[Findings]):
    """Every type on every distribution."""

    def __init__(self, asked: EightBitSettings) -> None:
        self._sample, self._seed = asked.sample, asked.seed

    def measure(self, progress: Progress) -> None:
        """Measure every row of the table."""
        rows: list[Row] = []
        progress(f"measuring 8-bit types on {self._sample} numbers of each distribution")
        for row in measure_table(self._sample, self._seed):
            rows.append(row)
            progress(f"{row.distribution}, {row.type}", len(rows) / len(PRINTED))
        self.found = Findings(self._sample, self._seed, rows)


def sample_of(distribution: str, count: int, seed: int) -> Float32Array:
    """Return float32[count] of one of :data:`DISTRIBUTIONS`, the same for a seed."""
    random, sigma = np.random.default_rng(seed), SIGMAS[distribution]
    if sigma is None:
        return random.random(count, np.float32)
    return random.standard_normal(count, np.float32) * np.float32(sigma)


def measure_table(count: int, seed: int) -> Iterator[Row]:
    """Yield the rows of Table 2 from samples of ``count`` numbers; the paper's are :data:`PAPER_SAMPLE`."""
    for distribution in DISTRIBUTIONS:
        sample = np.abs(sample_of(distribution, count, seed))
        offset = 100.0 if distribution == "N(0, 10^2)" else 10.0
        for kind in TYPES:
            scale = float(sample.max()) if kind in ("dynamic", "linear") else offset
            errors = {
                "nearest": errors_of(sample, scale, nearest(kind)),
                "search": errors_of(sample, scale, search(kind)),
            }
            if kind in ("dynamic", "static"):
                errors["middle_cut"] = errors_of(sample, scale, nearest(kind, MIDDLE_CUT))
            yield Row(distribution, kind, *PRINTED[distribution, kind], errors)


def errors_of(sample: Float32Array, scale: float, rounding: Rounding) -> Errors:
    """Return how far ``scale * rounding(sample / scale)`` is from a sample of magnitudes."""
    absolute = squared = relative = 0.0
    nonzero = int(np.count_nonzero(sample))
    for first in range(0, sample.size, CHUNK):
        part = sample[first : first + CHUNK].astype(np.float64)
        error = np.abs(rounding(part / scale) * scale - part)
        absolute += float(error.sum())
        squared += float(np.square(error).sum())
        relative += float((error[part > 0] / part[part > 0]).sum())
    return Errors(absolute / sample.size, squared / sample.size, 100 * relative / nonzero if nonzero else 0.0)


def nearest(kind: str, first_cut: Fraction = FIRST_CUT) -> Rounding:
    """Return the function that rounds to the nearest number of a type."""
    numbers = np.unique(np.array([float(number) for number in magnitudes(kind, first_cut)]))
    middles = (numbers[1:] + numbers[:-1]) / 2
    return lambda values: numbers[np.searchsorted(middles, values)]


def search(kind: str) -> Rounding:
    """Return the function that rounds to the number of a type that the paper's search seems to find.

    The path of the search depends only on how many entries are below the value. So the function runs the search once
    for each count, and then looks up each value's count.
    """
    numbers = np.array(sorted(float(number) for number in magnitudes(kind)))
    ends = [_search_end(case, numbers.size) for case in range(numbers.size + 1)]
    at = np.array([numbers[end] for end, _ in ends])
    lower = np.array([numbers[below] for _, below in ends])
    is_above = np.array([case > end for case, (end, _) in enumerate(ends)])
    limits = np.where(is_above, 0.0, (at + lower) / 2)

    def find(values: Float64Array) -> Float64Array:
        case = np.searchsorted(numbers, values, side="left")
        return np.where(values < limits[case], lower[case], at[case])

    return find


def _search_end(entries_below: int, entries: int) -> tuple[int, int]:
    """Return where the search stops, and the last entry that it found to be lower, for a value above that many."""
    end, below, step = entries // 2, 0, entries // 4
    while step:
        if entries_below > end:
            below, end = end, end + step
        else:
            end -= step
        step //= 2
    return end, below
