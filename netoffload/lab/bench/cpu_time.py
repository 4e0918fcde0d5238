"""CPU time of processes and of the whole machine, from proc(5)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""Ticks per second of the counts in /proc, usually 100: nothing here is finer than 10 ms."""

_UTIME, _STIME = 11, 12  # fields 14 and 15 of /proc/PID/stat, counted after the name
_IDLE, _IOWAIT, _STEAL = 3, 4, 7  # columns of the first line of /proc/stat; what follows is part of user time


def process_cpu_s(pid: int) -> float | None:
    """Return the user and system time of a process, all threads together; None where it cannot be read."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it is gone, another user's, or behind another PID namespace
        return None
    return (int(fields[_UTIME]) + int(fields[_STIME])) / TICKS_PER_S


def processes_cpu_s(pids: Iterable[int]) -> float:
    """Return the sum of :func:`process_cpu_s` over processes and their living children; ended ones count nothing."""
    total_s = 0.0
    for pid in pids:
        try:
            children = Path("/proc", str(pid), "task", str(pid), "children").read_text().split()
        except OSError:
            continue
        total_s += (process_cpu_s(pid) or 0.0) + processes_cpu_s(map(int, children))
    return total_s


def machine_cpu_s() -> tuple[float, float]:
    """Return seconds since boot, summed over the cores: of work, and of work that had to wait because a hypervisor gave
    the cores to others (steal)."""
    columns = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    busy = sum(ticks for column, ticks in enumerate(columns[:_STEAL]) if column not in (_IDLE, _IOWAIT))
    return busy / TICKS_PER_S, columns[_STEAL] / TICKS_PER_S
