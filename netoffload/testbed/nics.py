"""The NIC processes of a testbed: the first one started alone, then all others at once.

A NIC writes ``ready`` to a pipe when it forwards. The first one on a machine compiles its loop into the cache (minutes
of one core), and the others load it from there. Started together, all of them would compile. Their output goes to logs
in the run's state directory. If a NIC does not start, the error has the end of its log.

A NIC may be restarted amid traffic: its node's device and, in the state directory, its flow table stay.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from netoffload import log
from netoffload.compiled.cache import COMPILING
from netoffload.errors import TestbedError, UsageError
from netoffload.testbed.journal import Journal, RunRecord, read_run
from netoffload.testbed.plan import NodePlan, Plan, nic_argv
from netoffload.testbed.processes import ProcessId, end, identify, is_alive
from netoffload.wire.authentication import KEY_LEN

READY_TIMEOUT_S: Final = 900.0
"""Compiling takes two and a half minutes on a core of its own; a busy or slow machine needs several times that."""
COMPILING_AFTER_S: Final = 5.0
"""With its kernels compiled, a NIC is ready sooner, even on a busy machine."""
READY_LINE: Final = b"ready\n"
LOG_TAIL_CHARACTERS: Final = 400


@dataclass(frozen=True)
class Restart:
    """One NIC that took over from another.

    Attributes:
        node: name of the node.
        pid_before: pid of the old NIC; None if it had ended already.
        pid: pid of the new NIC.
        gone_s: seconds in which no NIC forwarded.
    """

    node: str
    pid_before: int | None
    pid: int
    gone_s: float


def start(
    plan: Plan, journal: Journal, started: list[subprocess.Popen[bytes]], progress: Callable[[str], None]
) -> None:
    """Start the NIC of every node and return when all of them forward.

    Args:
        plan: the testbed, whose devices exist.
        journal: gets every process as soon as it has a pid.
        started: gets every process too, so that the caller can reap them even after an error.
        progress: called with :data:`~netoffload.compiled.cache.COMPILING` if a NIC takes long.

    Raises:
        TestbedError: a NIC ended, or was not ready in time; the message has the end of its log.
    """
    if plan.settings.nic is not None and plan.settings.nic.keyed:
        plan.key_path.touch(mode=0o600)
        plan.key_path.write_text(secrets.token_hex(KEY_LEN) + "\n")
    for nodes in (plan.nodes[:1], plan.nodes[1:]):
        _start_together(plan, nodes, journal, started, progress)


def restart(plan: Plan, node: NodePlan, started: list[subprocess.Popen[bytes]], *, kill: bool = False) -> Restart:
    """End the NIC of a node, start another one with the same settings in its place, and return when it forwards.

    The journal gets the new process, so the run is taken down as before. A NIC that has ended already is replaced too.

    Args:
        plan: a testbed that is up.
        node: one of its nodes.
        started: NICs that are children of this process; gets the new one, and loses those that have ended.
        kill: end the old one with SIGKILL; else it may first send what it holds.

    Raises:
        UsageError: the testbed was built without NICs.
        TestbedError: the run is not up, or the new NIC ended or was not ready in time; then the node has no NIC.
    """
    if plan.settings.nic is None:
        raise UsageError(f"run {plan.run_id} has no NICs: it was built with --no-nic")
    record = read_run(plan.state_dir)
    if record is None or not record.ready:
        raise TestbedError(f"run {plan.run_id} is not up: `netoffload status` lists those that are")
    old = _nics(record).get(node.name)
    ended = [old] if old is not None and is_alive(old) else []
    end(ended, kill=kill)
    since_s = time.monotonic()
    new: list[subprocess.Popen[bytes]] = []
    try:
        _start_together(plan, [node], Journal(plan.state_dir), new)
    except BaseException:
        end(process for process in (identify(child.pid) for child in new) if process is not None)
        raise
    finally:
        started[:] = [child for child in started if child.poll() is None] + new
    return Restart(node.name, ended[0].pid if ended else None, new[0].pid, time.monotonic() - since_s)


def states(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the pid of every node's NIC, and whether it runs, by node name."""
    return {name: {"pid": process.pid, "alive": is_alive(process)} for name, process in _nics(record).items()}


