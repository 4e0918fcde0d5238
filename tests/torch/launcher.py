"""Starts programs that begin with torch loaded: as forks of one process, where the laboratory has a server of forks."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from tests.shared.commands import PYTHONPATH, Done

LOADED = (
    "torch._dynamo",  # DDP would import it in every rank
    "torch.distributed.run",
    "netoffload.torch.backend_group",
    "tests.torch.programs.doors_ranks:load_everything",
    "netoffload.transport.rounds.driver:prepare",
)
LIMIT_S = 110
ENV = {
    "PYTHONPATH": PYTHONPATH,
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


class Launcher:
    def __init__(self, server: dict[str, str], modules: Collection[str]) -> None:
        self.env = {**os.environ, **ENV, **server}
        self._python = [sys.executable]
        if server:
            from netoffload.lab.testbed.forks import python_argv

            self._python = python_argv(modules, self.env)

    def argv(self, program: str, *words: object) -> list[str]:
        return [*self._python, "-m", f"tests.torch.{program}", *map(str, words)]

    def run(self, program: str, *words: object, timeout_s: float = LIMIT_S) -> Done:
        return self._run(self.argv(program, *words), timeout_s)

    def torchrun(self, options: list[str], program: str, *words: object, timeout_s: float = LIMIT_S) -> Done:
        """Run a program as two ranks of torchrun."""
        launch = [*self._python, "-m", "torch.distributed.run", "--nproc-per-node", "2", *options, "--no-python"]
        return self._run([*launch, *self.argv(program, *words)], timeout_s)

    def by_rank(self, program: str, *words: object) -> dict[int, Any]:
        done = self.run(program, *words)
        assert done.returncode == 0, done.stderr[-4000:]
        print(done.stderr)  # a rank that failed is not in the result, and says here why
        return dict(json.loads(done.stdout))

    def _run(self, argv: list[str], timeout_s: float) -> Done:
        try:
            return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=self.env)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"{error}: {bytes(error.stderr or b'').decode()}")


@contextlib.contextmanager
def loaded(modules: Collection[str] = LOADED) -> Iterator[Launcher]:
    """Run the server, where there is one; its imports need not be done yet."""
    with contextlib.ExitStack() as stack:
        server: dict[str, str] = {}
        if importlib.util.find_spec("netoffload.lab") is not None:
            from netoffload.lab.testbed.forks import fork_server

            server = stack.enter_context(fork_server(modules, {**os.environ, **ENV}))
        yield Launcher(server, modules)
