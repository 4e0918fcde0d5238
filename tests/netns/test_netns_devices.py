"""NICs with one thread per direction, over a bad wire, and devices that are deleted under a running NIC."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netoffload.lab.testbed import NicSettings
from netoffload.lab.testbed.plan import HOST_DEVICE
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import built, counters, drops, wait_for_end_of_nic

OCTETS = 20_000_000


@pytest.mark.parametrize(
    "nic",
    [NicSettings(host="veth", threads=2), NicSettings(threads=2, busy_poll_us=50)],
    ids=["veth-threads", "tap-threads-busy"],
)
def test_a_stream_arrives_as_the_codec_makes_it(nic: NicSettings) -> None:
    with built(nic=nic) as bed:
        found = stream(bed, OCTETS)
        sent, got = counters(bed, 0), counters(bed, 1)
        wire_octets = bed.wire_counters()[0].tx_octets
    assert (found.values, found.wrong) == (OCTETS // 4, 0)
    assert wire_octets < OCTETS / 3
    # TCP may cut off a last segment of a few floats, which a block would not make smaller.
    assert sent["tx_raw_octets"] >= OCTETS - 64 * sent.get("bypass_no_gain", 0)
    assert drops(sent) == drops(got) == {}


@pytest.mark.parametrize(
    ("host", "threads", "deleted", "code", "said"),
    [
        ("tap", 1, "wire0", 5, "wire wire0 was deleted"),
        ("tap", 2, "inc0", 4, "tap:inc0 was deleted"),
        ("veth", 2, "wire0", 5, "wire wire0 was deleted"),
        ("veth", 1, HOST_DEVICE, 4, f"veth:{HOST_DEVICE} was deleted"),
    ],
)
def test_a_deleted_device_ends_the_nic_with_a_line(host: str, threads: int, deleted: str, code: int, said: str) -> None:
    with built(1, nic=NicSettings(host=host, threads=threads, log_format="json")) as bed:
        node = bed.plan.nodes[0]
        netns = node.netns if deleted == node.device else node.wire_netns
        subprocess.run(["ip", "-n", netns, "link", "delete", deleted], check=True)
        wait_for_end_of_nic(bed, 0)
        last = json.loads(Path(str(node.log_path)).read_text().splitlines()[-1])
        assert said in last["message"]
        assert last["exit_code"] == code


def test_a_device_that_is_only_down_does_not() -> None:
    with built(nic=NicSettings(host="veth")) as bed:
        netns = bed.plan.nodes[0].wire_netns
        for state in ("down", "up"):
            for device in ("wire0", HOST_DEVICE):
                subprocess.run(["ip", "-n", netns, "link", "set", device, state], check=True)
        found = stream(bed, 400_000)
        assert (found.values, found.wrong) == (100_000, 0)


def test_frames_for_a_tap_that_is_down_are_counted_and_the_nic_goes_on() -> None:
    with built() as bed:
        node = bed.plan.nodes[1]
        link = ["ip", "-n", node.netns, "link", "set", node.device]
        subprocess.run([*link, "down"], check=True)
        send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'frame', ('{node.address}', 9))"
        assert bed.popen(0, [sys.executable, "-c", send]).wait(timeout=30) == 0
        give_up_s = time.monotonic() + 10
        while not counters(bed, 1)["drop_host_down"]:
            assert time.monotonic() < give_up_s
            time.sleep(0.02)
        subprocess.run([*link, "up"], check=True)
        found = stream(bed, 400_000)
        assert (found.values, found.wrong) == (100_000, 0)


FAULTY_OCTETS = 10_000_000
FAULTS = "loss=0.01,dup=0.01,reorder=0.01,flip=0.005,truncate=0.003,delay=1ms,seed=7"
COUNTED = ("lost", "duplicated", "reordered", "flipped", "truncated", "delayed")


def test_a_stream_over_a_bad_wire_is_the_codecs_round_trip() -> None:
    with built(nic=NicSettings(codec="packed", faults=FAULTS)) as bed:
        found = stream(bed, FAULTY_OCTETS)
        sent, got = counters(bed, 0), counters(bed, 1)
    assert (found.values, found.wrong, found.raw) == (FAULTY_OCTETS // 4, 0, 0)
    assert [name for name in COUNTED if not sent[f"fault_{name}"]] == []
    assert got["drop_bad_crc"] > 0
    assert got["drop_runt"] > 0
