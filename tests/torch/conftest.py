"""What tests for torch share: a process from which their programs are forked."""

import sys
from collections.abc import Iterator

import pytest

from tests.torch.launcher import Launcher, loaded


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with loaded() as made:
        yield made


def pytest_sessionfinish() -> None:
    """Forget states to which no gradient came: each would say so when the worker ends."""
    if (module := sys.modules.get("netoffload.torch.first_gradient")) is not None:
        module._waiting.clear()
