"""Cases of a test of which ``./scripts/check`` runs some, ``./scripts/test`` most, and a night all."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

NIGHT = os.environ.get("NETOFFLOAD_NIGHT") == "1"
"""Whether tests marked ``night`` run (``tests/conftest.py``), and others with more cases or for longer."""


def with_quick(cases: Iterable[object], quick: Collection[object]) -> list[Any]:
    """Return ``cases`` for ``parametrize``; all but the ``quick`` ones are marked as slow."""
    found = list(cases)
    assert all(case in found for case in quick)
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in found]


def by_day(cases: Iterable[object], day: Collection[object]) -> list[Any]:
    """Return ``cases`` for ``parametrize``; all but those of ``day`` are marked for the night."""
    found = list(cases)
    assert all(case in found for case in day)
    return [pytest.param(*_values(case), marks=() if case in day else pytest.mark.night) for case in found]


def _values(case: object) -> tuple[object, ...]:
    """Return the values of a case's parameters: a tuple has one for each."""
    return case if isinstance(case, tuple) else (case,)
