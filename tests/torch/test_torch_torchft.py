"""torchft's replicas over our process group: its real manager and lighthouse; one replica dies and comes back."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.shared.quick_cases import by_day

DIES = Path(__file__).with_name("programs") / "dies_in_forward.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "torchft_ddp.py"
REPLICAS = 3
PASSES = 10
"""Forward passes of the replica that dies: it is killed in the last one."""
TIMEOUT_S = 100


def reaches_itself() -> bool:
    """Whether this host's name leads to its IPv6 sockets: torchft's servers listen there, and give their address so."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
            socket.create_connection((socket.gethostname(), server.getsockname()[1]), 5).close()
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="no torchft: install netoffload[engines]"),
    pytest.mark.skipif(not reaches_itself(), reason="the host's name does not lead to an IPv6 socket of its own"),
]


class Replica:
    """One process of the example, with torch's store that its launcher would have."""

    def __init__(self, number: int, lighthouse: str, words: list[str], *, dies: bool = False) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not declared public

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        own = {"TORCHFT_LIGHTHOUSE": lighthouse, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port)}
        self._log = log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the replica
        self.process = subprocess.Popen(
            [
                sys.executable,
                *([str(DIES), str(PASSES)] if dies else []),
                str(EXAMPLE),
                "--replica",
                str(number),
                *words,
            ],
            env=os.environ | own | {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def end(self) -> Any:
        """Return the steps by their numbers of replicas, and the digest of the parameters at the end."""
        printed, _ = self.process.communicate(timeout=TIMEOUT_S)
        self._log.seek(0)
        assert self.process.returncode == 0, self._log.read()[-3000:]
        digest = re.search(r"parameters (\w{16})", printed)
        assert digest is not None
        steps = [int(step) for step in re.findall(rf"^step (\d+): {REPLICAS} replicas", printed, re.MULTILINE)]
        return steps, digest[1]


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.parametrize("words", by_day([["--steps", "40"], ["--steps", "20", "--every", "4"]], [["--steps", "40"]]))
def test_the_others_outlive_a_replica_that_dies_and_agree_with_it_when_it_is_back(words: list[str]) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=REPLICAS, join_timeout_ms=2000, heartbeat_timeout_ms=1000, quorum_tick_ms=50
    )
    replicas = []
    try:
        replicas = [
            Replica(number, lighthouse.address(), words, dies=number == REPLICAS - 1) for number in range(REPLICAS)
        ]
        replicas[-1].process.communicate(timeout=TIMEOUT_S)
        assert replicas[-1].process.returncode == -signal.SIGKILL
        replicas[-1] = Replica(REPLICAS - 1, lighthouse.address(), words)  # the others wait for three
        ends = [replica.end() for replica in replicas]
    finally:
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()
        lighthouse.shutdown()
    assert len({digest for _, digest in ends}) == 1
    assert ends[-1][0][0] > 1  # it took the others' state, and did not begin anew
    assert all(steps[-1] == int(words[1]) for steps, _ in ends)


def test_a_call_that_fails_raises_but_for_an_allreduce_which_says_so_in_its_future() -> None:
    from torch.distributed import AllreduceOptions, BarrierOptions, DistBackendError, TCPStore  # type: ignore[attr-defined]

    from netoffload.torch.torchft import ProcessGroupNetOffload

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = [ProcessGroupNetOffload() for _ in range(2)]
    address = f"127.0.0.1:{store.port}/quorum"
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda rank: groups[rank].configure(address, str(rank), rank, 2), range(2)))
        tensors = [torch.full((3,), float(rank)) for rank in range(2)]
        works = list(threads.map(lambda rank: groups[rank].allreduce([tensors[rank]], AllreduceOptions()), range(2)))
    assert [work.wait() for work in works] == [True, True]
    assert torch.equal(tensors[0], torch.ones(3))
    groups[1].abort()
    failed = groups[0].allreduce([torch.ones(3)], AllreduceOptions())
    assert not failed.wait()
    with pytest.raises(RuntimeError):
        failed.get_future().wait()
    with pytest.raises(DistBackendError):
        groups[0].barrier(BarrierOptions()).wait()
    groups[0].shutdown()
