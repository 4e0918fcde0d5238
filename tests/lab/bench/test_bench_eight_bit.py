"""Table 2 of the 8-bit paper: the readings that come near its errors, and the nearest number's smaller errors."""

import json

import numpy as np
import pytest

from netoffload.compressors import Layout
from netoffload.compressors.eight_bit import EightBit
from netoffload.compressors.tables import TYPES, magnitudes
from netoffload.lab.bench.eight_bit import (
    DISTRIBUTIONS,
    PRINTED,
    Row,
    errors_of,
    measure_table,
    nearest,
    sample_of,
    search,
)
from tests.shared.commands import netoffload


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    return {(row.distribution, row.type): row for row in measure_table(200_000, seed=1)}


@pytest.mark.slow
def test_every_printed_row_is_measured(rows: dict[tuple[str, str], Row]) -> None:
    assert rows.keys() == PRINTED.keys()


def test_the_dynamic_tree_is_at_least_as_good_as_printed(rows: dict[tuple[str, str], Row]) -> None:
    for distribution in DISTRIBUTIONS:
        row = rows[distribution, "dynamic"]
        assert row.errors["nearest"].mean_relative_percent <= row.printed_relative_percent
        assert row.errors["nearest"].mean_relative_percent < row.errors["middle_cut"].mean_relative_percent


@pytest.mark.parametrize("kind", ["static", "mantissa"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_search_has_the_printed_errors(rows: dict[tuple[str, str], Row], distribution: str, kind: str) -> None:
    """What is not divided by the sample's largest magnitude does not depend on the sample's size."""
    row = rows[distribution, kind]
    assert row.errors["search"].mean_relative_percent == pytest.approx(row.printed_relative_percent, rel=0.05)
    assert row.errors["search"].mean_squared == pytest.approx(row.printed_absolute, rel=0.13)


@pytest.mark.parametrize("kind", TYPES)
def test_the_search_ends_beside_the_value(kind: str) -> None:
    numbers = np.unique([float(number) for number in magnitudes(kind)])
    values = np.random.default_rng(5).random(5000) * numbers[-1]
    above = np.searchsorted(numbers, values)
    found = search(kind)(values)
    assert np.all((found == numbers[above]) | (found == numbers[np.maximum(above - 1, 0)]))
    assert np.all(np.abs(found - values) >= np.abs(nearest(kind)(values) - values))
    assert 0.15 < np.mean(np.abs(found - values) > np.abs(nearest(kind)(values) - values)) < 0.35


@pytest.mark.parametrize("kind", TYPES)
def test_nearest_is_what_the_compressor_does(kind: str) -> None:
    values = np.abs(sample_of("N(0, 1)", 20_000, 2))
    by_max = kind in ("dynamic", "linear")
    compressor = EightBit(kind) if by_max else EightBit(kind, norm="offset", offset=1)
    layout = Layout.flat(values.size)
    decoded = compressor.decode(compressor.encode(values, compressor.make_state(layout)), layout)
    errors = errors_of(values, float(values.max()) if by_max else 10.0, nearest(kind))
    assert np.abs(decoded.astype(np.float64) - values).mean() == pytest.approx(errors.mean_absolute, rel=1e-4)


def test_errors_of_zeros_and_of_one_value() -> None:
    assert errors_of(np.zeros(3, np.float32), 1.0, nearest("linear")).mean_relative_percent == 0
    assert errors_of(np.array([0.25], np.float32), 1.0, lambda values: values + 0.125).mean_relative_percent == 50


def test_the_command_prints_json_and_nothing_else() -> None:
    done = netoffload("bench", "eight-bit", "--sample", "1000", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["sample"] == 1000
    assert len(report["rows"]) == len(PRINTED)
