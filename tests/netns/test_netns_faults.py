"""Streams over wires that lose, double, reorder, flip and cut frames arrive whole, thanks to TCP and the CRC."""

from netoffload.lab.testbed import NicSettings
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import built, counters

OCTETS = 10_000_000
FAULTS = "loss=0.01,dup=0.01,reorder=0.01,flip=0.005,truncate=0.003,delay=1ms,seed=7"
COUNTED = ("lost", "duplicated", "reordered", "flipped", "truncated", "delayed")


def test_a_stream_over_a_bad_wire_is_the_codecs_round_trip() -> None:
    with built(nic=NicSettings(codec="packed", faults=FAULTS)) as bed:
        found = stream(bed, OCTETS)
        sent, got = counters(bed, 0), counters(bed, 1)
    assert (found.values, found.wrong, found.raw) == (OCTETS // 4, 0, 0)
    assert [name for name in COUNTED if not sent[f"fault_{name}"]] == []
    assert got["drop_bad_crc"] > 0
    assert got["drop_runt"] > 0
