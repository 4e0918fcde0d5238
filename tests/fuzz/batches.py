"""Fuzzers: what they have in common. A fuzzer carries out numbered batches, and counts every outcome by its name.

The content of a batch depends only on the seed and its number, so a failure can be repeated.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from netoffload.errors import UsageError
from tests.shared.pool import in_order

Tally = Counter[str]
"""How often each outcome was met."""

Fuzzer = Callable[[int, int, int], Tally]
"""Takes a seed, the number of the first batch, and how many payloads or frames to try."""

BATCH: Final = 4096
BATCHES_PER_TASK: Final = 32


def fuzz(
    fuzzer: Fuzzer, count: int, seed: int, jobs: int | None, on_progress: Callable[[int], None] = lambda _done: None
) -> Tally:
    """Try ``count`` payloads or frames over several processes; ``on_progress`` gets the number that is done."""
    if count < 1 or seed < 0:
        raise UsageError(f"{count} from seed {seed}: use at least 1, and a seed from 0 on")
    step = BATCH * BATCHES_PER_TASK
    tasks = [(seed, start // BATCH, min(step, count - start)) for start in range(0, count, step)]
    total = Tally()
    for task, tally in zip(tasks, in_order(fuzzer, tasks, jobs), strict=True):
        total += tally
        on_progress(task[1] * BATCH + task[2])
    return total
