"""Measures a wire's real rate: a short TCP stream from n0 to n1, then one back, counted by the wires' qdiscs.

A wire may miss the rate that its shaping asks for: a busy machine serves the bucket's timer late, a slow one cannot
fill the link. So every shaped testbed is probed before it is used::

    octets ^                    ______
           |              _____/      window, after the burst is spent: octets / seconds is the rate
           |        _____/
           |   ____/   <- the bucket is full: these octets cross without waiting
           +---------------------------> time

One direction at a time: with streams both ways, each one's acknowledgements wait behind the other's data, and for
the first round trips one of them starves. That would measure TCP, not the wire.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netoffload.config import format_rate
from netoffload.errors import TestbedError
from netoffload.lab.testbed.plan import GSO_FRAME_OCTETS_MAX

if TYPE_CHECKING:
    from netoffload.lab.testbed.build import Testbed

TOLERANCE: Final = 0.05
ATTEMPTS: Final = 5
PAUSE_S: Final = 1.0
"""Pause before the second attempt. Each further attempt waits one pause more, so that other work may end."""
PORT: Final = 49_777
STARTUP_TIMEOUT_S: Final = 10.0
SETTLE_S_MIN: Final = 0.05
SETTLE_BITS_MIN: Final = 300_000
"""Time from the end of the burst to the window, in which slow start ends."""
WINDOW_S_MIN: Final = 0.3
WINDOW_GSO_FRAMES: Final = 40
"""Shortest window, in GSO frames of 64 KiB, which a NIC sends: one frame more or less must not make 5 %."""
BUFFER_S: Final = 0.02
"""The stream's send buffer holds this much of the link (twice: the kernel doubles it). More would wait longer than
TCP's shortest retransmission time-out, 200 ms, on a slow link, and would have to drain afterwards."""
BUFFER_OCTETS_MIN: Final = 8 * 1024
POLL_S: Final = 5e-3

_TRAFFIC = Path(__file__).with_name("traffic.py")


def check_rate(bed: Testbed, progress: Callable[[str], None]) -> float:
    """Measure the rate of a wire and compare it with the planned one; if it is off, measure again a few times.

    Returns:
        The measured rate in bits per second, of the direction that is farther off.

    Raises:
        TestbedError: off by more than 5 % every time, or no traffic passed.
    """
    asked_bps = bed.plan.settings.rate_bps
    if asked_bps is None:
        return min(measure_rates(bed))
    for attempt in range(1, ATTEMPTS + 1):
        rates_bps = measure_rates(bed)
        worst_bps = max(rates_bps, key=lambda rate_bps: abs(rate_bps - asked_bps))
        if abs(worst_bps - asked_bps) <= TOLERANCE * asked_bps:
            return worst_bps
        if attempt < ATTEMPTS:
            progress(
                f"measured {format_rate(worst_bps)} instead of {format_rate(asked_bps)}, "
                f"measuring again ({attempt + 1} of {ATTEMPTS})"
            )
            time.sleep(attempt * PAUSE_S)
    raise TestbedError(
        f"asked for {format_rate(asked_bps)}, measured {format_rate(worst_bps)} ({ATTEMPTS} times off by more "
        f"than {TOLERANCE:.0%}): this machine is too slow or too busy; end other work or choose a lower rate"
    )


def measure_rates(bed: Testbed) -> tuple[float, float]:
    """Return the rates of the wires of n0 and n1, in bits per second, each under a TCP stream to the other node.

    Raises:
        TestbedError: no traffic passed.
    """
    return _measure_rate(bed, 0, 1), _measure_rate(bed, 1, 0)


def _measure_rate(bed: Testbed, sender: int, receiver: int) -> float:
    rate_bps = bed.plan.settings.rate_bps or math.inf
    buffer_octets = 0 if math.isinf(rate_bps) else max(BUFFER_OCTETS_MIN, round(rate_bps * BUFFER_S / 8))
    settle_s = max(SETTLE_S_MIN, SETTLE_BITS_MIN / rate_bps)
    frame_octets = min(GSO_FRAME_OCTETS_MAX, 2 * buffer_octets)
    window_s = max(WINDOW_S_MIN, WINDOW_GSO_FRAMES * frame_octets * 8 / rate_bps)
    burst_octets = 0 if bed.plan.node_shape is None else bed.plan.node_shape.burst_octets
    address = bed.plan.nodes[receiver].address
    with contextlib.ExitStack() as stack:
        programs = [
            _start(bed, stack, receiver, ["receive", address, str(PORT), str(buffer_octets)]),
            _start(bed, stack, sender, ["send", address, str(PORT), str(buffer_octets)]),
        ]
        start_octets = _sent_octets(bed, sender)
        deadline = time.monotonic() + STARTUP_TIMEOUT_S
        while _sent_octets(bed, sender) - start_octets <= burst_octets + frame_octets:
            if time.monotonic() > deadline or any(program.poll() is not None for program in programs):
                names = f"n{sender} to n{receiver}"
                raise TestbedError(f"no traffic passes from {names} of run {bed.plan.run_id}{_said(programs)}")
            time.sleep(POLL_S)
        time.sleep(settle_s)
        first_octets, first_s = _sent_octets(bed, sender), time.monotonic()
        time.sleep(window_s)
        last_octets, last_s = _sent_octets(bed, sender), time.monotonic()
    return 8 * (last_octets - first_octets) / (last_s - first_s)


def _start(bed: Testbed, stack: contextlib.ExitStack, node_index: int, words: list[str]) -> subprocess.Popen[bytes]:
    # -I -S: without the user's environment and installed packages it starts in 20 ms.
    argv = [sys.executable, "-I", "-S", str(_TRAFFIC), *words]
    pipe = subprocess.PIPE
    program = bed.popen(node_index, argv, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, start_new_session=True)
    stack.callback(_stop, program)
    return program


def _stop(program: subprocess.Popen[bytes]) -> None:
    """Close the program's standard input, which ends it, and reap it."""
    assert program.stdin is not None
    assert program.stderr is not None
    program.stdin.close()
    try:
        program.wait(timeout=2)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    program.stderr.close()


def _said(programs: list[subprocess.Popen[bytes]]) -> str:
    for program in programs:
        if program.poll() is not None and program.stderr is not None:
            lines = program.stderr.read().decode(errors="replace").strip().splitlines()
            return f": {lines[-1]}" if lines else f": the probe ended with exit code {program.returncode}"
    return ""


def _sent_octets(bed: Testbed, node_index: int) -> int:
    return bed.wire_counters()[node_index].tx_octets
