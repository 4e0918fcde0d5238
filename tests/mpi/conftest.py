"""Fixtures of the tests of CompComm."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A communicator of one rank without a NIC."""
    from mpi4py import MPI

    from netoffload_mpi import CompComm

    monkeypatch.delenv("NETOFFLOAD_CONTROL", raising=False)
    with CompComm(MPI.COMM_SELF) as comm:
        yield comm
