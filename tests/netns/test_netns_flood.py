"""An unprivileged user fills the flow table: tagged connections are compressed all the same, new and old ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netoffload.engine.flows import SLOTS
from tests.soak import nft_path

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing counts what crosses the switch"),
]

PROGRAM = str(Path(__file__).with_name("programs") / "flood.py")
SHARE_MAX = 0.5
"""Octets on the wire per octet of a compressed stream, with all headers."""
SOME = SLOTS + SLOTS // 2
MANY = 20_000


def flood(kind: str, *options: str, timeout_s: float = 110) -> dict[str, Any]:
    command = [sys.executable, PROGRAM, "--kinds", kind, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["reset", "reset-no-nic", "expire", "expire-no-nic"])
@pytest.mark.parametrize("count", [SOME, pytest.param(MANY, marks=pytest.mark.slow)])
def test_connections_that_are_gone_leave_room_for_new_ones(kind: str, count: int) -> None:
    found = flood(kind, "--count", str(count))
    error = "ECONNRESET" if kind.startswith("reset") else "ETIMEDOUT"
    assert found["outcomes"] == {error: count}
    assert max(found["new_shares_on_wire"]) < SHARE_MAX, found


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [8, 60])
def test_a_flood_changes_no_established_flow_and_leaves_room(seconds: int) -> None:
    found = flood("spray", "--seconds", str(seconds), timeout_s=200)
    assert found["begun"] > 1000 * seconds
    assert found["looks"] > seconds
    assert found["share_on_wire_max"] < SHARE_MAX, found
    assert max(found["new_shares_on_wire"]) < SHARE_MAX, found
