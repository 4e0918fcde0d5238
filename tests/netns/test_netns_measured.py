"""What the measuring programs of this folder find in short runs. They print JSON lines; long runs are by hand."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netoffload.engine.flows import SLOTS
from tests.shared.quick_cases import NIGHT, by_day
from tests.soak import nft_path

PROGRAMS = Path(__file__).with_name("programs")
needs_nft = pytest.mark.skipif(nft_path() is None, reason="nft is not installed: nothing counts or drops at the switch")


def found(program: str, *words: object, timeout_s: float = 110) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of a program, and its exit code."""
    command = [sys.executable, str(PROGRAMS / program), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


@pytest.mark.parametrize(
    ("count", "in_progress"),
    [
        pytest.param(200, 0, id="200 at once"),
        pytest.param(2000, 0, id="2000 at once", marks=pytest.mark.slow),
        pytest.param(2000, 8, id="2000, 8 at a time", marks=pytest.mark.slow),
    ],
)
def test_no_tagged_connection_of_many_is_raw(count: int, in_progress: int) -> None:
    [row], _ = found("fast_parallel.py", "--count", count, "--in-progress", in_progress)
    assert (row["torn"], row["missing"], row["raw"]) == (0, 0, 0), row


SHARE_MAX = 0.5
"""Octets on the wire per octet of a compressed stream, with all headers."""
COUNT = 20_000 if NIGHT else SLOTS + SLOTS // 2
SECONDS = 60 if NIGHT else 8


@needs_nft
@pytest.mark.parametrize("kind", ["reset", "reset-no-nic", "expire", "expire-no-nic"])
def test_connections_of_an_unprivileged_user_that_are_gone_leave_room_for_new_ones(kind: str) -> None:
    [row], _ = found("flood.py", "--kinds", kind, "--count", COUNT)
    error = "ECONNRESET" if kind.startswith("reset") else "ETIMEDOUT"
    assert row["outcomes"] == {error: COUNT}
    assert max(row["new_shares_on_wire"]) < SHARE_MAX, row


@needs_nft
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_flood_changes_no_established_flow_and_leaves_room() -> None:
    [row], _ = found("flood.py", "--kinds", "spray", "--seconds", SECONDS, timeout_s=200)
    assert row["begun"] > 1000 * SECONDS
    assert row["looks"] > SECONDS
    assert row["share_on_wire_max"] < SHARE_MAX, row
    assert max(row["new_shares_on_wire"]) < SHARE_MAX, row


ERRORS = ("too big", "port unreachable", "protocol unreachable")
ERRORS_BY_DAY = [("udp", "port unreachable", 4), ("ipcomp", "protocol unreachable", 6), ("udp", "too big", 6)]
SHARE_CHANGE_MAX = 0.1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("encapsulation", "error", "version"), by_day(itertools.product(("udp", "ipcomp"), ERRORS, (4, 6)), ERRORS_BY_DAY)
)
def test_icmp_errors_about_blocks_that_a_third_host_forges_change_nothing(
    encapsulation: str, error: str, version: int
) -> None:
    options = ["--version", version, "--errors", error, "--encapsulation", encapsulation]
    options += ["--count", 1000 if NIGHT else 100, "--look-s", 1.5 if NIGHT else 0.7]
    rows, code = found("forge_icmp.py", *options, timeout_s=280)
    assert [(row["quotes"], row["changed"], row["counters"]) for row in rows if row["changed"]] == []
    assert [row["quotes"] for row in rows if row["share_change"] > SHARE_CHANGE_MAX] == []
    assert code == 0


TRANSFERS = 12


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_writes_that_cut_floats_tear_none_over_wires_that_lose_frames() -> None:
    """How long such transfers take beside untagged ones is a measurement: ``--count 30 --parallel 30``."""
    options = ["--count", TRANSFERS, "--parallel", TRANSFERS, "--octets", 20_000, "--limit-s", 40]
    [*rows, _], _ = found("loss_cut.py", *options, timeout_s=140)
    assert len(rows) == 2 * TRANSFERS
    assert all(row["torn_values"] == 0 for row in rows)
    finished = [row for row in rows if row["outcome"] == "finished" and row["tagged"]]
    assert len(finished) >= TRANSFERS // 2, rows
    assert all(row["short_octets"] == 0 for row in finished)


RESTARTS = [
    (number, node, count)
    for count, numbers, nodes in ((20, ("TERM", "KILL"), ("0", "both")), (100, ("TERM", "KILL"), ("0",)))
    for number in numbers
    for node in nodes
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "node", "count"), by_day(RESTARTS, [("TERM", "0", 20), ("KILL", "both", 20)]))
def test_no_connection_hangs_or_is_torn_after_a_restart_without_options(number: str, node: str, count: int) -> None:
    options = ["--signal", number, "--node", node, "--count", count, "--limit-s", 60]
    [row], code = found("restart_cut.py", *options)
    assert row["hung"] == row["torn_values"] == row["short"] == 0, row
    assert row["finished"] + row["reset"] == count
    assert code == 0
