"""torchft over four nodes: a replica is killed twice while all train, and another one takes its place each time.

``python -m tests.netns.replicas_on_nodes --mode diloco`` as root; ``--gloo`` with torchft's own process group. Every
node is a namespace with one replica of ``examples/torchft_ddp.py``; the lighthouse is on n0, and the last replica is
killed. Replicas are forks of a process with torch.
"""

import argparse
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from netoffload.lab.testbed import Testbed, TestbedSettings, make_plan, new_run_id, parse_links, prepared_ranks
from netoffload.lab.testbed.forks import python_argv

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "torchft_ddp.py"
REPLICAS: Final = 4
KILLS: Final = 2
EVERY: Final = 5
"""DiLoCo's own steps per common step."""
PORT: Final = 29510
LINE: Final = re.compile(r"step (\d+): (\d+) replicas")
LIMIT_S: Final = 300.0
LOADED: Final = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "sklearn.datasets",
    "netoffload.torch.backend_group",
    "netoffload.transport.rounds.driver:prepare",
)
"""Not torchft: its import finds the host's name."""


def forked(program: str, *words: object) -> list[str]:
    """Return the command that runs one of the programs in a fork."""
    return [*python_argv(LOADED), "-m", f"tests.netns.programs.{program}", *map(str, words)]


@dataclass(frozen=True)
class Line:
    """What a replica said after one of its own steps, and when."""

    at_s: float
    step: int
    replicas: int


class Replica:
    """A replica on a node."""

    def __init__(self, bed: Testbed, number: int, words: list[str], stderr: int | None) -> None:
        own = {"TORCHFT_LIGHTHOUSE": f"http://{bed.plan.nodes[0].name}:{PORT}"}
        argv = forked("own_store", EXAMPLE, "--replica", number, *words)
        self.process = bed.popen(number, argv, own, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.lines: list[Line] = []
        self.pid, self._digest = 0, ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """End it without warning: the fork, not the client that waits for it."""
        os.kill(self.pid, signal.SIGKILL)

    def digest(self, limit_s: float = 30.0) -> str:
        """Return the SHA-256 of the parameters at the end; empty if there is none."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        return self._digest

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline() or 0)
        for text in self.process.stdout:
            if found := LINE.match(text):
                self.lines.append(Line(time.monotonic(), int(found[1]), int(found[2])))
            elif found := re.search(r"parameters (\w+)", text):
                self._digest = found[1]


@dataclass(frozen=True)
class Found:
    """What one run showed.

    Attributes:
        lost: common steps of the first replica that did not count.
        noticed_s: from each kill to the end of the step that it cost; None: it cost none.
        resumed_s: from each kill to the first common step of those left: a new quorum and the step are in it.
        rejoined_s: from each kill to the first common step of all.
        step_ms: median time of a common step.
        wire_mb: octets on all wires, in millions.
        digests: SHA-256 of the parameters of every replica at the end; empty for one that ended early.
    """

    mode: str
    group: str
    steps: int
    lost: int
    noticed_s: list[float | None]
    resumed_s: list[float | None]
    rejoined_s: list[float | None]
    step_ms: float
    wire_mb: float
    digests: list[str]


def run(asked: argparse.Namespace) -> Found:
    """Build the nodes, train, kill, and say what was seen."""
    every = EVERY if asked.mode == "diloco" else 0
    words = ["--steps", str(asked.steps), *(["--every", str(every)] if every else []), *["--gloo"] * asked.gloo]
    plan = make_plan(TestbedSettings(REPLICAS, nic=None, links=parse_links(asked.rate)), new_run_id())
    stderr = None if asked.errors else subprocess.DEVNULL
    with prepared_ranks(LOADED), Testbed(plan, check_rate=False) as bed:
        lighthouse = bed.popen(0, forked("lighthouse", PORT), stderr=stderr)
        before = sum(wire.tx_octets for wire in bed.wire_counters())
        alive = [Replica(bed, number, words, stderr) for number in range(REPLICAS)]
        first, killed = alive[0], []
        for number in range(1, KILLS + 1):
            if not wait_for(first, asked.steps * number // (KILLS + 1)):
                break
            killed.append(time.monotonic())
            alive[-1].kill()
            alive[-1] = Replica(bed, REPLICAS - 1, words, stderr)
        digests = [first.digest(LIMIT_S), *(replica.digest() for replica in alive[1:])]
        lighthouse.kill()
        lighthouse.wait()
        octets = sum(wire.tx_octets for wire in bed.wire_counters()) - before
    runs = [list(group) for _, group in itertools.groupby(first.lines, lambda line: line.step)]
    commits = [lines[0] for lines in runs if lines[0].step]
    fewer = [line for line in commits if line.replicas < REPLICAS]
    failed = [lines[max(every, 1)] for lines in runs if len(lines) > max(every, 1)]
    whole = [now for past, now in itertools.pairwise(commits) if past.replicas < now.replicas == REPLICAS]
    return Found(
        mode=asked.mode,
        group="gloo" if asked.gloo else "netoffload",
        steps=first.lines[-1].step,
        lost=sum((len(lines) - 1) // max(every, 1) for lines in runs),
        noticed_s=[after(failed, at_s, at_s + (after(fewer, at_s) or math.inf)) for at_s in killed],
        resumed_s=[after(fewer, at_s) for at_s in killed],
        rejoined_s=[after(whole, at_s) for at_s in killed],
        step_ms=1e3 * statistics.median(now.at_s - past.at_s for past, now in itertools.pairwise(commits)),
        wire_mb=octets / 1e6,
        digests=digests,
    )


def wait_for(replica: Replica, step: int) -> bool:
    """Wait until a replica has taken a common step, at the earliest this one, with all others; False: it ended."""
    deadline = time.monotonic() + LIMIT_S
    while not any(line.step >= step and line.replicas == REPLICAS for line in replica.lines[-1:]):
        if replica.process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def after(lines: list[Line], at_s: float, end_s: float = math.inf) -> float | None:
    """Return the seconds to the first of these lines behind a time; None: there is none before the end."""
    return next((round(line.at_s - at_s, 2) for line in lines if at_s < line.at_s < end_s), None)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("ddp", "diloco"), default="ddp")
    parser.add_argument("--steps", type=int, default=300, help="common steps")
    parser.add_argument("--rate", default="500mbit/110mbit", help="down and up, of every node")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--errors", action="store_true", help="show what the replicas said on standard error")
    return parser.parse_args(words)


if __name__ == "__main__":
    print(json.dumps(asdict(run(parsed())), indent=2))
