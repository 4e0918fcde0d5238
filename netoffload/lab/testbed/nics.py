"""The NIC processes of a testbed: forks of one process that has loaded the kernels (``forks``), however many they are.

They outlive it, and the process that builds the testbed, and share the memory of the kernels. Their output goes to logs
in the run's state directory. If a NIC does not start, the error has the end of its log.

A NIC may be restarted amid traffic: its node's device and, in the state directory, its flow table stay. The new NIC
loads its kernels before the old one ends.
"""

import contextlib
import fcntl
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload import log
from netoffload.errors import TestbedError, UsageError
from netoffload.lab.testbed import forks
from netoffload.lab.testbed.journal import Journal, RunRecord, read_ready, read_run
from netoffload.lab.testbed.plan import NodePlan, Plan, nic_argv
from netoffload.lab.testbed.processes import ProcessId, end, identify, is_alive
from netoffload.wire.authentication import KEY_LEN

NIC_IMPORTS: Final = ("netoffload_daemon.__main__:compile_loop",)
"""What a server of forks must have for NICs."""
READY_TIMEOUT_S: Final = 900.0
"""Time limit for loading. Compiling takes two and a half minutes of a free core, and several times that on a busy
one."""
LOG_TAIL_CHARACTERS: Final = 400


@dataclass(frozen=True)
class Restart:
    """One NIC that took over from another, which had ended already if ``pid_before`` is None.

    ``gone_s`` are the seconds in which no NIC forwarded.
    """

    node: str
    pid_before: int | None
    pid: int
    gone_s: float


@contextlib.contextmanager
def loading() -> Iterator[str]:
    """Yield the socket of a server that loads the kernels of NICs: our environment's, or one that runs meanwhile."""
    if (path := forks.server_path(NIC_IMPORTS)) is not None:
        yield path
        return
    with forks.fork_server(NIC_IMPORTS) as env:
        yield json.loads(env[forks.ENV_FORK_SERVER])["path"]


def start(server: str, plan: Plan, journal: Journal) -> None:
    """Start the NIC of every node, journal each as soon as it has a pid, and return when all of them forward."""
    with _loaded(server, len(plan.nodes)) as conns:
        if plan.settings.nic is not None and plan.settings.nic.keyed:
            plan.key_path.touch(mode=0o600)
            plan.key_path.write_text(secrets.token_hex(KEY_LEN) + "\n")
        _start_all(conns, plan, plan.nodes, journal)


def restart(plan: Plan, node: NodePlan, progress: Callable[[str], None], *, kill: bool = False) -> Restart:
    """End the NIC of a node, start another one with the same settings in its place, and return when it forwards.

    The journal gets the new process, so the run is taken down as before. A NIC that has ended already is replaced too;
    one that runs may first send what it holds, unless it is to ``kill``. Restarts of one run wait for each other, and
    call ``progress`` with a phrase. After a TestbedError the node has no NIC, or the run is not up.
    """
    if plan.settings.nic is None:
        raise UsageError(f"run {plan.run_id} has no NICs: it was built with --no-nic")
    with _alone(plan, progress), loading() as server, _loaded(server, 1) as conns:
        old = _nics(read_ready(plan.state_dir)).get(node.name)
        # The new NIC's kernels are loaded: from here on nobody forwards, as briefly as possible.
        ended = [old] if old is not None and is_alive(old) else []
        end(ended, kill=kill)
        since_s = time.monotonic()
        [pid] = _start_all(conns, plan, [node], Journal(plan.state_dir))
        gone_s = time.monotonic() - since_s
    return Restart(node.name, ended[0].pid if ended else None, pid, gone_s)


