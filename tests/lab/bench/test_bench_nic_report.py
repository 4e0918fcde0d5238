"""The figures of ``bench nic`` from invented streams, whose figures are known."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netoffload.lab.bench import vpn_peers
from netoffload.lab.bench.experiment import Contender
from netoffload.lab.bench.nic import NicBench, Stage
from netoffload.lab.bench.settings import NicBenchSettings
from netoffload.lab.testbed.stream import Payload, StreamResult

PAYLOAD = Payload(4096, 4.5, Path("sent.bin"), Path("rounded.bin"))
PEER = "openvpn-lz4"
ASKED = NicBenchSettings("1gbit", "1GB", seconds=1.0, peers=PEER, round_trips=4)


def stream(gbps: float, wire_per_octet: float, machine_cores: float = 0.5, stolen_cores: float = 0.0) -> StreamResult:
    octets = 10**9
    seconds = 8 * octets / (gbps * 1e9)
    return StreamResult(
        octets=octets,
        seconds=seconds,
        wire_octets=round(octets * wire_per_octet),
        wire_frames=691_000,
        carrier_cpu_s=0.25,
        machine_cpu_s=machine_cores * seconds,
        stolen_s=stolen_cores * seconds,
        raw=1,
        wrong=0,
    )


def no_turn(_number: int) -> StreamResult:
    raise AssertionError("these streams are made up")


def samples(*gbps: float, wire: float = 1.0, cores: float = 0.5, stolen: float = 0.0) -> Contender[StreamResult]:
    return Contender("", no_turn, samples=[stream(one, wire, cores, stolen) for one in gbps])


def failed(why: str) -> Contender[StreamResult]:
    return Contender("", no_turn, failed=why)


def made_up(
    peer: Contender[StreamResult], asked: NicBenchSettings = ASKED, reason: str | None = None
) -> dict[str, Any]:
    cores = os.cpu_count() or 1
    unshaped = Stage(
        None,
        PAYLOAD,
        {},
        {
            "kernel": samples(10, 20, 90),
            "bypass": samples(15, 16, 14, cores=cores),
            "bypass_kernel": samples(18, 17, 40),
            "coalesced": samples(9, 6, 6),
            "coalesced_ipcomp": samples(5, 4, 3),
            "per_segment": samples(2, 2, 2, cores=cores / 2, stolen=cores / 2),
            "coalesced_keyed": samples(8, 5, 5),
        },
    )
    shaped = Stage(
        10**9,
        PAYLOAD,
        {},
        {
            "bypass": samples(0.96, 0.96, 0.5, wire=1.04),
            "coalesced": samples(3.6, wire=0.26),
            "coalesced_ipcomp": samples(3.5, wire=0.25),
            "per_segment": samples(1.2, wire=0.52, cores=cores),
            "coalesced_keyed": samples(3.4, wire=0.27),
            PEER: peer,
        },
    )
    rtts_us = {"kernel": [[10.0, 20.0, 30.0]] * 3, "nic": [[100.0, 120.0, 140.0]] * 3}
    unshaped.pings = {name: Contender(name, lambda _number: [], samples=times) for name, times in rtts_us.items()}
    bench = NicBench(asked)
    bench.stages += [unshaped, shaped]
    found = bench.findings(reason)
    assert found is not None
    return found.to_record()


def test_medians_ratios_and_limits() -> None:
    report = json.loads(json.dumps(made_up(samples(0.9))))
    assert report["kernel_Gbps"] == pytest.approx(20)
    assert report["bypass_over_kernel"] == pytest.approx(16 / 20)  # the middle one of 15/10, 16/20 and 14/90
    assert report["coalesced_over_bypass"] == pytest.approx(6 / 14)
    assert report["bypass_kernel_Gbps"] == pytest.approx(18)
    assert report["bypass_kernel_over_kernel"] == pytest.approx(17 / 20)
    assert report["tagged_Gbps"] == pytest.approx(
        {"coalesced": 6, "coalesced_ipcomp": 4, "per_segment": 2, "coalesced_keyed": 5}
    )
    [row] = report["shaped"]
    assert row["rate"] == "1gbit"
    assert row["untagged_Gbps"] == pytest.approx(0.96)
    assert row["ratio"] == pytest.approx(4)
    assert row["over_link"]["coalesced"] == pytest.approx(3.6 / (0.96 * 4))
    assert row["over_link"]["per_segment"] == pytest.approx(1.2 / (0.96 * 2))
    of_tagged = {"coalesced": "neither", "coalesced_ipcomp": "neither", "coalesced_keyed": "neither"}
    of_tagged["per_segment"] = "cores"
    assert row["limit"] == {"untagged": "link", **of_tagged}
    assert row["frames_per_MB"]["coalesced"] == pytest.approx(691)
    assert row["cpu_s_per_GB"]["coalesced"]["carriers"] == pytest.approx(0.25)
    assert report["rtt_us"] == pytest.approx(
        {"kernel": 20, "nic": 120, "kernel_p99": 29.8, "nic_p99": 139.6, "added": 100}
    )
    limits = {(one["rate"], one["contender"]): one["limit"] for one in report["streams"]}
    assert limits[None, "bypass"] == "cores"
    assert limits[None, "per_segment"] == "cores"  # half of them, and the other half was taken away
    assert limits[None, "kernel"] == "neither"
    stolen = {one["contender"]: one["stolen_share"] for one in report["streams"] if one["rate"] is None}
    assert (stolen["kernel"], stolen["per_segment"]) == (0, pytest.approx(0.5))


def test_rates_that_were_not_measured_are_missing_with_the_reason() -> None:
    asked = replace(ASKED, rates="1gbit,10gbit,100mbit")
    report = made_up(samples(0.9), asked, "the machine is too busy")
    assert report["missing"] == {"10gbit": "the machine is too busy", "100mbit": "the machine is too busy"}
    assert len(report["shaped"]) == 1
    assert made_up(samples(0.9))["missing"] == {}


def test_a_peer_that_failed_or_is_missing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    there = replace(vpn_peers.PEERS[PEER], program="true")
    monkeypatch.setitem(vpn_peers.PEERS, PEER, there)
    report = json.loads(json.dumps(made_up(samples(0.9))))
    assert report["peers"][PEER]["coalesced_over_peer"] == {"1gbit": pytest.approx(4)}
    report = json.loads(json.dumps(made_up(failed("it stalled"))))
    assert report["peers"][PEER]["failed"] == {"1gbit": "it stalled"}
    assert [row["contender"] for row in report["streams"]].count(PEER) == 0
    monkeypatch.setitem(vpn_peers.PEERS, PEER, replace(there, program="no-such-program"))
    report = json.loads(json.dumps(made_up(failed("missing"))))
    assert "install the package openvpn" in report["peers"][PEER]["missing"]


def test_peers_do_not_get_in_each_others_way() -> None:
    peers = vpn_peers.PEERS.values()
    for attribute in ("network", "port", "device"):
        assert len({getattr(peer, attribute) for peer in peers}) == len(peers)
