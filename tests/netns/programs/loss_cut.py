"""Transfers whose writes cut floats, tagged and untagged in turns, over wires that lose frames: ``loss_cut.py``.

The NICs lose frames of both kinds (``--fault loss``). The program prints a JSON line per transfer,
and one with both medians and their ratio.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator

from netoffload.lab.testbed import NicSettings, Testbed
from tests.netns.programs.both_ways import TAGGED, socket_on
from tests.netns.programs.foreign_streams import gradient
from tests.netns.programs.odd_writes import Transfer, close_all, draw_writes, run_transfers
from tests.shared.beds import built

PORT = 6950
CODEC, BOUND_K = "inceptionn", 10


def connect(bed: Testbed, tos: int, port: int, args: argparse.Namespace, seed: int) -> Transfer:
    """Return a connection from n0 to n1."""
    source, sink = bed.plan.nodes[:2]
    with socket_on(sink, tos) as listening:
        listening.bind((sink.address, port))
        listening.listen()
        near = socket_on(source, tos)
        near.settimeout(60)
        near.connect((sink.address, port))
        listening.settimeout(60)
        far = listening.accept()[0]
    values = gradient(args.octets // 4, seed).tobytes()
    writes = [4096, *draw_writes(len(values) - 4096, random.Random(seed), args.longest)]
    return Transfer(near, far, values, writes, args.pause_s)


def measure(bed: Testbed, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield a row per transfer; tagged and untagged ones take turns, some pairs at a time."""
    ports = itertools.count(PORT)
    for first in range(0, args.count, args.parallel):
        numbers = range(first, min(first + args.parallel, args.count))
        # Both of a pair have the same values and the same writes.
        tos = [(number, tos) for number in numbers for tos in (TAGGED, 0)]
        transfers = [connect(bed, t, next(ports), args, args.seed + n) for n, t in tos]
        try:
            run_transfers(transfers, args.limit_s)
            for (number, mark), transfer in zip(tos, transfers, strict=True):
                elapsed_s = (transfer.done_s or time.monotonic()) - transfer.begun_s
                exact = mark == 0 and bytes(transfer.got) != transfer.octets
                yield {
                    "number": number,
                    "tagged": mark != 0,
                    "outcome": transfer.outcome(),
                    "elapsed_s": round(elapsed_s, 2),
                    "short_octets": len(transfer.octets) - len(transfer.got),
                    "torn_values": transfer.torn_values(CODEC, BOUND_K) + (exact and transfer.outcome() == "finished"),
                    "rounded_share": round(transfer.rounded_share(CODEC, BOUND_K), 3),
                }
        finally:
            close_all(transfers)


def main() -> int:
    """Run the command line; the exit code is 1 if a transfer fails, a value is torn, or the ratio is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="transfers of each kind")
    parser.add_argument("--parallel", type=int, default=1, help="pairs of transfers at a time")
    parser.add_argument("--loss", type=float, default=0.15)
    parser.add_argument("--octets", type=int, default=100_000)
    parser.add_argument("--longest", type=int, default=64, help="write, octets: 64 at least")
    parser.add_argument("--pause-s", type=float, default=0.002, help="between two writes")
    parser.add_argument("--limit-s", type=float, default=180.0, help="for each transfer")
    parser.add_argument("--ratio-max", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    elapsed: dict[bool, list[float]] = {True: [], False: []}
    wrong = 0
    with built(nic=NicSettings(faults=f"loss={args.loss},seed={args.seed}")) as bed:
        for row in measure(bed, args):
            print(json.dumps(row), flush=True)
            elapsed[bool(row["tagged"])].append(float(str(row["elapsed_s"])))
            wrong += bool(row["outcome"] != "finished" or row["torn_values"] or row["short_octets"])
    tagged_s, untagged_s = statistics.median(elapsed[True]), statistics.median(elapsed[False])
    ratio = tagged_s / untagged_s
    summary = {"tagged_s": tagged_s, "untagged_s": untagged_s, "ratio": round(ratio, 2), "wrong": wrong}
    print(json.dumps(summary | {"count": args.count, "loss": args.loss}))
    return int(wrong > 0 or ratio > args.ratio_max)


if __name__ == "__main__":
    sys.exit(main())
