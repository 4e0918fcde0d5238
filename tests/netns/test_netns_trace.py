"""A trace agrees with what the NIC says of its traffic: blocks on the wire's side, plain TCP on the host's."""

import time
from pathlib import Path

import numpy as np
from scapy.layers.inet import IP, TCP
from scapy.utils import PcapNgReader

from netoffload.codec import get
from netoffload.dissect.capture import FlowSum, add_to_flows, read_frames
from netoffload.dissect.layers import OffloadEntry
from netoffload.lab.testbed import NicSettings
from netoffload.lab.testbed.plan import nic_argv
from tests.netns.programs.both_ways import TAGGED, carried, connected
from tests.shared.beds import asked, built, counters, flows, nic_command, wait_for_end_of_nic
from tests.shared.commands import running_nic

VALUES = np.random.default_rng(11).normal(0, 2e-3, 500_000).astype(np.float32)
PORT = 5281


def test_a_trace_shows_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "frames.pcapng"
    with built(nic=NicSettings(threads=2)) as bed:
        node = bed.plan.nodes[0]
        assert asked(bed, 0, "stop") == {}
        wait_for_end_of_nic(bed, 0)
        started = time.time()
        with running_nic([*nic_argv(bed.plan, node, 0), "--trace", str(path)], command=nic_command()) as nic:
            with connected(bed, PORT, (TAGGED, TAGGED)) as ends:
                got = np.frombuffer(carried(*ends, VALUES.tobytes()), np.float32)
            counted = counters(bed)
            (told,) = [row for row in flows(bed) if (row["direction"], row["dport"]) == ("tx", PORT)]
            nic.terminate()
            assert nic.wait(timeout=10) == 0
    wanted = get("inceptionn").round_trip(VALUES, 10)
    assert ((got == wanted) | (got == VALUES)).all()  # a last segment of a float or two crosses as it is

    packets = list(PcapNgReader(str(path)))
    assert (counted["trace_missed"], counted["trace_frames"] <= len(packets)) == (0, True)
    assert all(started - 1 < float(packet.time) < time.time() + 1 for packet in packets)
    sides = {side: [packet for packet in packets if packet.sniffed_on == side] for side in ("tap:inc0", "wire0")}
    assert sum(map(len, sides.values())) == len(packets)
    on_wire = [packet for packet in sides["wire0"] if OffloadEntry in packet]
    assert len(on_wire) == counted["tx_blocks"]
    assert max(len(packet) for packet in on_wire) <= 1514  # datagrams, as a cable would have them
    assert [packet for packet in sides["tap:inc0"] if OffloadEntry in packet] == []
    sent = [packet for packet in sides["tap:inc0"] if TCP in packet and packet[IP].src == node.address]
    assert sum(len(packet[TCP].payload) for packet in sent if packet[IP].tos & 0xFC == TAGGED) >= VALUES.nbytes
    assert max(len(packet) for packet in sent) > 20_000  # GSO frames are whole

    sums: dict[object, FlowSum] = {}
    first, stream = 0, np.full(VALUES.size, np.nan, np.float32)
    for frame in read_frames(path, with_values=True):
        assert frame.crc in (None, "ok")
        add_to_flows(sums, frame)
        if frame.kind == "offer" and frame.src == node.address:
            first = (frame.seq or 0) + 1
        if frame.seq is not None and frame.values is not None:
            at = ((frame.seq - first) & 0xFFFFFFFF) // 4
            stream[at : at + frame.values.size] = frame.values
    seen = ~np.isnan(stream)
    assert seen.mean() > 0.9
    assert np.array_equal(stream[seen], wanted[seen])
    (flow,) = [flow for flow in sums.values() if (flow.src, flow.dport) == (node.address, PORT)]
    assert (told["raw_octets"], told["payload_octets"]) == (flow.raw_octets, flow.payload_octets)
    assert [counted[f"tx_class_{bits}"] for bits in (0, 8, 16, 32)] == flow.classes
