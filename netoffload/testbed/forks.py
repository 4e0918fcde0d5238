"""The owner's side of a fork server: ranks that start with all their imports done.

Whoever starts ranks of one and the same program several times enters :func:`prepared_ranks` once. Importing goes on
beside whatever comes next; ranks that start earlier wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from netoffload.errors import TestbedError
from netoffload.testbed import fork_client, fork_server

ENV_FORK_SERVER: Final = "NETOFFLOAD_FORK_SERVER"
"""In a rank's environment: the socket of the server that it is to be a fork of."""

RANK_ENV: Final = {
    "OMP_NUM_THREADS": "1",  # ranks share this machine's cores
    "PYTHONUNBUFFERED": "1",
}
"""What every rank's environment has, unless the user's says otherwise."""

BACKLOG: Final = 1024
"""Ranks that may wait for the server's imports."""


class ForkServer:
    """A fork server as a context manager.

    Attributes:
        env: for ranks that are to be forks; empty outside of the context.
    """

    def __init__(self, modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Prepare a server.

        Args:
            modules: what it imports: nothing that starts threads, or opens what ranks must not share.
            env: in which it imports; None: this process's. A rank to whose imports its own says something else is no
                fork.
        """
        self._modules = modules
        self._environment = {**RANK_ENV, **(os.environ if env is None else env)}
        self._process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] = {}

    def __enter__(self) -> ForkServer:
        """Start it, without waiting for its imports.

        Raises:
            TestbedError: it cannot be started.
        """
        try:
            folder = tempfile.mkdtemp(prefix="netoffload-forks-")
            path = Path(folder, "socket")
            said = {"environment": self._environment, "modules": list(self._modules)}
            path.with_name(fork_client.SERVER_FILE).write_text(json.dumps(said), encoding="utf-8")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen(BACKLOG)
                words = [str(listener.fileno()), folder, *self._modules]
                self._process = subprocess.Popen(
                    [sys.executable, "-P", fork_server.__file__, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    env=self._environment,
                    start_new_session=True,  # a Ctrl-C is for its owner
                )
        except OSError as error:
            raise TestbedError(f"cannot start the fork server: {error.strerror}") from error
        self.env = {ENV_FORK_SERVER: str(path)}
        return self

    def __exit__(self, *_: object) -> None:
        """End it, amid its imports as well, and with it every rank that is left."""
        assert self._process is not None
        with self._process as process:
            process.terminate()
        shutil.rmtree(Path(self.env[ENV_FORK_SERVER]).parent, ignore_errors=True)
        self.env = {}


@contextlib.contextmanager
def prepared_ranks(modules: Collection[str]) -> Iterator[None]:
    """Have ranks that this process starts, or a child of it, be forks that have imported some modules.

    A server that the environment names already is taken, if it has imported them all.

    Args:
        modules: as of :class:`ForkServer`.

    Raises:
        TestbedError: a server cannot be started.
    """
    path = os.environ.get(ENV_FORK_SERVER)
    if path is not None and set(modules) <= _imported_by(path):
        yield
        return
    with ForkServer(list(modules)) as forks:
        os.environ.update(forks.env)
        try:
            yield
        finally:
            del os.environ[ENV_FORK_SERVER]
            if path is not None:
                os.environ[ENV_FORK_SERVER] = path


def _imported_by(path: str) -> set[str]:
    """Return the modules that the server at a socket has imported; none if there is none any more."""
    try:
        said = json.loads(Path(path).with_name(fork_client.SERVER_FILE).read_text(encoding="utf-8"))
    except OSError:
        return set()
    return set(said["modules"])


def python_argv(env: Mapping[str, str]) -> list[str]:
    """Return what starts ``python -m mpi4py`` for a rank with this environment: a new interpreter, or a fork."""
    if path := env.get(ENV_FORK_SERVER):
        return [sys.executable, "-I", "-S", fork_client.__file__, path]
    return [sys.executable, "-m", "mpi4py"]
