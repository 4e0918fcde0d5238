"""Streams over wires that lose, double, reorder, flip and cut frames arrive whole, thanks to TCP and the CRC."""

import pytest

from netoffload.lab.testbed import NicSettings
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import built, counters

OCTETS = 20_000_000


@pytest.mark.parametrize(
    ("codec", "faults", "counted"),
    [
        ("inceptionn", "loss=0.01", ["fault_lost"]),
        ("packed", "dup=0.05", ["fault_duplicated"]),
        ("packed", "reorder=0.05", ["fault_reordered"]),
        ("packed", "flip=0.005", ["fault_flipped"]),
        ("packed", "truncate=0.005", ["fault_truncated"]),
        ("bounded", "delay=2ms", ["fault_delayed"]),
        (
            "inceptionn",
            "loss=0.01,dup=0.01,reorder=0.01,flip=0.002,truncate=0.001,delay=1ms,seed=7",
            ["fault_lost", "fault_duplicated", "fault_reordered", "fault_flipped", "fault_truncated", "fault_delayed"],
        ),
    ],
)
def test_a_stream_over_a_bad_wire_is_the_codecs_round_trip(codec: str, faults: str, counted: list[str]) -> None:
    with built(nic=NicSettings(codec=codec, faults=faults)) as bed:
        found = stream(bed, OCTETS)
        sent, got = counters(bed, 0), counters(bed, 1)
    assert (found.values, found.wrong, found.raw) == (OCTETS // 4, 0, 0)
    assert {name: sent[name] for name in counted if sent[name] == 0} == {}
    if "flip" in faults:
        assert got["drop_bad_crc"] > 0
    if "truncate" in faults:
        assert got["drop_runt"] > 0
