"""The number of examples of a property test: the profile of ``tests/conftest.py`` gives the share to run."""

from hypothesis import settings

ALL_PERCENT = 100


def examples(count: int) -> int:
    """Return the profile's share of ``count``, of which a night runs all, ``./scripts/test`` a third."""
    return max(1, count * settings().max_examples // ALL_PERCENT)
