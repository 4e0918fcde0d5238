"""The NIC on real TCP between two nodes: it rounds tagged floats as the codec does, and all else stays exact."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netoffload.codec import get
from netoffload.devices.packet import takes_bundles
from netoffload.lab.testbed import NicSettings, Testbed
from tests.shared.beds import built, counters, drops, flows, grown

PLAIN_SOCKET = Path(__file__).parents[2] / "docs" / "guide" / "plain_socket.py"


def documented_transfer(bed: Testbed, sent: Path, got: Path) -> None:
    """Send a file from n0 to n1 with the documented script."""
    script = PLAIN_SOCKET.read_text()
    assert "IP_TOS, 0x28" in script
    script = script.replace("sock.listen()", "sock.listen(); print('listening', flush=True)")
    receive = [sys.executable, "-c", script, "receive", str(got)]
    address = bed.plan.nodes[1].address
    with bed.popen(1, receive, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        with bed.popen(0, [sys.executable, "-c", script, "send", address, str(sent)]) as process:
            assert process.wait(timeout=60) == 0
        assert receiver.wait(timeout=60) == 0


@pytest.fixture
def gradient(tmp_path: Path) -> np.ndarray:
    values = np.random.default_rng(3).normal(0, 2e-3, 2_000_000).astype(np.float32)
    values[1000:1008] = 0.0, -0.0, np.inf, np.nan, 1.0, -2.5, 1e-40, 0.75  # behind what the NIC judges the stream by
    values.tofile(tmp_path / "sent.bin")
    return values


def test_an_unmodified_program_profits(nic_bed: Testbed, tmp_path: Path, gradient: np.ndarray) -> None:
    before, sent_before = nic_bed.wire_counters(), counters(nic_bed, 0)
    documented_transfer(nic_bed, tmp_path / "sent.bin", tmp_path / "got.bin")
    wire_octets = nic_bed.wire_counters()[0].tx_octets - before[0].tx_octets
    assert wire_octets < gradient.nbytes / 3
    wanted = get("inceptionn").round_trip(gradient, 10)
    got = np.fromfile(tmp_path / "got.bin", np.uint32)
    assert np.array_equal(got, wanted.view(np.uint32))
    changed = grown(nic_bed, 0, sent_before)
    # TCP may cut off a last segment of a few floats, which a block would not make smaller.
    least_octets = gradient.nbytes - 64 * changed.get("bypass_no_gain", 0)
    assert changed["tx_raw_octets"] >= least_octets, changed
    assert drops(counters(nic_bed)) == {}
    assert any(flow["direction"] == "rx" and flow["raw_octets"] >= least_octets for flow in flows(nic_bed, 1))


@pytest.mark.parametrize("mtu", [576, 9000])
def test_per_segment_packing_and_other_mtus(tmp_path: Path, gradient: np.ndarray, mtu: int) -> None:
    with built(mtu=mtu, nic=NicSettings(bound_k=6, packing="per-segment")) as bed:
        documented_transfer(bed, tmp_path / "sent.bin", tmp_path / "got.bin")
        got = np.fromfile(tmp_path / "got.bin", np.uint32)
        assert np.array_equal(got, get("inceptionn").round_trip(gradient, 6).view(np.uint32))
        sent = counters(bed, 0)
        mss = mtu - 20 - 32
        # The frame count is not reduced: no block has more than a segment. At most one segment leaves without a block.
        assert sent["tx_blocks"] * mss >= sent["tx_raw_octets"] >= gradient.nbytes - mss
        assert drops(sent) == {}


@pytest.mark.skipif(not takes_bundles(), reason="bundles of UDP datagrams need Linux 6.2")
@pytest.mark.parametrize(("mtu", "cut"), [(1500, True), (1500, False), (576, True)])
def test_bundles_arrive_whole_and_cut_apart(tmp_path: Path, gradient: np.ndarray, mtu: int, cut: bool) -> None:
    with built(mtu=mtu) as bed:
        node = bed.plan.nodes[0]
        if cut:  # a wire that takes no bundle: the kernel cuts it apart and fills in the checksums
            link = ["ip", "-n", node.wire_netns, "link", "set", node.wire_device, "gso_max_size", str(mtu)]
            subprocess.run(link, check=True)
        documented_transfer(bed, tmp_path / "sent.bin", tmp_path / "got.bin")
        got = np.fromfile(tmp_path / "got.bin", np.uint32)
        assert np.array_equal(got, get("inceptionn").round_trip(gradient, 10).view(np.uint32))
        sent, received = counters(bed, 0), counters(bed, 1)
        assert sent["tx_blocks"] == received["rx_blocks"] > 5 * sent["tx_segments"]
        if cut:
            assert received["rx_wire_frames"] >= received["rx_blocks"]
        else:
            assert received["rx_wire_frames"] < received["rx_blocks"] / 2
        assert drops(received) == {}
