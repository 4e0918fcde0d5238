"""Ranks of tests are forks of one process that has done the imports, as with ``netoffload train``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest
from commands import PYTHONPATH

from netoffload.testbed import prepared_ranks

IMPORTED: Final = (
    "mpi4py.run",
    "netoffload.collectives.reference",
    "netoffload.collectives.samples",
    "netoffload.methods",
    "netoffload.transport.driver:prepare",
)


@contextlib.contextmanager
def forks_of(*modules: str) -> Iterator[None]:
    """Let ranks be forks of a server that has also imported some modules."""
    with pytest.MonkeyPatch.context() as patch:
        # Ranks are processes of their own, and pytest's `pythonpath` is not theirs.
        patch.setenv("PYTHONPATH", PYTHONPATH)
        with prepared_ranks((*IMPORTED, *modules)):
            yield


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    """For modules that import it: their ranks are forks."""
    with forks_of():
        yield
