"""Restart a NIC without any option while connections write cut floats: ``restart_cut.py --count 100 --signal TERM``.

Both NICs are started by hand, with their devices and nothing else. One of them ends by a signal and is started again.
The program prints how many connections finished, were reset or hang, and how many values are torn, as a JSON line.
"""

import argparse
import collections
import json
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from netoffload.lab.testbed import Testbed
from tests.netns.programs.both_ways import TAGGED, socket_on
from tests.netns.programs.by_hand import NicByHand, nics_by_hand
from tests.netns.programs.foreign_streams import gradient
from tests.netns.programs.odd_writes import Transfer, close_all, draw_writes, run_transfers
from tests.shared.beds import built

PORT = 6900
CODEC, BOUND_K = "inceptionn", 10


def connect(bed: Testbed, count: int, octets: int, pause_s: float, seed: int) -> list[Transfer]:
    """Return tagged connections; every second one carries values from n1 to n0."""
    draw = random.Random(seed)
    source, sink = bed.plan.nodes[:2]
    transfers = []
    with socket_on(sink, TAGGED) as listening:
        listening.bind((sink.address, PORT))
        listening.listen(count)
        for number in range(count):
            near = socket_on(source, TAGGED)
            near.connect((sink.address, PORT))
            far = listening.accept()[0]
            far.setsockopt(6, 1, 1)  # TCP_NODELAY
            ends = (near, far) if number % 2 == 0 else (far, near)
            values = gradient(octets // 4, seed + number).tobytes()
            # The kilobyte that the NIC judges comes whole.
            transfers.append(Transfer(*ends, values, [4096, *draw_writes(len(values) - 4096, draw)], pause_s))
    return transfers


def restart(nics: list[NicByHand], numbers: list[int], number: signal.Signals, after_s: float, gone_s: float) -> None:
    """End some NICs after a while, and start others in their place."""
    time.sleep(after_s)
    for index in numbers:
        nics[index].end(number)
    time.sleep(gone_s)
    for index in numbers:
        nics[index].start()


def options_of(args: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return the NICs' options: none, or a flow table each."""
    return [["--flow-table", str(folder / f"n{index}.bin")] if args.with_tables else [] for index in range(2)]


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Return what became of the connections of one restart."""
    numbers = {"0": [0], "1": [1], "both": [0, 1]}[args.node]
    with (
        tempfile.TemporaryDirectory(prefix="restart-cut-") as folder,
        built() as bed,
        nics_by_hand(bed, Path(folder), options_of(args, Path(folder))) as nics,
    ):
        transfers = connect(bed, args.count, args.octets, args.pause_s, args.seed)
        try:
            times = {"after_s": args.after_s, "gone_s": args.gone_s}
            event = signal.SIGKILL if args.signal == "KILL" else signal.SIGTERM
            numbers = [] if args.signal == "none" else numbers
            restarting = threading.Thread(target=restart, args=(nics, numbers, event), kwargs=times)
            restarting.start()
            since_s = time.monotonic()
            run_transfers(transfers, args.limit_s)
            restarting.join()
            outcomes = collections.Counter(transfer.outcome() for transfer in transfers)
            finished = [transfer for transfer in transfers if transfer.outcome() == "finished"]
            return {
                "signal": args.signal,
                "node": args.node,
                "seed": args.seed,
                **{outcome: outcomes[outcome] for outcome in ("finished", "reset", "hung")},
                "short": sum(len(transfer.got) != len(transfer.octets) for transfer in finished),
                "torn_values": sum(transfer.torn_values(CODEC, BOUND_K) for transfer in transfers),
                "rounded_share": round(sum(t.rounded_share(CODEC, BOUND_K) for t in transfers) / len(transfers), 3),
                "errors": dict(collections.Counter(transfer.error for transfer in transfers if transfer.error)),
                "elapsed_s": round(time.monotonic() - since_s, 1),
            }
        finally:
            close_all(transfers)


def main() -> int:
    """Run the command line; the exit code is 1 if a connection hangs or a value is torn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="connections")
    parser.add_argument("--octets", type=int, default=60_000, help="of each connection")
    parser.add_argument("--pause-s", type=float, default=0.15, help="between two writes of a connection")
    parser.add_argument("--after-s", type=float, default=3.0, help="when the NIC ends")
    parser.add_argument("--gone-s", type=float, default=0.0, help="between its end and the next one's start")
    parser.add_argument("--limit-s", type=float, default=60.0, help="when a connection counts as hung")
    parser.add_argument("--signal", choices=["TERM", "KILL", "none"], default="TERM")
    parser.add_argument("--node", choices=["0", "1", "both"], default="0")
    parser.add_argument("--with-tables", action="store_true", help="give each NIC a --flow-table, for comparison")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = False
    for _ in range(args.rounds):
        found = measure(args)
        print(json.dumps(found), flush=True)
        failed |= bool(found["hung"] or found["torn_values"] or found["short"])
        args.seed += 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
