"""The figures that follow from counters and flows."""

import pytest

from netoffload.engine import summary
from netoffload.engine.counters import as_dict, make_counters

FLOW = {
    **{"direction": "tx", "src": "10.0.0.1", "sport": 1, "dst": "10.0.0.2", "dport": 2, "raw_octets": 400},
    **{"payload_octets": 100, "peer_decodes": True, "on_probation": False, "verdict": "floats", "closed": False},
}


def counted(**values: int) -> dict[str, int]:
    return as_dict(make_counters()) | values


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "compressed"),
        ({"peer_decodes": False}, "peer cannot"),
        ({"direction": "rx", "peer_decodes": False}, "compressed"),
        ({"on_probation": True, "raw_octets": 0}, "probation"),
        ({"on_probation": True, "peer_decodes": False}, "peer cannot"),
        ({"verdict": "not floats", "raw_octets": 0}, "not floats"),
        ({"verdict": "not floats", "peer_decodes": False}, "peer cannot"),
        ({"verdict": "undecided", "raw_octets": 0, "payload_octets": 0}, "raw"),
    ],
)
def test_a_flows_state_has_a_name(changes: dict[str, object], state: str) -> None:
    assert summary.flow_state(FLOW | changes) == state


def test_a_flow_is_named_by_both_ends() -> None:
    assert summary.describe_flow(FLOW)["flow"] == "10.0.0.1:1 -> 10.0.0.2:2"
    assert summary.describe_flow(FLOW)["ratio"] == 4
    assert summary.describe_flow(FLOW | {"src": "fd00::1"})["flow"] == "[fd00::1]:1 -> 10.0.0.2:2"
    assert summary.describe_flow(FLOW | {"payload_octets": 0})["ratio"] is None


def test_nothing_counted_has_no_ratio_and_no_shares() -> None:
    assert summary.class_shares(counted()) is None
    assert summary.direction(counted(), "tx").ratio is None
    assert summary.class_shares(counted(tx_class_0=3, tx_class_32=1)) == {"0": 0.75, "8": 0, "16": 0, "32": 0.25}


def test_rates_are_of_the_interval() -> None:
    before = counted(tx_host_octets=1000, tx_raw_octets=800, tx_payload_octets=800, drop_runt=7)
    after = before | {
        **{"tx_host_octets": 5000, "tx_wire_octets": 1500, "tx_raw_octets": 4800, "tx_payload_octets": 1800},
        **{"rx_wire_octets": 500, "rx_raw_octets": 900, "rx_payload_octets": 300, "drop_runt": 9},
        **{"tx_wire_frames": 6, "rx_wire_frames": 2, "bypass_peer": 4},
    }
    rates = summary.rates(before, after, 2.0)
    assert (rates.tx_host_bps, rates.tx_wire_bps, rates.tx_ratio) == (16000, 6000, 4)
    assert (rates.rx_host_bps, rates.rx_wire_bps, rates.rx_ratio) == (4 * 1100, 2000, 3)
    assert (rates.frames_per_s, rates.drops_per_s, rates.bypasses_per_s) == (4, 1, 2)


def test_a_nic_that_was_started_again_counts_from_zero() -> None:
    rates = summary.rates(counted(tx_wire_octets=10**9), counted(tx_wire_octets=125), 1.0)
    assert rates.tx_wire_bps == 1000
