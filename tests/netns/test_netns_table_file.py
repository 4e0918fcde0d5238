"""The file of a flow table: root's NIC takes no file that others own or may write, and follows no symbolic link."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.shared.beds import nic_command
from tests.shared.commands import started_nic

STRANGER = 12_345
START_S = 60.0
DEVICE = "h5tap"


@dataclass(frozen=True)
class Started:
    """A NIC that forwards or has ended, and what it said."""

    forwards: bool
    exit_code: int | None
    said: str


@contextlib.contextmanager
def nic_with_table(wire: str, table: Path) -> Iterator[Started]:
    """Start a NIC with a flow table in a namespace of its own, and end it."""
    log = table.with_name("nic.log")
    words = ["--host", f"tap:{DEVICE}", "--host-netns", wire, "--wire", "w0", "--wire-netns", wire, "--ephemeral"]
    words += ["--flow-table", str(table)]
    with (
        log.open("wb") as output,
        started_nic(words, nic_command(), stdout=output, stderr=subprocess.STDOUT) as (process, forwards),
    ):
        exit_code = None if forwards else process.wait(START_S)
        yield Started(forwards, exit_code, log.read_text())
        process.terminate()
        process.wait(START_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that everyone may use, as /tmp."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared


def make_table(wire: str, folder: Path) -> Path:
    """Return the file of a NIC that has ended: a flow table of this version and boot."""
    table = folder / "made" / "flows.bin"
    table.parent.mkdir()
    with nic_with_table(wire, table) as nic:
        assert nic.forwards, nic.said
    return table


def is_refused_in_one_line(nic: Started) -> bool:
    lines = [line for line in nic.said.splitlines() if line.strip()]
    return nic.exit_code in (2, 3) and "Traceback" not in nic.said and "flow" in lines[-1]


@pytest.mark.parametrize("target", ["missing", "empty", "table"])
def test_a_symbolic_link_is_not_followed(wire: str, folder: Path, target: str) -> None:
    victim = folder / "victim"
    if target == "empty":
        victim.touch()
    elif target == "table":
        shutil.copy(make_table(wire, folder), victim)
    before = (victim.read_bytes(), victim.stat().st_mode, victim.stat().st_mtime_ns) if victim.exists() else None
    link = folder / "flows.bin"
    link.symlink_to(victim)
    os.lchown(link, STRANGER, STRANGER)
    with nic_with_table(wire, link) as nic:
        pass
    after = (victim.read_bytes(), victim.stat().st_mode, victim.stat().st_mtime_ns) if victim.exists() else None
    assert after == before, "the NIC wrote through the link"
    assert is_refused_in_one_line(nic) or "flow" in nic.said, nic.said
    if nic.forwards:
        assert not link.is_symlink()


@pytest.mark.parametrize(
    ("owner", "mode"),
    [(STRANGER, 0o600), (STRANGER, 0o666), (0, 0o666), (0, 0o620)],
    ids=["another owner", "another owner, all write", "all write", "the group writes"],
)
@pytest.mark.parametrize("content", ["table", "empty"])
def test_a_table_that_others_may_write_is_not_used(
    wire: str, folder: Path, owner: int, mode: int, content: str
) -> None:
    table = folder / "flows.bin"
    if content == "table":
        shutil.copy(make_table(wire, folder), table)
    else:
        table.touch()
    os.chown(table, owner, owner)
    table.chmod(mode)
    octets, inode = table.read_bytes(), table.stat().st_ino
    with open(table, "rb") as kept:  # so that the inode stays taken
        with nic_with_table(wire, table) as nic:
            used = table.stat() if table.exists() else None
        assert kept.read() == octets, "the NIC wrote into a file that others may write"
    if nic.forwards:
        assert used is None or (used.st_ino != inode and used.st_uid == 0 and used.st_mode & 0o077 == 0)
        assert "flow" in nic.said, "the NIC says nothing about the file that it does not use"
    else:
        assert is_refused_in_one_line(nic), nic.said
        assert table.read_bytes() == octets


def test_a_table_of_its_own_is_used_again(wire: str, folder: Path) -> None:
    table = make_table(wire, folder)
    inode = table.stat().st_ino
    assert table.stat().st_mode & 0o777 == 0o600
    with nic_with_table(wire, table) as nic:
        assert nic.forwards, nic.said
        assert table.stat().st_ino == inode
    assert "flow" not in nic.said.lower()
