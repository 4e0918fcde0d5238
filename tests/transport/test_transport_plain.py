"""The whole transport between processes without MPI: set-up, collectives, messages, a death."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 3
VICTIM = 1


@pytest.mark.slow
def test_a_program_may_hide_numba_before_its_first_call() -> None:
    """As mpi4py's tests do, which look for GPUs."""
    code = (
        "import sys, numpy as np; from netoffload.transport import *;"
        "from netoffload.transport.local_ranks import run_tcp; from netoffload.collectives import ring_allreduce;"
        "sys.modules['numba'] = None; ones = [np.ones(100_000, np.float32) for _ in range(2)];"
        "gather = lambda value: [value]; gather.rank, gather.size, gather.group = 0, 1, None;"
        "set_up(gather, 'localhost', Settings('bounded', 10, offload='inline'), DataPlane).exchange.close();"
        "run_tcp(2, lambda exchange: ring_allreduce(exchange, ones[exchange.rank], tagged=False));"
        "print(ones[1][-1], sys.modules['numba'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "2.0 None\n", done.stderr


@pytest.mark.slow
def test_processes_without_mpi_sum_talk_and_name_the_one_that_is_killed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        sys.executable,
        str(Path(__file__).with_name("programs") / "plain_ranks.py"),
        str(VICTIM),
        *[f"127.0.0.1:{port}"] * SIZE,
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = {found.pop("rank"): found for found in map(json.loads, done.stdout.splitlines())}
    assert said.keys() == {0, 2}
    for rank, found in said.items():
        assert found.pop("told").startswith(f"rank {VICTIM} ")
        assert found == {"sums": [6.0] * 3, "message": [(rank - 1) % SIZE] * 3, "calls": 2, "has_mpi": False}
