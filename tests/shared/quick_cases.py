"""Cases of a test of which ``./scripts/check`` runs some, and ``./scripts/test`` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_quick(cases: Iterable[object], quick: Collection[object]) -> list[Any]:
    """Return ``cases`` for ``parametrize``; all but the ``quick`` ones are marked as slow."""
    found = list(cases)
    assert all(case in found for case in quick)
    return [pytest.param(case, marks=() if case in quick else pytest.mark.slow) for case in found]
