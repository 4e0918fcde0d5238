"""What tests for torch share: a process from which their programs are forked."""

from collections.abc import Iterator

import pytest

from tests.torch.launcher import Launcher, loaded


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with loaded() as made:
        yield made
