"""Send foreign streams over sockets that a policy marked, or that bear the tag: ``promise_table.py [--help]``.

It prints a JSON line per stream, mark and direction: how many octets changed, and what crossed the wires. It builds a
testbed of two nodes with NICs, and takes it down.
"""

import argparse
import contextlib
import itertools
import json
import secrets
import sys
from collections.abc import Iterator

from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, make_plan
from tests.netns.programs.both_ways import TAGGED, carry_both_ways, changed_octets, packets_marked, policy
from tests.netns.programs.foreign_streams import STREAMS
from tests.soak import add_ipv6

MARKS = ("policy", "sockets", "n0's socket", "n1's socket", "none")
"""Who marks: the policy alone; both sockets; the socket of one node, with the policy on both."""
FIRST_PORT = 6000


def tos_of(mark: str) -> tuple[int, int]:
    """Return the ToS of n0's socket, and of n1's."""
    return {"sockets": (TAGGED, TAGGED), "n0's socket": (TAGGED, 0), "n1's socket": (0, TAGGED)}.get(mark, (0, 0))


def rows(
    bed: Testbed, names: list[str], marks: list[str], *, ipv6: bool, ports: Iterator[int]
) -> Iterator[dict[str, object]]:
    """Yield a row for each stream, mark and direction."""
    for mark in marks:
        has_policy = mark not in ("sockets", "none")
        with policy(bed) if has_policy else contextlib.nullcontext():
            for name in names:
                stream = STREAMS[name]()
                arrived = carry_both_ways(bed, stream, tos_of(mark), port=next(ports), ipv6=ipv6)
                for way, got in (("n0 to n1", arrived.forth), ("n1 to n0", arrived.back)):
                    yield {
                        "stream": name,
                        "mark": mark,
                        "ipv6": ipv6,
                        "direction": way,
                        "octets": len(stream.octets),
                        "changed_octets": changed_octets(stream.octets, got),
                        "arrived_octets": len(got),
                        "wire_octets_both_ways": arrived.wire_octets,
                        "error": arrived.error,
                    }
            if has_policy:
                assert all(packets_marked(node) > 0 for node in bed.plan.nodes), "the policy marked nothing"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", nargs="*", default=list(STREAMS), choices=list(STREAMS), metavar="NAME")
    parser.add_argument("--marks", nargs="*", default=["policy", "sockets"], choices=MARKS, metavar="MARK")
    parser.add_argument("--codec", default="inceptionn")
    parser.add_argument("--bypass", default="user")
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--table", action="store_true", help="print a table of Markdown instead of JSON")
    args = parser.parse_args()
    settings = TestbedSettings(2, nic=NicSettings(codec=args.codec, bypass=args.bypass))
    with Testbed(make_plan(settings, f"h{secrets.token_hex(3)}"), check_rate=False) as bed:
        if args.ipv6 and not add_ipv6(bed):
            print("this kernel has no IPv6", file=sys.stderr)
            return 1
        found = rows(bed, args.streams, args.marks, ipv6=args.ipv6, ports=itertools.count(FIRST_PORT))
        if args.table:
            print_table(list(found))
        else:
            for row in found:
                print(json.dumps(row), flush=True)
    return 0


def print_table(found: list[dict[str, object]]) -> None:
    """Print octets changed, a line per stream and a column per mark; the larger one of both directions."""
    changed: dict[tuple[object, object], int] = {}
    octets: dict[object, object] = {}
    for row in found:
        key = row["stream"], row["mark"]
        changed[key] = max(changed.get(key, 0), int(str(row["changed_octets"])))
        octets[row["stream"]] = row["octets"]
    marks = list(dict.fromkeys(row["mark"] for row in found))
    print(f"| stream | octets | {' | '.join(f'changed: {mark}' for mark in marks)} |")
    print(f"| --- | ---: | {' | '.join('---:' for _ in marks)} |")
    for name, length in octets.items():
        print(f"| {name} | {length} | {' | '.join(str(changed[name, mark]) for mark in marks)} |")


if __name__ == "__main__":
    sys.exit(main())
