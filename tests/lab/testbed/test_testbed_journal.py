"""A journal lists everything that was made, whatever happened to its writer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netoffload.errors import TestbedError
from netoffload.lab.testbed import Plan, TestbedSettings, list_runs, make_plan, plan_of_run
from netoffload.lab.testbed.journal import JOURNAL_NAME, Journal, RunRecord, read_run
from netoffload.lab.testbed.processes import identify


def plan(root: Path, run_id: str = "abc") -> Plan:
    return make_plan(TestbedSettings(2, 10**8), run_id, root)


def recorded(root: Path) -> RunRecord:
    record = read_run(root / "abc")
    assert record is not None
    return record


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal.create(plan(tmp_path))
    journal.append("netns", name="no-abc-sw")
    journal.append("netns", name="no-abc-n0")
    journal.append("process", name="nic n0", pid=1, start_ticks=2)
    record = recorded(tmp_path)
    assert record.netns == ("no-abc-sw", "no-abc-n0")
    assert [(name, process.pid, process.start_ticks) for name, process in record.processes] == [("nic n0", 1, 2)]
    assert record.owner == identify(os.getpid())
    assert (record.state, record.ready, record.is_stale) == ("being built", False, False)
    assert plan_of_run(record) == plan(tmp_path)


def test_ready_and_detached_are_remembered(tmp_path: Path) -> None:
    journal = Journal.create(plan(tmp_path))
    journal.append("ready", rate_bps_measured=99.5e6)
    journal.append("detached")
    record = recorded(tmp_path)
    assert (record.state, record.rate_bps_measured, record.detached) == ("up", 99.5e6, True)


def test_a_line_cut_short_by_a_kill_is_ignored(tmp_path: Path) -> None:
    Journal.create(plan(tmp_path)).append("netns", name="no-abc-sw")
    path = tmp_path / "abc" / JOURNAL_NAME
    path.write_bytes(path.read_bytes() + b'{"event": "netns", "na')
    assert recorded(tmp_path).netns == ("no-abc-sw",)


def test_a_run_whose_owner_is_gone_is_stale_unless_detached(tmp_path: Path) -> None:
    journal = Journal.create(plan(tmp_path))
    path = tmp_path / "abc" / JOURNAL_NAME
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    header = json.loads(path.read_text())
    header["owner"]["pid"] = gone.pid
    path.write_text(json.dumps(header) + "\n")
    record = recorded(tmp_path)
    assert (record.is_stale, record.state) == (True, "owner gone")
    journal.append("detached")
    assert not recorded(tmp_path).is_stale


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a mount namespace")
def test_without_proc_it_says_what_to_mount(tmp_path: Path) -> None:
    program = """if True:
        import pathlib, sys
        from netoffload.lab.testbed import TestbedSettings, make_plan
        from netoffload.lab.testbed.journal import Journal
        Journal.create(make_plan(TestbedSettings(2, 10**8), "abc", pathlib.Path(sys.argv[1])))
    """
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; exec "$0" "$@"']
    command = [*hidden, sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "TestbedError: /proc does not show this process: mount it" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_reused_pid_is_not_the_owner(tmp_path: Path) -> None:
    Journal.create(plan(tmp_path))
    path = tmp_path / "abc" / JOURNAL_NAME
    header = json.loads(path.read_text())
    header["owner"]["start_ticks"] -= 1  # our pid, another process
    path.write_text(json.dumps(header) + "\n")
    assert recorded(tmp_path).is_stale


def test_a_run_id_is_taken_once(tmp_path: Path) -> None:
    Journal.create(plan(tmp_path))
    with pytest.raises(TestbedError, match="abc exists already"):
        Journal.create(plan(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["abc"]


def test_a_run_that_was_taken_down_does_not_come_back(tmp_path: Path) -> None:
    journal = Journal.create(plan(tmp_path))
    (tmp_path / "abc" / JOURNAL_NAME).unlink()
    with pytest.raises(TestbedError, match="taken down"):
        journal.append("netns", name="no-abc-sw")
    assert read_run(tmp_path / "abc") is None


def test_runs_are_listed_by_id_and_strangers_are_not(tmp_path: Path) -> None:
    for run_id in ("b", "a"):
        Journal.create(plan(tmp_path, run_id))
    (tmp_path / "stranger").mkdir()
    (tmp_path / "garbled").mkdir()
    (tmp_path / "garbled" / JOURNAL_NAME).write_text("\x00\n")
    assert [record.run_id for record in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "none") == []
