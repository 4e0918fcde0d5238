"""Octets that a program on one node of a testbed sends to a program on another one."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from netoffload.lab.testbed import Testbed

PROGRAM = str(Path(__file__).parents[1] / "netns" / "programs" / "tcp_transfer.py")


def transfer_words(way: str, address: str, writes: Sequence[tuple[int, int]], port: int = 5028) -> list[str]:
    return [PROGRAM, way, address, str(port), *(f"{tos:x}:{octets}" for tos, octets in writes)]


def transfer(
    bed: Testbed,
    octets: bytes,
    writes: Sequence[tuple[int, int]],
    *,
    nodes: tuple[int, int] = (0, 1),
    address: str | None = None,
    port: int = 5028,
    python: Sequence[str] = (sys.executable,),
) -> bytes:
    """Send octets from one node to another, in writes of (ToS, octets) taken over and over; return what arrived."""
    sender, receiver = nodes
    to = address or bed.plan.nodes[receiver].address
    receive, send = ([*python, *transfer_words(way, to, writes, port)] for way in ("receive", "send"))
    pipe = subprocess.PIPE
    with bed.popen(receiver, receive, stdout=pipe, stderr=pipe) as receiving:
        assert receiving.stderr is not None
        assert receiving.stderr.readline() == b"listening\n"
        with bed.popen(sender, send, stdin=pipe, stdout=subprocess.DEVNULL) as sending:
            sending.communicate(octets, timeout=60)
            assert sending.returncode == 0
        got: bytes = receiving.communicate(timeout=60)[0]
        assert receiving.returncode == 0
    return got
