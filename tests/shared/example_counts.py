"""The number of examples of a property test: the profile of ``tests/conftest.py`` gives the share to run."""

from hypothesis import settings

ALL_PERCENT = 100


def examples(count: int) -> int:
    """Return the profile's share of ``count``, which ``./scripts/test`` asks for compiled kernels."""
    return max(1, count * settings().max_examples // ALL_PERCENT)
