"""mpi4py's own tests for buffers over a CompComm, if they are on this machine: see ``mpi4py_suite``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = os.environ.get("NETOFFLOAD_MPI4PY_TESTS")


@pytest.mark.mpi
@pytest.mark.skipif(not TESTS, reason="$NETOFFLOAD_MPI4PY_TESTS names no folder: test of mpi4py's sources")
def test_mpi4pys_own_tests_pass_through_comp() -> None:
    command = [sys.executable, str(Path(__file__).parent / "mpi4py_suite.py"), "--only-float32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
