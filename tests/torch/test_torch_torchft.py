"""torchft's replicas over our process group: its real manager and lighthouse; one replica dies and comes back."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import (  # type: ignore[attr-defined]  # TCPStore is not declared public
    AllreduceOptions,
    BarrierOptions,
    DistBackendError,
    TCPStore,
)

from netoffload.torch import BackendOptions
from tests.shared.quick_cases import by_day
from tests.torch.launcher import Launcher

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchft_ddp.py"
REPLICAS = 3
PASSES = 10  # forward passes of the replica that dies: it is killed in the last one
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


def made_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def made_group(options: BackendOptions | None = None) -> Any:
    from netoffload.torch.torchft import ProcessGroupNetOffload  # which needs torchft

    return ProcessGroupNetOffload(options)


class Replica:
    """One process of the example, with torch's store that its launcher would have."""

    def __init__(self, launcher: Launcher, number: int, lighthouse: str, words: list[str], passes: int = 0) -> None:
        self._store = made_store()
        own = {"TORCHFT_LIGHTHOUSE": lighthouse, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port)}
        self._log = log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - lives as long as the replica
        self.process = subprocess.Popen(
            launcher.argv("programs.dies_in_forward", passes, EXAMPLE, "--replica", number, *words),
            env=launcher.env | own | {"RANK": "0", "WORLD_SIZE": "1"},
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
def test_the_others_outlive_a_replica_that_dies_and_agree_with_it_when_it_is_back(
    launcher: Launcher, words: list[str]
) -> None:
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=REPLICAS, join_timeout_ms=2000, heartbeat_timeout_ms=1000, quorum_tick_ms=50
    )
    replicas = []
    try:
        replicas = [
            Replica(launcher, number, lighthouse.address(), words, PASSES if number == REPLICAS - 1 else 0)
            for number in range(REPLICAS)
        ]
        replicas[-1].process.communicate(timeout=TIMEOUT_S)
        assert replicas[-1].process.returncode == -signal.SIGKILL
        replicas[-1] = Replica(launcher, REPLICAS - 1, lighthouse.address(), words)  # the others wait for three
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
    store, groups = made_store(), [made_group() for _ in range(2)]
    configured(groups, store, 1)
    with ThreadPoolExecutor() as threads:
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


def configured(groups: list[Any], store: Any, quorum: int) -> None:
    """Let groups in this process meet as the replicas of a quorum."""
    address = f"127.0.0.1:{store.port}/quorum/{quorum}"
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda rank: groups[rank].configure(address, str(rank), rank, 2, quorum), range(2)))


def summed(groups: list[Any], vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a step of the manager's leaves of one vector per replica."""
    works = [group.allreduce([vector], AllreduceOptions()) for group, vector in zip(groups, vectors, strict=True)]
    assert all(work.wait() for work in works)
    for group in groups:
        assert group.errored() is None
    return vectors


@pytest.mark.parametrize("fragments", [1, 2])
def test_residuals_stay_with_the_replica_that_lives(fragments: int) -> None:
    class Counting:  # as much of a manager as a group asks for
        step = 0

        def current_step(self) -> int:
            return self.step

    manager = Counting()
    options = BackendOptions(compressor="wgt:threshold=1", error_feedback=True, min_octets=0, scale=None)
    store = made_store()

    def made() -> Any:
        group = made_group(options)
        group.follow(manager, fragments)
        return group

    groups = [made(), made()]
    configured(groups, store, 1)
    for manager.step in range(fragments):
        assert not summed(groups, [torch.full((8,), 0.6) for _ in groups])[0].any()
    groups[1].shutdown()
    groups[1] = made()  # the second replica dies, and another one joins
    configured(groups, store, 2)
    for manager.step in range(fragments):
        for total in summed(groups, [torch.full((8,), 0.6) for _ in groups]):
            assert torch.allclose(total, torch.full((8,), 1.2))  # of the first one alone: the other begins with none
        assert not summed(groups, [torch.full((5,), 0.3) for _ in groups])[0].any()  # another vector
    for group in groups:
        group.shutdown()


def test_a_codec_remembers_what_it_rounded_away() -> None:
    options = BackendOptions("packed", 6, offload="inline", error_feedback=True, min_octets=0)
    store, groups = made_store(), [made_group(options) for _ in range(2)]
    configured(groups, store, 1)
    own = [torch.randn(5000, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    totals = [summed(groups, [vector.clone() for vector in own]) for _ in range(20)]
    assert all(torch.equal(*pair) for pair in totals)
    errors = torch.stack([total for total, _ in totals]) - (own[0] + own[1])
    assert 0 < errors.mean(0).norm() < errors.norm(dim=1).min() / 5
    for group in groups:
        group.shutdown()
