"""The account from the NIC: sums over a communicator's connections, and why a connection was not compressed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netoffload.control import Handler, serve_control
from netoffload.engine.counters import Counter
from netoffload.errors import CollectiveError
from netoffload.transport.info import CommInfo, Connection, NicAccount, NicShare, with_nic

OWN, OTHER = ("10.0.0.1", 5000), ("10.0.0.2", 6000)


Nic = tuple[str, list[dict[str, Any]], dict[str, int]]
"""Path, table and counters of a NIC."""


def flow(**changes: Any) -> dict[str, Any]:
    """One entry as a NIC's control socket answers it."""
    return {
        "direction": "tx",
        "src": OWN[0],
        "sport": OWN[1],
        "dst": OTHER[0],
        "dport": OTHER[1],
        "segments": 2,
        "raw_octets": 4000,
        "payload_octets": 1000,
        "wire_octets": 1180,
        "blocks": 2,
        "bypassed_segments": 0,
        "peer_decodes": True,
        "promised_by": "socket",
        "verdict": "floats",
        "on_probation": False,
        "closed": False,
        **changes,
    }


@pytest.fixture
def nic(tmp_path: Path) -> Iterator[Nic]:
    """A control socket with a table and counters that the test fills."""
    flows: list[dict[str, Any]] = []
    counters = {counter.name.lower(): 0 for counter in Counter}
    handlers: dict[str, Handler] = {"flows": lambda _: {"flows": flows}, "counters": lambda _: {"counters": counters}}
    path = tmp_path / "nic.sock"
    with serve_control(path, handlers):
        yield str(path), flows, counters


def account(path: str | None, sent: int = 4000) -> NicAccount:
    connections: list[Connection] = [(1, OWN, OTHER, sent)]
    return NicAccount(path, lambda: connections)


def test_only_the_own_connections_count(nic: Nic) -> None:
    path, flows, counters = nic
    flows += [flow(), flow(sport=1), flow(direction="rx", raw_octets=9)]
    counters["tx_class_0"], counters["tx_class_32"] = 30, 10
    reading = account(path).read()
    assert reading is not None
    share = reading[0]
    assert (share.raw_octets, share.frames, share.wire_octets) == (4000, 2, 1180)
    assert share.ratio == 4000 / share.wire_octets
    assert share.class_shares == {"0": 0.75, "8": 0.0, "16": 0.0, "32": 0.25}
    later = NicShare(5000, 1200, 1400, 3, 1, 1, (30, 0, 0, 11), 2.0) - share
    assert later == NicShare(1000, 200, 220, 1, 1, 1, (0, 0, 0, 1), 2.0)
    assert with_nic(CommInfo(calls=1), reading, share).nic == NicShare()
    account(path).require_compression()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (None, "did not see its SYN"),
        (flow(on_probation=True), "on probation"),
        (flow(peer_decodes=False, raw_octets=0, bypassed_segments=3), "peer's NIC does not decode"),
        (flow(promised_by="no socket", raw_octets=0, bypassed_segments=3), "no socket that promises floats"),
        (flow(promised_by="nobody", raw_octets=0, bypassed_segments=3), "no socket that promises floats"),
        (flow(verdict="not floats", bypassed_segments=3), "does not look like floats"),
    ],
)
def test_a_flow_that_stayed_raw_is_named_with_the_reason(nic: Nic, entry: dict[str, Any] | None, reason: str) -> None:
    path, flows, _ = nic
    flows += [] if entry is None else [entry]
    with pytest.raises(CollectiveError, match=rf"flow 10.0.0.1:5000 -> 10.0.0.2:6000 to rank 1 is raw: .*{reason}"):
        account(path).require_compression()


def test_what_compression_would_not_make_smaller_is_no_reason(nic: Nic) -> None:
    path, flows, _ = nic
    flows.append(flow(raw_octets=0, bypassed_segments=1))
    account(path).require_compression()


def test_without_a_nic_nothing_is_known_and_nothing_can_be_required() -> None:
    assert account(None).read() is None
    account(None, sent=0).require_compression()
    with pytest.raises(CollectiveError, match="this rank has no NIC"):
        account(None).require_compression()


def test_what_few_octets_took_another_way_is_required_as_well(nic: Nic) -> None:
    path, flows, _ = nic
    with pytest.raises(CollectiveError, match="this rank has no NIC"):
        account(None, sent=0).require_compression(aside_octets=1048)
    with pytest.raises(CollectiveError, match="the NIC did not see its SYN"):
        account(path, sent=0).require_compression(aside_octets=1048)
    flows.append(flow(raw_octets=0))
    account(path, sent=0).require_compression(aside_octets=1048)
