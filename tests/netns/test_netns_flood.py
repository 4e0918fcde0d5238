"""An unprivileged user fills the flow table: tagged connections are compressed all the same, new and old ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netoffload.engine.flows import SLOTS
from tests.shared.quick_cases import NIGHT
from tests.soak import nft_path

pytestmark = pytest.mark.skipif(
    nft_path() is None, reason="nft is not installed: nothing counts what crosses the switch"
)

PROGRAM = str(Path(__file__).with_name("programs") / "flood.py")
SHARE_MAX = 0.5
"""Octets on the wire per octet of a compressed stream, with all headers."""
COUNT = 20_000 if NIGHT else SLOTS + SLOTS // 2
SECONDS = 60 if NIGHT else 8


def flood(kind: str, *options: str, timeout_s: float = 110) -> dict[str, Any]:
    command = [sys.executable, PROGRAM, "--kinds", kind, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["reset", "reset-no-nic", "expire", "expire-no-nic"])
def test_connections_that_are_gone_leave_room_for_new_ones(kind: str) -> None:
    found = flood(kind, "--count", str(COUNT))
    error = "ECONNRESET" if kind.startswith("reset") else "ETIMEDOUT"
    assert found["outcomes"] == {error: COUNT}
    assert max(found["new_shares_on_wire"]) < SHARE_MAX, found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_flood_changes_no_established_flow_and_leaves_room() -> None:
    found = flood("spray", "--seconds", str(SECONDS), timeout_s=200)
    assert found["begun"] > 1000 * SECONDS
    assert found["looks"] > SECONDS
    assert found["share_on_wire_max"] < SHARE_MAX, found
    assert max(found["new_shares_on_wire"]) < SHARE_MAX, found
