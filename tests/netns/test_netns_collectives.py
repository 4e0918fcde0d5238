"""Collectives between nodes whose NICs compress: right values, the NICs' accounts, and NICs and links that fail."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netoffload.errors import RunError
from netoffload.lab.testbed import Testbed, run_ranks
from netoffload.netlink import Namespace
from netoffload.transport.wiring import nearby
from tests.mpi.verify.failures import FAMILIES
from tests.shared.beds import asked, built, output_of

pytestmark = pytest.mark.mpi

PROGRAMS = Path(__file__).with_name("programs")


def test_long_calls_through_nics_are_accounted(nic_bed: Testbed) -> None:
    words = ["python", str(PROGRAMS / "nic_accounts.py")]
    result = output_of(nic_bed, range(4), words, timeout_s=90)
    assert sorted(result.split("\n")[:4]) == [f"rank {rank} ok" for rank in range(4)]


def test_every_call_through_nics_is_the_codecs_arithmetic(nic_bed: Testbed) -> None:
    program = ["python", "-m", "tests.mpi.verify", "--ranks", "4", "--size", "3001", "--size", "70001"]
    record = json.loads(output_of(nic_bed, range(4), program, timeout_s=100))
    assert record["mismatch"] is None
    assert record["has_nic"]
    assert record["cases"] > 600


def test_one_round_through_nics_is_right(nic_bed: Testbed) -> None:
    program = ["-m", "netoffload", "verify", "collectives", "--count", "50000", "--json"]
    record = json.loads(output_of(nic_bed, range(4), program, timeout_s=60))
    assert not any(record["wrong"].values())
    assert (record["ranks"], record["has_nic"], record["offload"], record["codec"]) == (4, True, "nic", "inceptionn:10")


def test_compression_that_is_required_and_missing_is_an_error(plain_bed: Testbed) -> None:
    words = ["python", str(PROGRAMS / "sum_compressed.py")]
    required = {"NETOFFLOAD_REQUIRE": "1", "NETOFFLOAD_OFFLOAD": "nic"}
    result = output_of(plain_bed, range(2), words, env=required, timeout_s=60)
    assert result.count("compression is required, but no rank knows a NIC") == 2


def kill_nic(bed: Testbed) -> None:
    os.kill(asked(bed, 1, "info")["pid"], signal.SIGKILL)


def cut_link(bed: Testbed) -> None:
    node = bed.plan.nodes[1]
    subprocess.run(["ip", "-n", node.wire_netns, "link", "set", node.wire_device, "down"], check=True)


@pytest.mark.parametrize(
    ("strike", "calls"), [(kill_nic, ["allreduce, ring", "allreduce, wa", "send and receive"]), (cut_link, [*FAMILIES])]
)
def test_every_rank_names_the_node_that_is_cut_off_in_every_call(
    strike: Callable[[Testbed], None], calls: list[str], tmp_path: Path
) -> None:
    program = ["python", "-m", "tests.mpi.verify.failures", "--timeout", "4", "--out", str(tmp_path)]
    program += [word for call in calls for word in ("--family", call)]
    with built(3) as bed:

        def launch() -> None:
            with contextlib.suppress(RunError):  # what ranks leave behind is looked at, not how mpiexec ends
                run_ranks(bed, range(3), program, timeout_s=90)

        ranks = threading.Thread(target=launch)
        ranks.start()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("ready.*"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        strike(bed)
        ranks.join()
    told = {rank: json.loads((tmp_path / f"told.{rank}").read_text()) for rank in range(3)}
    cut_off = "rank 1 has heard no other rank for 4 s: its link or its NIC is down"
    for call in calls:
        for rank, said in ((0, "rank 1 was silent for 4 s"), (1, cut_off), (2, "rank 1 was silent for 4 s")):
            assert told[rank][call]["error"].startswith(f"PeerLostError: {said}"), (call, rank)


def test_ranks_of_another_namespace_are_not_nearby() -> None:
    token = os.urandom(16)
    with nearby.listen(token), Namespace.anonymous() as elsewhere:
        assert elsewhere.call(lambda: nearby.connect(token)) is None
        assert nearby.connect(token) is not None
