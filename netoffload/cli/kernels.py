"""All compiled kernels, in parts that processes compile into the cache side by side.

A part is what one program loads: the NIC's loop, what ranks run, each codec by itself. Parts share kernels, which more
than one process then compiles; the longest part decides how long all of it takes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import connection
from typing import TYPE_CHECKING, Final

from netoffload.errors import SystemRefusedError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


def _compile_nic() -> None:
    from netoffload_daemon.__main__ import compile_loop

    compile_loop()


def _compile_ranks() -> None:
    """Compile rings, meetings, gatherings, and codecs inline."""
    from netoffload.transport.rounds.driver import prepare

    prepare()


def _compile_codecs() -> None:
    """Compile the codecs of programs that encode and decode whole vectors."""
    from netoffload.codec import CODECS
    from netoffload.collectives.samples import whole_numbers

    values = whole_numbers(0, 8, 1)
    for codec in CODECS.values():
        codec.decode(codec.encode(values, 10), values.size, 10)
        codec.round_trip(values, 10)


PARTS: Final = {"the NIC's": _compile_nic, "the ranks'": _compile_ranks, "the codecs'": _compile_codecs}
"""The longest first."""


def _compile_part(name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent
    PARTS[name]()


def compile_all() -> None:
    """Compile every part that the cache lacks, on as many cores as there are."""
    context = multiprocessing.get_context("spawn")
    left = list(PARTS)
    running: dict[int, tuple[str, SpawnProcess]] = {}
    try:
        while left or running:
            while left and len(running) < (os.cpu_count() or 1):
                name = left.pop(0)
                process = context.Process(target=_compile_part, args=(name,))
                process.start()
                running[process.sentinel] = name, process
            for sentinel in connection.wait(list(running)):
                assert isinstance(sentinel, int)
                name, process = running.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    raise SystemRefusedError(f"{name} kernels could not be compiled: see above")
    finally:
        for _, process in running.values():
            process.kill()
            process.join()
