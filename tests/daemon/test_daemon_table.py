"""A flow table in a file is kept; one of another version is set aside; neither ever stops a start."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netoffload.compiled.arrays import Int64Array
from netoffload.engine import flows
from netoffload.errors import DeviceError
from netoffload_daemon import table

FIRST, SECOND = flows.FlowKey(4, 0, 1, 0, 2, 3), flows.FlowKey(6, -1, 6, 5, 7, 8)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.bin"


def learn(flow_table: Int64Array, key: flows.FlowKey, isn: int) -> int:
    """Make a connection; return its slot."""
    slot = int(flows.make_slot(flow_table, key, 5))
    flows.begin(flow_table[slot], isn)
    return slot


def test_flows_outlive_their_process(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = table.open_table(path)[0]
    words = first[flows.KEY_ROW].copy()
    learn(first, FIRST, 4711)
    learn(first, SECOND, 9)
    rows = {key: first[flows.find(first, key)].copy() for key in (FIRST, SECOND)}
    del first
    again = table.open_table(path)[0]
    assert not np.array_equal(again[flows.KEY_ROW], words)  # nobody can use what he learned of the last hash
    for key, row in rows.items():
        assert np.array_equal(again[flows.find(again, key)], row)
    assert again[flows.find(again, FIRST), flows.ISN] == 4711
    assert path.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""


def test_the_table_has_all_its_blocks(path: Path) -> None:
    table.open_table(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == table.HEADER_LEN + 8 * flows.ROWS * flows.FIELDS


@pytest.mark.parametrize("damage", ["release", "format", "blocks", "fields", "shorter", "header"])
def test_another_table_of_ours_is_set_aside(path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    old = path.with_name("flows.bin.old")
    old.write_bytes(b"of an earlier start")
    found = table.open_table(path)[0]
    learn(found, FIRST, 4)
    del found
    octets = path.read_bytes()
    begin = b"netoffload flow table"
    wrong = {
        "release": (begin + b" 0.1.0 4096 23\n").ljust(len(octets), b"\0"),  # as it was before there was a format
        "format": octets.replace(b": format ", b": format 9", 1),
        "blocks": octets.replace(b"blocks ", b"blocks 9", 1),
        "fields": octets.replace(b"slots of ", b"slots of 9", 1),
        "shorter": octets[:-8],
        "header": begin,
    }[damage]
    path.write_bytes(wrong)
    found = table.open_table(path)[0]
    assert flows.find(found, FIRST) == flows.NOT_FOUND
    assert old.read_bytes() == wrong
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"flow table {path} is of another version or boot, or damaged: set aside as {old}" in said
    del found
    table.open_table(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("what", ["text", "pipe", "folder"])
def test_what_is_not_ours_is_refused_and_left_alone(path: Path, what: str) -> None:
    if what == "text":
        path.write_bytes(b"my diary")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DeviceError, match="is not a flow table"):
        table.open_table(path)
    assert os.listdir(path.parent) == ["flows.bin"]
    assert what != "text" or path.read_bytes() == b"my diary"


def test_an_empty_file_becomes_a_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.touch(0o644)
    table.open_table(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""


def test_a_table_from_before_the_last_boot_starts_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = table.open_table(path)[0]
    learn(found, FIRST, 4)
    other_boot = path.with_name("boot_id")
    other_boot.write_text("another boot")
    monkeypatch.setattr(table, "BOOT_ID", other_boot)
    found = table.open_table(path)[0]
    assert flows.find(found, FIRST) == flows.NOT_FOUND


def test_a_place_that_cannot_be_written_means_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = table.open_table(tmp_path / "none" / "flows.bin")[0]
    learn(found, FIRST, 4)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be used (No such file or directory): this NIC keeps its flows in memory" in said


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, far less than a table."""
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "netoffload-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@needs_root
def test_a_full_file_system_means_memory(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Every page: one that is not there would end this process.
    table.open_table(tiny / "flows.bin")[0][:] = np.arange(flows.FIELDS)
    assert "(No space left on device): this NIC keeps its flows in memory" in capsys.readouterr().err
    assert os.listdir(tiny) == []


@needs_root
def test_a_table_with_holes_on_a_full_file_system_means_memory(tiny: Path, path: Path) -> None:
    table.open_table(path)
    whole = path.read_bytes()
    with open(tiny / "flows.bin", "wb") as file:
        file.write(whole[: table.HEADER_LEN])
        file.truncate(len(whole))
    tiny.joinpath("flows.bin").chmod(0o600)
    found = table.open_table(tiny / "flows.bin")
    found.flows[:] = np.arange(flows.FIELDS)
    assert not found.outlives


def test_a_table_that_others_may_write_or_read_is_refused_and_left_alone(path: Path) -> None:
    table.open_table(path)
    octets = path.read_bytes()
    for mode in (0o620, 0o602, 0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(DeviceError, match="open to others than this user"):
            table.open_table(path)
    assert path.read_bytes() == octets
    path.chmod(0o600)
    assert table.open_table(path)[1]


@needs_root
def test_a_table_of_another_user_is_refused(path: Path) -> None:
    table.open_table(path)
    os.chown(path, 65_534, 65_534)
    with pytest.raises(DeviceError, match="open to others than this user"):
        table.open_table(path)


@pytest.mark.parametrize("has_target", [False, True])
def test_a_symbolic_link_is_not_followed(path: Path, has_target: bool) -> None:
    target = path.with_name("target")
    path.symlink_to(target)
    if has_target:
        target.write_bytes(b"")
    with pytest.raises(DeviceError, match="is a symbolic link"):
        table.open_table(path)
    assert target.exists() == has_target


def test_a_table_that_another_nic_has_is_refused_and_stays_as_it_is(path: Path) -> None:
    first = table.open_table(path).flows
    learn(first, FIRST, 4711)
    before = first.copy()
    with pytest.raises(DeviceError, match="is in use by another NIC: stop it, or name another file"):
        table.open_table(path)
    assert np.array_equal(first, before)
    del first
    assert table.open_table(path).outlives
