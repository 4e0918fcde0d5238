"""The NICs of one testbed: forks of a process that loads the kernels once, however many NICs there are.

Loading the kernels takes a second of a core, compiling them minutes. This program does it, becomes each NIC by a fork,
and ends when all of them forward. The NICs go on, each a process of its own that runs ``netoffload_daemon``. They share
the memory of the kernels.

Run as a program: ``python -m netoffload_daemon.prefork FORMAT``, with the format of its log. It loads, says so by the
line ``{}``, and reads standard input to its end: a JSON list of :class:`Asked`, as objects; nothing, if no NIC is
wanted. Standard output gets lines of JSON, in which ``nic`` is a place in that list: ``{"nic": 0, "pid": 4711}``, then
``{"nic": 0, "exit_code": null}`` when it forwards, or its exit code if it ended instead. While kernels are compiled,
lines like ``{"compiling": "compiling kernels: 13 s"}`` come before.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
from dataclasses import dataclass
from typing import Final

from netoffload import log
from netoffload.compiled.progress import PROGRESS
from netoffload_daemon.__main__ import compile_loop, main

STDIN: Final = 0
OUTPUTS: Final = (1, 2)


@dataclass(frozen=True)
class Asked:
    """A NIC to start.

    Attributes:
        argv: of ``netoffload_daemon``, without ``--ready-fd``.
        log_path: its standard output and error are appended to this file.
    """

    argv: list[str]
    log_path: str


def become(nic: Asked) -> None:
    """Take on all that makes this fork a NIC, but for running it.

    Raises:
        OSError: its log cannot be written.
    """
    os.setsid()
    for path, flags, numbers in (
        (os.devnull, os.O_RDONLY, (STDIN,)),
        (nic.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, OUTPUTS),
    ):
        opened = os.open(path, flags, 0o644)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)


def say(**fields: int | str | None) -> None:
    """Write a line for the process that started this one."""
    print(json.dumps(fields), flush=True)


def fork_all(all_asked: list[Asked]) -> list[str]:
    """Return in each fork the arguments of its NIC; in this process none, when each NIC forwards or has ended."""
    waiting: dict[int, tuple[int, int]] = {}
    for place, nic in enumerate(all_asked):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (*waiting, reader):
                os.close(fd)
            become(nic)
            return [*nic.argv, "--ready-fd", str(writer)]
        os.close(writer)
        waiting[reader] = place, pid
        say(nic=place, pid=pid)
    while waiting:
        for reader in select.select(list(waiting), [], [])[0]:
            place, pid = waiting.pop(reader)
            forwards = os.read(reader, 1) != b""
            say(nic=place, exit_code=None if forwards else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.close(reader)
    return []


def run(log_format: str) -> int:
    """Load, fork, and in a fork be a NIC; return the exit code."""
    log.choose(log_format)
    PROGRESS.report_to(lambda line: say(compiling=line))
    compile_loop()
    say()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    argv = fork_all([Asked(**words) for words in json.loads(sys.stdin.read() or "[]")])
    return main(argv) if argv else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
