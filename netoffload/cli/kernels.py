"""All compiled kernels, in parts that processes compile into the cache side by side.

A part is what one program loads: the NIC's loop, what ranks run, each codec by itself. Parts share kernels, which more
than one process then compiles; the longest part decides how long all of it takes.
"""

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from netoffload.errors import SystemRefusedError


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


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent


def compile_all() -> None:
    """Compile every part that the cache lacks, on as many cores as there are."""
    pool = ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"), _ignore_interrupts)
    try:
        parts = {pool.submit(compile_part): name for name, compile_part in PARTS.items()}
        for part in as_completed(parts):
            if error := part.exception():
                raise SystemRefusedError(f"{parts[part]} kernels could not be compiled: {error}") from error
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(cancel_futures=True)
