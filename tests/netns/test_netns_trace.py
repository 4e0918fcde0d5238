"""scapy reads a NIC's trace: blocks on the wire's side, plain TCP on the host's, and no frame is missing."""

import time
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from netoffload.dissect.capture import read_frames
from netoffload.dissect.layers import OffloadEntry
from netoffload.lab.testbed import NicSettings
from netoffload.lab.testbed.plan import nic_argv
from netoffload.lab.testbed.stream import stream
from tests.shared.beds import asked, built, counters, nic_command, wait_for_end_of_nic
from tests.shared.commands import running_nic

OCTETS = 2_000_000


def test_a_trace_shows_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "frames.pcapng"
    with built(nic=NicSettings(threads=2)) as bed:
        node = bed.plan.nodes[0]
        assert asked(bed, 0, "stop") == {}
        wait_for_end_of_nic(bed, 0)
        started = time.time()
        with running_nic([*nic_argv(bed.plan, node, 0), "--trace", str(path)], command=nic_command()) as nic:
            assert stream(bed, OCTETS).wrong == 0
            counted = counters(bed)
            nic.terminate()
            assert nic.wait(timeout=10) == 0
    packets = list(PcapNgReader(str(path)))
    assert (counted["trace_missed"], counted["trace_frames"] <= len(packets)) == (0, True)
    assert all(started - 1 < float(packet.time) < time.time() + 1 for packet in packets)
    sides = {side: [packet for packet in packets if packet.sniffed_on == side] for side in ("tap:inc0", "wire0")}
    assert sum(map(len, sides.values())) == len(packets)
    on_wire = [packet for packet in sides["wire0"] if OffloadEntry in packet]
    assert len(on_wire) == counted["tx_blocks"]
    assert max(len(packet) for packet in on_wire) <= 1514  # datagrams, as a cable would have them
    dissected = [frame.crc for frame in read_frames(path) if frame.kind == "block"]
    assert dissected == ["ok"] * len(on_wire)
    assert [packet for packet in sides["tap:inc0"] if OffloadEntry in packet] == []
    sent = [packet for packet in sides["tap:inc0"] if TCP in packet and packet[IP].src == node.address]
    assert sum(len(packet[TCP].payload) for packet in sent if packet[IP].tos & 0xFC == 0x28) >= OCTETS
    assert max(len(packet) for packet in sent) > 20_000  # GSO frames are whole
