"""What a person types: ``python -m tests.soak --rounds 60 --seed 7``; each round is one event, and takes about 5 s."""

import argparse
import contextlib
import json
import secrets
import signal
import sys
import time
from types import FrameType

from netoffload.cli.app import progress_bar
from netoffload.config import BOUND_K_DEFAULT, CODECS, ENCAPSULATIONS
from netoffload.errors import NetOffloadError
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan, new_run_id
from tests.soak.run import FLOWS, Soak

BY_SEED = ("inceptionn", "bounded", "packed")
"""The codecs among which the seed chooses if ``--codec`` is left out."""


def run(asked: argparse.Namespace) -> int:
    """Build two nodes, disturb their flows, print what was found, also after an interruption; return the exit code."""
    started_s = time.monotonic()
    nic = NicSettings(asked.codec, asked.bound, encapsulation=asked.encapsulation, host=asked.host)
    with contextlib.ExitStack() as stack:
        with progress_bar() as say:
            plan = make_plan(TestbedSettings(2, nic=nic), new_run_id())
            bed = stack.enter_context(Testbed(plan, check_rate=False, progress=say))

        def on_round(done: int, said: str) -> None:
            print(f"{done}/{asked.rounds} {said}", file=sys.stderr, flush=True)

        def tell() -> None:
            print(json.dumps({**vars(soaking.result), "elapsed_s": time.monotonic() - started_s}, indent=2))

        soaking = Soak(bed, asked.seed, on_round)
        stack.callback(tell)
        soaking.run(asked.rounds, asked.flows)
    return int(not soaking.result.is_good)


def main(words: list[str]) -> int | str:
    """Carry a command line out; return what ``sys.exit`` takes."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), help="default: drawn, and printed")
    parser.add_argument("--flows", type=int, default=FLOWS, help="flows at a time")
    parser.add_argument("--codec", choices=CODECS, help=f"default: {', '.join(BY_SEED)}, by the seed")
    parser.add_argument("--bound", type=int, default=BOUND_K_DEFAULT)
    parser.add_argument("--encapsulation", choices=ENCAPSULATIONS, default="udp")
    parser.add_argument("--host", choices=("tap", "veth"), default="tap")
    asked = parser.parse_args(words)
    asked.codec = asked.codec or BY_SEED[asked.seed % len(BY_SEED)]
    print(f"seed {asked.seed}, codec {asked.codec}", file=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(asked)
    except NetOffloadError as error:
        return f"{error}"
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
