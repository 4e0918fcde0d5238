"""The statements of a real NIC about its traffic equal a capture of its wire."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scapy.utils import RawPcapWriter

from netoffload.codec import get
from netoffload.devices.netns import in_netns
from netoffload.dissect.capture import FlowSum, add_to_flows, read_frames
from netoffload.lab.testbed import Testbed
from netoffload.netlink import netns_path
from tests.netns.programs.both_ways import TAGGED, carried, connected
from tests.shared.commands import forked

ETH_P_ALL = 3
FLOATS = 100_000
PORT = 5281


@contextlib.contextmanager
def captured(bed: Testbed, node: int, path: Path) -> Iterator[None]:
    """Write every frame on a node's wire, either way, into a pcap file."""
    plan = bed.plan.nodes[node]
    with in_netns(str(netns_path(plan.wire_netns))):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        tap.bind((plan.wire_device, ETH_P_ALL))
    tap.settimeout(0.5)
    done = threading.Event()

    def write() -> None:
        with RawPcapWriter(str(path), linktype=1) as writer:
            writer.write_header(b"")
            while True:
                try:
                    octets = tap.recv(1 << 17)
                except TimeoutError:
                    if done.is_set():
                        return
                    continue
                writer.write_packet(octets, sec=0, usec=0)

    thread = threading.Thread(target=write)
    with tap:
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def stats(*words: str) -> str:
    done = forked("stats", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_nics_figures_are_those_of_a_capture(nic_bed: Testbed, tmp_path: Path) -> None:
    values = np.random.default_rng(11).normal(0, 2e-3, FLOATS).astype(np.float32)
    nic = f"{nic_bed.plan.run_id}/n0"
    before = json.loads(stats(nic, "--json"))["nics"][0]
    path = tmp_path / "wire.pcap"
    with captured(nic_bed, 0, path), connected(nic_bed, PORT, (TAGGED, TAGGED)) as ends:
        got = carried(*ends, values.tobytes())
    after = json.loads(stats(nic, "--json"))["nics"][0]
    wanted = get("inceptionn").round_trip(values, 10)
    delivered = np.frombuffer(got, np.float32)
    # A segment of a float or two gains nothing and crosses as it is.
    assert ((delivered == wanted) | (delivered == values)).all()

    source, target = nic_bed.plan.nodes[:2]
    flows: dict[object, FlowSum] = {}
    first, stream = 0, np.full(FLOATS, np.nan, np.float32)
    for frame in read_frames(path, with_values=True):
        assert frame.crc in (None, "ok")
        add_to_flows(flows, frame)
        if frame.kind == "offer" and frame.src == source.address:
            first = (frame.seq or 0) + 1
        if frame.seq is not None and frame.values is not None:
            assert (frame.head, frame.tail) == (0, 0)
            at = ((frame.seq - first) & 0xFFFFFFFF) // 4
            stream[at : at + frame.values.size] = frame.values
    (flow,) = [flow for flow in flows.values() if (flow.src, flow.dport) == (source.address, PORT)]
    (told,) = [
        one for one in after["flows"] if one["direction"] == "tx" and (one["sport"], one["dport"]) == (flow.sport, PORT)
    ]
    assert told["flow"] == f"{source.address}:{flow.sport} -> {target.address}:{PORT}"
    assert (told["raw_octets"], told["payload_octets"], told["state"]) == (
        flow.raw_octets,
        flow.payload_octets,
        "compressed",
    )
    classes = [after["counters"][name] - before["counters"][name] for name in after["counters"] if "tx_class" in name]
    assert classes == flow.classes
    assert flow.ratio is not None
    assert flow.ratio > 3
    seen = ~np.isnan(stream)
    assert seen.mean() > 0.9
    assert np.array_equal(stream[seen], wanted[seen])
    assert f'netoffload_bypass_total{{reason="peer"}} {after["counters"]["bypass_peer"]}' in stats(nic, "--prometheus")
