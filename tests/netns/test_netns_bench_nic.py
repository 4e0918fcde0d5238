"""``netoffload bench nic`` over real wires: too short for meaningful figures, but every figure is there."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from netoffload.errors import RunError
from netoffload.lab.bench.nic import checked
from netoffload.lab.bench.vpn_peers import PEERS, missing, tunnel
from netoffload.lab.testbed import Testbed
from netoffload.lab.testbed.stream import Payload, round_trips_us, run_stream

WORDS = ["bench", "nic", "--size", "8MB", "--seconds", "0.2", "--repeat", "1"]
OCTETS = 4_000_000


@pytest.fixture
def payload(tmp_path: Path) -> Payload:
    """A block of whole numbers that no codec changes, sent untagged."""
    np.arange(65_536, dtype=np.float32).tofile(tmp_path / "sent.bin")
    return Payload(4 * 65_536, 1.0, tmp_path / "sent.bin", tmp_path / "sent.bin")


@pytest.mark.timeout(400)
def test_every_figure_is_there() -> None:
    words = [*WORDS, "--rates", "200mbit", "--peers", "none", "--round-trips", "50", "--json"]
    done = subprocess.run([sys.executable, "-m", "netoffload", *words], capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    figures = [
        report["kernel_Gbps"],
        report["bypass_Gbps"],
        report["bypass_kernel_Gbps"],
        *report["tagged_Gbps"].values(),
        *(time_us for name, time_us in report["rtt_us"].items() if not name.endswith("added")),  # noise is as large
    ]
    assert {"bypass_kernel", "bypass_kernel_p99", "bypass_kernel_added"} <= report["rtt_us"].keys()
    [row] = report["shaped"]
    figures += [row[key] for key in ("untagged_Gbps", "per_segment_Gbps", "coalesced_Gbps", "ratio")]
    figures += row["frames_per_MB"].values()
    assert all(math.isfinite(figure) and figure > 0 for figure in figures)
    assert set(report["tagged_Gbps"]) == {"coalesced", "coalesced_ipcomp", "per_segment", "coalesced_keyed"}
    assert set(row["frames_per_MB"]) == {"untagged", "coalesced", "coalesced_ipcomp", "per_segment", "coalesced_keyed"}
    assert 4.3 < row["ratio"] < 4.6  # N(0, 0.002) at 2^-10, headers and all: no matter of speed
    assert row["frames_per_MB"]["coalesced"] < 0.3 * row["frames_per_MB"]["per_segment"]
    assert report["peers"] == {}


def test_a_tagged_stream_that_nobody_compressed_is_no_result(plain_bed: Testbed, payload: Payload) -> None:
    rounded = payload.sent.with_name("rounded.bin")
    np.ones(65_536, np.float32).tofile(rounded)
    with pytest.raises(RunError, match="not compressed"):
        checked(run_stream(plain_bed, replace(payload, rounded=rounded), OCTETS, tagged=True))


def test_streams_and_round_trips_between_plain_nodes(plain_bed: Testbed, payload: Payload) -> None:
    result = run_stream(plain_bed, payload, OCTETS, tagged=False)
    assert result.octets < result.wire_octets < 1.1 * result.octets
    assert result.wire_frames > OCTETS / 1448
    assert (result.raw, result.wrong) == (0, 0)
    times_us = round_trips_us(plain_bed, 20)
    assert len(times_us) == 20
    assert min(times_us) > 0


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_carries_a_stream(plain_bed: Testbed, payload: Payload, name: str) -> None:
    if reason := missing(PEERS[name]):
        pytest.skip(reason)
    with tunnel(plain_bed, PEERS[name]) as there:
        result = run_stream(
            plain_bed, payload, OCTETS, tagged=False, address=PEERS[name].address(1), carriers=there.pids
        )
        assert checked(result).wire_octets > OCTETS / 2
    assert not any(Path("/proc", str(pid)).exists() for pid in there.pids)
