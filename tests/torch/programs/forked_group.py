"""Ranks of process groups, forked from one process that has loaded everything once."""

import ctypes
import faulthandler
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from netoffload.transport.rounds.driver import prepare
from tests.shared.ports import free_port

STUCK_S = 90  # ranks that take longer say where they are


def error_of(
    call: Callable[[], Any], kind: type[BaseException] | tuple[type[BaseException], ...] = dist.DistBackendError
) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


def strike(victim: int) -> None:
    """Kill a rank once all have left the previous call. Else one of them may still wait there for a third."""
    store, rank = dist.group.WORLD.get_group_store(), dist.get_rank()  # type: ignore[union-attr]
    store.set(f"past/{rank}", "")
    if rank == victim:
        store.wait([f"past/{one}" for one in range(dist.get_world_size())])
        os.kill(os.getpid(), signal.SIGKILL)


def everywhere(value: Any, group: Any = None) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found


def run_ranks(size: int, take_part: Callable[[int, int, int], Any]) -> dict[int, Any]:
    """Fork ranks, and return ``take_part(rank, size, port)`` of each that ends well; rank 0 may take the port."""
    prepare()
    port, pids = free_port(), []
    with tempfile.NamedTemporaryFile("a+") as told:
        for rank in range(size):
            if (pid := os.fork()) == 0:
                try:
                    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: if the program hangs and is killed
                    faulthandler.dump_traceback_later(STUCK_S)
                    torch.set_num_threads(1)
                    line = f"{json.dumps([rank, take_part(rank, size, port)])}\n"
                    if dist.is_initialized():  # else a rank that ends first is lost to those still in the last call
                        dist.destroy_process_group()
                    with open(told.name, "ab", buffering=0) as own:
                        own.write(line.encode())
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in reversed(pids):
            os.waitpid(pid, 0)
        return dict(map(json.loads, told))


def print_ranks(size: int, take_part: Callable[[int, int, int], Any]) -> None:
    """Print what :func:`run_ranks` returns, as JSON."""
    print(json.dumps([*run_ranks(size, take_part).items()]))


def join(rank: int, size: int, port: int, limit_s: float = 60) -> None:
    """Make the default group over a store of rank 0."""
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)  # type: ignore[attr-defined]
    limit = timedelta(seconds=limit_s)
    dist.init_process_group("netoffload", store=store, rank=rank, world_size=size, timeout=limit)


def run_checks(checks: Sequence[Callable[[], Any]]) -> dict[str, Any]:
    """Return the results of checks by their names, made one after the other on all ranks."""
    found = {}
    for check in checks:
        found[check.__name__] = check()
        dist.barrier()
    dist.destroy_process_group()
    return found
