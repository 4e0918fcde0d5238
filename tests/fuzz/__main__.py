"""What a person types: ``python -m tests.fuzz frames --count 200M --jobs 2``; also ``payloads``, and ``floats``."""

import argparse
import json
import sys
import time
from functools import partial
from typing import Any

from netoffload.cli.verify import shown_progress
from netoffload.codec import kernels
from netoffload.config import BOUND_K_DEFAULT, CODECS, parse_count
from netoffload.errors import NetOffloadError
from tests.fuzz import floats, frames, payloads
from tests.fuzz.batches import fuzz

FUZZERS = {"payloads": payloads.fuzz_batches, "frames": frames.fuzz_batches}
HELP = {
    "payloads": "random and damaged payloads into the decoder, at the edge of memory",
    "frames": "random, damaged and good frames into the NIC's engine, both ways, at the edge of memory",
    "floats": "all 2^32 floats through the kernels in use and through the oracle",
}


def run(asked: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """Return what to tell, and what is wrong."""
    if asked.what in FUZZERS:
        fuzzer = FUZZERS[asked.what]
        if asked.what == "payloads":
            fuzzer = partial(payloads.fuzz_batches, codec=asked.codec)
        with shown_progress(asked.what, asked.count) as show:
            tally = fuzz(fuzzer, asked.count, asked.seed, asked.jobs, show)
        return {"seed": asked.seed, asked.what: asked.count, "outcomes": dict(tally)}, None
    with shown_progress("floats", asked.count) as show:
        found = floats.verify(asked.codec, asked.bound, asked.first, asked.count, asked.jobs, show)
    wrong = None if found is None else str(found)
    return {"codec": asked.codec, "k": asked.bound, "first": asked.first, "count": asked.count, "wrong": wrong}, wrong


def main(words: list[str]) -> str | int:
    """Carry a command line out; return what ``sys.exit`` takes."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", allow_abbrev=False)
    parsers = parser.add_subparsers(dest="what", required=True)
    for name, text in HELP.items():
        one = parsers.add_parser(name, help=text, description=text)
        one.add_argument("--count", type=parse_count, default=floats.ALL if name == "floats" else 20_000_000)
        one.add_argument("--jobs", type=int, help="processes; default: one per core")
        one.add_argument("--json", action="store_true", help="print JSON instead of lines")
        if name in FUZZERS:
            one.add_argument("--seed", type=int, default=1)
        if name == "payloads":
            one.add_argument("--codec", choices=CODECS, default="", help="default: every codec in turn")
        if name in FUZZERS:
            continue
        one.add_argument("--codec", choices=CODECS, default="inceptionn")
        one.add_argument("--bound", type=int, default=BOUND_K_DEFAULT, help="1..16")
        one.add_argument("--first", type=int, default=0, help="first bit pattern, a multiple of 8")
    asked = parser.parse_args(words)
    started = time.perf_counter()
    try:
        told, wrong = run(asked)
    except NetOffloadError as error:
        return f"{error}"
    told |= {"kernel": kernels.KERNEL, "elapsed_s": round(time.perf_counter() - started, 1)}
    print(json.dumps(told) if asked.json else "\n".join(f"{name:>12}: {one}" for name, one in told.items()))
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