def check_alive(plan: Plan, nodes: Iterable[NodePlan]) -> None:
    """Refuse to start anything on nodes whose NIC has ended: their devices still exist, but carry nothing.

    Raises:
        TestbedError: a NIC has ended, or the run is gone.
    """
    record = read_run(plan.state_dir)
    if record is None:
        raise TestbedError(f"run {plan.run_id} is not up: `netoffload status` lists those that are")
    known = states(record)
    for node in nodes:
        if node.name in known and not known[node.name]["alive"]:
            raise TestbedError(
                f"the NIC of {node.name} in run {plan.run_id} has ended (its log: {node.log_path}): "
                f"`netoffload restart {plan.run_id}/{node.name}` starts another one"
            )


def _nics(record: RunRecord) -> dict[str, ProcessId]:
    """Return the newest NIC of every node that has one, by node name."""
    return {name.removeprefix("nic "): process for name, process in record.processes if name.startswith("nic ")}


def _start_together(
    plan: Plan,
    nodes: Sequence[NodePlan],
    journal: Journal,
    started: list[subprocess.Popen[bytes]],
    progress: Callable[[str], None] = lambda _phrase: None,
) -> None:
    waiting: dict[int, tuple[NodePlan, subprocess.Popen[bytes]]] = {}
    try:
        for node in nodes:
            read_fd, write_fd = os.pipe()
            try:
                process = _start_one(plan, node, write_fd)
            except BaseException:
                os.close(read_fd)
                raise
            finally:
                os.close(write_fd)
            started.append(process)
            waiting[read_fd] = (node, process)
            identity = identify(process.pid)
            if identity is not None:
                journal.append("process", name=f"nic {node.name}", pid=identity.pid, start_ticks=identity.start_ticks)
        _await_ready(waiting, progress)
    finally:
        for read_fd in waiting:
            os.close(read_fd)


def _start_one(plan: Plan, node: NodePlan, ready_fd: int) -> subprocess.Popen[bytes]:
    assert node.log_path is not None
    mark_name, _, mark_value = plan.mark.partition("=")
    command = [sys.executable, "-m", "netoffload_daemon", *nic_argv(plan, node, ready_fd)]
    try:
        with open(node.log_path, "ab") as file:
            if file.tell() > 0:
                file.write(_restarted_line(plan).encode())
                file.flush()
            return subprocess.Popen(
                command,
                env={**os.environ, mark_name: mark_value},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(ready_fd,),
                start_new_session=True,  # a Ctrl-C is for whoever started us; we end our NICs ourselves
            )
    except OSError as error:
        raise TestbedError(f"cannot start the NIC of node {node.name}: {error}") from error


def _restarted_line(plan: Plan) -> str:
    """Return the line that separates a NIC's output in the log from that of the next NIC."""
    form = log.FORMATS[0] if plan.settings.nic is None else plan.settings.nic.log_format
    return log.line(form, "restarted", "this NIC is started again") + "\n"


def _await_ready(waiting: dict[int, tuple[NodePlan, subprocess.Popen[bytes]]], progress: Callable[[str], None]) -> None:
    if waiting and not select.select(list(waiting), [], [], COMPILING_AFTER_S)[0]:
        progress(COMPILING)
    deadline = time.monotonic() + READY_TIMEOUT_S
    said: dict[int, bytes] = dict.fromkeys(waiting, b"")
    while said:
        remaining_s = deadline - time.monotonic()
        readable = select.select(list(said), [], [], max(remaining_s, 0))[0]
        if not readable:
            node, _ = waiting[next(iter(said))]
            raise TestbedError(f"the NIC of node {node.name} was not ready after {READY_TIMEOUT_S:.0f} s{_tail(node)}")
        for read_fd in readable:
            octets = os.read(read_fd, 64)
            said[read_fd] += octets
            if said[read_fd] == READY_LINE:
                del said[read_fd]
            elif not octets or not READY_LINE.startswith(said[read_fd]):
                node, process = waiting[read_fd]
                ended = "ended" if process.poll() is None else f"ended with exit code {process.returncode}"
                raise TestbedError(f"the NIC of node {node.name} {ended} before it was ready{_tail(node)}")


def _tail(node: NodePlan) -> str:
    path = node.log_path or Path(os.devnull)
    lines = [line.strip() for line in path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:].splitlines()]
    text = " | ".join(line for line in lines[-4:] if line)
    return f": {text}" if text else ""
