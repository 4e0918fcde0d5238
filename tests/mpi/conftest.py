"""What tests with MPI ranks on this machine share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commands import PYTHONPATH
from forked_ranks import forked_ranks


@pytest.fixture(scope="session", autouse=True)
def _forked_ranks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", PYTHONPATH
        )  # ranks are processes of their own, and pytest's `pythonpath` is not theirs
        with forked_ranks():
            yield
