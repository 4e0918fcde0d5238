"""A testbed with NICs: untagged traffic crosses both of them, and their counters agree."""

import os
import signal
from collections.abc import Callable

import pytest

from netoffload.errors import TestbedError
from netoffload.lab.testbed import NicSettings, Testbed, TestbedSettings, build, make_plan, run_ranks
from netoffload.lab.testbed.processes import identify
from tests.netns.programs.both_ways import carry_both_ways
from tests.shared.beds import asked, built, nic_pids, wait_for_end_of_nic

OCTETS = 1_000_000


def test_octets_cross_both_nics_bit_exact_and_are_counted(nic_bed: Testbed) -> None:
    stream = os.urandom(OCTETS)
    before = nic_bed.wire_counters()
    arrived = carry_both_ways(nic_bed, stream, (0, 0), port=5001)
    assert arrived.forth == arrived.back == stream
    after = nic_bed.wire_counters()
    mss_octets = nic_bed.plan.settings.mtu - 20 - 20
    for index in (0, 1):
        octets = after[index].tx_octets - before[index].tx_octets
        frames = after[index].tx_frames - before[index].tx_frames
        assert OCTETS * 1.02 < octets < OCTETS * 1.2  # every header of every segment
        assert OCTETS / mss_octets < frames < 3 * OCTETS / mss_octets  # segments, not super-segments
    # The bridge knows who lives where; a kernel may have asked for an address meanwhile.
    assert after[2].tx_octets - before[2].tx_octets < mss_octets


def test_nics_that_compress_any_octets_do_not_change_the_rate_that_is_measured(run_id: str) -> None:
    settings = TestbedSettings(2, 100_000_000, nic=NicSettings(codec="exact", tag="any"))
    with Testbed(make_plan(settings, run_id)) as bed:
        assert bed.rate_bps_measured == pytest.approx(100e6, rel=0.05)


def test_a_rate_that_faults_keep_away_from_is_refused_as_such(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ATTEMPTS", 1)
    plan = make_plan(TestbedSettings(2, 100_000_000, nic=NicSettings(faults="loss=0.05,seed=1")), run_id)
    with pytest.raises(TestbedError, match="the faults that NICs make on purpose"), Testbed(plan):
        pass


def test_a_run_with_nics_ends_them_and_leaves_nothing(run_id: str, left_of: Callable[[str], list[str]]) -> None:
    with built(run_id=run_id, nic=NicSettings(bound_k=6, packing="per-segment")) as bed:
        pids = nic_pids(bed)
        info = asked(bed, 0, "info")
        assert (info["pid"], info["codec"], info["bound_k"], info["packing"]) == (
            pids[0],
            "inceptionn",
            6,
            "per-segment",
        )
    assert left_of(run_id) == []
    assert [identify(pid) for pid in pids] == [None, None]


def test_a_nic_that_died_is_seen_before_anything_starts(run_id: str) -> None:
    with Testbed(make_plan(TestbedSettings(1), run_id)) as bed:
        os.kill(nic_pids(bed)[0], signal.SIGKILL)
        wait_for_end_of_nic(bed, 0)
        with pytest.raises(TestbedError, match=rf"the NIC of n0 in run {run_id} has ended"):
            run_ranks(bed, [0], ["true"], timeout_s=20)
