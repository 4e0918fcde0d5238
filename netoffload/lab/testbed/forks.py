"""The owner's side of a fork server: ranks and NICs that start with all their imports done.

A command that starts ranks or testbeds with NICs several times enters :func:`prepared_ranks` once. The server imports
while the command goes on; ranks that start earlier wait for the imports.
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
from netoffload.lab.testbed import fork_client, fork_server
from netoffload.lab.testbed.fork_client import RANK_ENV

ENV_FORK_SERVER: Final = "NETOFFLOAD_FORK_SERVER"
"""Variable in a rank's environment: the socket of the server that forks it."""

NIC_IMPORTS: Final = ("netoffload_daemon.__main__:compile_loop",)
"""What a server calls so that NICs are forks of it too."""

ROOM: Final = {"NETOFFLOAD_ROOM": 4096 * "-"}
"""Makes the server's first environment so much longer, in octets, than that of a fork, which takes its place."""

BACKLOG: Final = 1024
"""Most ranks that may wait for the server's imports."""


class ForkServer:
    """A fork server as a context manager.

    Attributes:
        env: variables for ranks that the server forks; empty outside of the context.
    """

    def __init__(self, modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Prepare a server.

        Args:
            modules: modules to import, or ``MODULE:FUNCTION`` to call; they must start no threads, and open nothing
                that ranks must not share.
            env: environment of the imports; None: this process's. A rank whose environment would change its imports
                becomes no fork.
        """
        self._modules = modules
        self._environment = {**RANK_ENV, **(os.environ if env is None else env)}
        self._process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] = {}

    def __enter__(self) -> ForkServer:
        """Start the server, without waiting for its imports.

        Raises:
            TestbedError: the server cannot be started.
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
                    env={**self._environment, **ROOM},
                    start_new_session=True,  # a Ctrl-C is for its owner
                )
        except OSError as error:
            raise TestbedError(f"cannot start the fork server: {error.strerror}") from error
        self.env = {ENV_FORK_SERVER: str(path)}
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, even during its imports, and every rank that is left."""
        assert self._process is not None
        with self._process as process:
            process.terminate()
        shutil.rmtree(Path(self.env[ENV_FORK_SERVER]).parent, ignore_errors=True)
        self.env = {}


@contextlib.contextmanager
def prepared_ranks(modules: Collection[str]) -> Iterator[None]:
    """Let all ranks that this process or its children start be forks of a server that has imported some modules.

    With :data:`NIC_IMPORTS` the NICs are forks too. If the environment names a server that has imported all of the
    modules, that one is used.

    Args:
        modules: as in :class:`ForkServer`.

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
    """Return the modules that the server at a socket has imported; none if the server has ended."""
    try:
        said = json.loads(Path(path).with_name(fork_client.SERVER_FILE).read_text(encoding="utf-8"))
    except OSError:
        return set()
    return set(said["modules"])


def python_argv(env: Mapping[str, str]) -> list[str]:
    """Return the command that starts ``python -m mpi4py`` for a rank: a new interpreter, or a client for a fork."""
    return [*_interpreter(env.get(ENV_FORK_SERVER)), "-m", "mpi4py"]


def interpreter_argv(modules: Collection[str]) -> list[str]:
    """Return the command that starts ``python`` for a program; ``-m MODULE`` must follow.

    Args:
        modules: what our environment's server must have imported for the program to become its fork.
    """
    path = os.environ.get(ENV_FORK_SERVER)
    return _interpreter(path if path and set(modules) <= _imported_by(path) else None)


def _interpreter(path: str | None) -> list[str]:
    return [sys.executable, "-I", "-S", fork_client.__file__, path] if path else [sys.executable]
