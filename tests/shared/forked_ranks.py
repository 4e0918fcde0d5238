"""Ranks, NICs and commands of tests are forks of a process that has done the imports, as with ``netoffload train``."""

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from netoffload.lab.bench.allreduce import IMPORTED as OF_ALLREDUCE
from netoffload.lab.bench.ddp import OF_RANKS, QUIET
from netoffload.lab.testbed import prepared_ranks
from netoffload.lab.testbed.nics import NIC_IMPORTS
from tests.shared.commands import CLI, PYTHONPATH

IMPORTED: Final = (*OF_ALLREDUCE, *OF_RANKS, *NIC_IMPORTS, "netoffload.methods", CLI)


@contextlib.contextmanager
def forks_of(*modules: str) -> Iterator[None]:
    """Let processes be forks of a server that has also imported some modules."""
    with pytest.MonkeyPatch.context() as patch:
        # They are processes of their own, and pytest's `pythonpath` is not theirs.
        patch.setenv("PYTHONPATH", PYTHONPATH)
        with prepared_ranks((*IMPORTED, *modules), QUIET):
            yield


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """For modules that import it; the first one starts the server, which serves all that follow."""
    with forks_of():
        yield
