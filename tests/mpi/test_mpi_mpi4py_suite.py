"""mpi4py's own tests for buffers over a CompComm, if they are on this machine: see ``mpi4py_suite``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi import mpi4py_suite


@pytest.fixture
def sources() -> Iterator[Path]:
    """The folder of mpi4py's tests: the given one, else the one that pip downloads."""
    given = mpi4py_suite.given_tests()
    try:
        with mpi4py_suite.tests_folder(given) as folder:
            yield folder
    except mpi4py_suite.NoSourcesError as error:
        pytest.skip(str(error))


@pytest.mark.mpi
@pytest.mark.slow
def test_mpi4pys_own_tests_pass_through_comp(sources: Path) -> None:
    program = str(Path(__file__).parent / "mpi4py_suite.py")
    command = [sys.executable, program, "--only-float32", "--tests", str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