@contextlib.contextmanager
def _alone(plan: Plan, progress: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process restarts a NIC of this run, and keep others from it."""
    read_ready(plan.state_dir)
    with (plan.state_dir / "restart.lock").open("w") as lock:  # closing it unlocks it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another restart of this run")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def states(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the pid of every node's NIC, and whether it runs, by node name."""
    return {name: {"pid": process.pid, "alive": is_alive(process)} for name, process in _nics(record).items()}


def pids(plan: Plan) -> list[int]:
    """Return the pids of a run's NICs."""
    record = read_run(plan.state_dir)
    return [] if record is None else [process.pid for process in _nics(record).values()]


def check_alive(plan: Plan, nodes: Iterable[NodePlan]) -> None:
    """Refuse to start anything on nodes whose NIC has ended: their devices still exist, but carry nothing."""
    read_ready(plan.state_dir)
    wanted = {node.name for node in nodes}
    for node in without_nic(plan):
        if node.name in wanted:
            raise TestbedError(
                f"the NIC of {node.name} in run {plan.run_id} has ended (its log: {node.log_path}): "
                f"`netoffload restart {plan.run_id}/{node.name}` starts another one"
            )


def without_nic(plan: Plan) -> list[NodePlan]:
    """Return the nodes whose NIC has ended."""
    record = read_run(plan.state_dir)
    known = {} if record is None else _nics(record)
    return [node for node in plan.nodes if node.name in known and not is_alive(known[node.name])]


def _nics(record: RunRecord) -> dict[str, ProcessId]:
    """Return the newest NIC of every node that has one, by node name."""
    return {name.removeprefix("nic "): process for name, process in record.processes if name.startswith("nic ")}


@contextlib.contextmanager
def _loaded(server: str, count: int) -> Iterator[list[socket.socket]]:
    """Yield connections to a server whose kernels are loaded, one for each NIC to start."""
    with contextlib.ExitStack() as stack:
        try:
            conns = [stack.enter_context(forks.connect(server, READY_TIMEOUT_S)) for _ in range(count)]
        except (ImportError, OSError) as error:
            raise TestbedError(f"the kernels of NICs cannot be loaded: {_last_lines(str(error))}") from error
        yield conns


def _start_all(conns: Sequence[socket.socket], plan: Plan, nodes: Sequence[NodePlan], journal: Journal) -> list[int]:
    """Return the pids of NICs when all of them forward; if one fails, none is left."""
    assert plan.settings.nic is not None
    name, _, value = plan.mark.partition("=")
    separator = log.line(plan.settings.nic.log_format, "restarted", "this NIC is started again").encode() + b"\n"
    started: list[ProcessId] = []
    pids: list[int] = []
    readers: list[int] = []
    with contextlib.ExitStack() as stack:
        try:
            for conn, node in zip(conns, nodes, strict=True):
                reader, writer = os.pipe()
                stack.callback(os.close, reader)
                readers.append(reader)
                ran_before = _log_path(node).exists()
                with open(os.devnull, "rb") as nothing, open(_log_path(node), "ab", buffering=0) as log_file:
                    if ran_before:
                        log_file.write(separator)
                    argv = ["-m", "netoffload_daemon", *nic_argv(plan, node, writer)]
                    fds = [nothing.fileno(), log_file.fileno(), log_file.fileno(), writer]
                    try:
                        pid, pidfd = forks.ask(conn, argv, {**os.environ, name: value}, fds, outlives=True)
                    finally:
                        os.close(writer)
                os.close(pidfd)
                pids.append(pid)
                if (identity := identify(pid)) is not None:
                    started.append(identity)
                    journal.append("process", name=f"nic {node.name}", pid=pid, start_ticks=identity.start_ticks)
            for conn, node, reader in zip(conns, nodes, readers, strict=True):
                if not select.select([reader], [], [], READY_TIMEOUT_S)[0]:
                    raise TestbedError(f"the NIC of node {node.name} was not ready in time{tail(node)}")
                if not os.read(reader, 1):
                    ended = f"ended with exit code {forks.end_of(conn)} before it was ready"
                    raise TestbedError(f"the NIC of node {node.name} {ended}{tail(node)}")
        except OSError as error:
            end(started)
            raise TestbedError(f"the NICs of run {plan.run_id} cannot be started: {error}") from error
        except BaseException:
            end(started)
            raise
    return pids


def _log_path(node: NodePlan) -> Path:
    assert node.log_path is not None
    return node.log_path


def tail(node: NodePlan) -> str:
    """Return the end of a NIC's log, for an error message."""
    text = _last_lines(_log_path(node).read_text(errors="replace"))
    return f": {text}" if text else ""


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text[-LOG_TAIL_CHARACTERS:].splitlines()]
    return " | ".join(line for line in lines[-4:] if line)
