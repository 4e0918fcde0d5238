"""Flow tables in a file: kept, set aside when they are of another version, and never a reason not to start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netoffload.engine import flows
from netoffload.errors import DeviceError
from netoffload_daemon import table

FIRST, SECOND = flows.FlowKey(4, 0, 1, 0, 2, 3), flows.FlowKey(6, -1, 6, 5, 7, 8)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_flows_outlive_their_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flows.bin"
    tx, rx = table.open_tables(path)
    slot = flows.learn(tx, FIRST, 4711, 5)
    flows.learn(rx, SECOND, 9, 10)
    del tx, rx
    again_tx, again_rx = table.open_tables(path)
    assert flows.find(again_tx, FIRST) == slot
    assert again_tx[slot, flows.ISN] == 4711
    assert flows.find(again_rx, SECOND) != flows.NOT_FOUND
    assert flows.find(again_rx, FIRST) == flows.NOT_FOUND
    assert path.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""


def test_the_tables_have_all_their_blocks(tmp_path: Path) -> None:
    path = tmp_path / "flows.bin"
    table.open_tables(path)
    assert path.stat().st_blocks * 512 >= path.stat().st_size == table.HEADER_LEN + 2 * 8 * flows.SLOTS * flows.FIELDS


@pytest.mark.parametrize("damage", ["release", "format", "blocks", "fields", "shorter", "header"])
def test_another_table_of_ours_is_set_aside(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, old = tmp_path / "flows.bin", tmp_path / "flows.bin.old"
    old.write_bytes(b"of an earlier start")
    tx, _ = table.open_tables(path)
    flows.learn(tx, FIRST, 4, 5)
    del tx
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
    tx, _ = table.open_tables(path)
    assert flows.find(tx, FIRST) == flows.NOT_FOUND
    assert old.read_bytes() == wrong
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"flow table {path} is of another version or boot, or damaged: set aside as {old}" in said
    table.open_tables(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("what", ["text", "pipe", "folder"])
def test_what_is_not_ours_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "flows.bin"
    if what == "text":
        path.write_bytes(b"my diary")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DeviceError, match="is no flow table"):
        table.open_tables(path)
    assert os.listdir(tmp_path) == ["flows.bin"]
    assert what != "text" or path.read_bytes() == b"my diary"


def test_an_empty_file_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flows.bin"
    path.touch(0o644)
    table.open_tables(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""


def test_a_table_from_before_the_last_boot_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flows.bin"
    tx, _ = table.open_tables(path)
    flows.learn(tx, FIRST, 4, 5)
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("another boot")
    monkeypatch.setattr(table, "BOOT_ID", other_boot)
    tx, _ = table.open_tables(path)
    assert flows.find(tx, FIRST) == flows.NOT_FOUND


def test_a_place_that_cannot_be_written_means_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tx, _ = table.open_tables(tmp_path / "none" / "flows.bin")
    flows.learn(tx, FIRST, 4, 5)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be used (No such file or directory): this NIC keeps its flows in memory" in said


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, far less than two tables."""
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "netoffload-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@needs_root
def test_a_full_file_system_means_memory(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tables in table.open_tables(tiny / "flows.bin"):
        tables[:] = np.arange(flows.FIELDS)  # every page: one that is not there would end this process
    assert "(No space left on device): this NIC keeps its flows in memory" in capsys.readouterr().err
    assert os.listdir(tiny) == []


@needs_root
def test_a_table_with_holes_on_a_full_file_system_means_memory(tiny: Path, tmp_path: Path) -> None:
    table.open_tables(tmp_path / "flows.bin")
    whole = tmp_path.joinpath("flows.bin").read_bytes()
    with open(tiny / "flows.bin", "wb") as file:
        file.write(whole[: table.HEADER_LEN])
        file.truncate(len(whole))
    for tables in table.open_tables(tiny / "flows.bin"):
        tables[:] = np.arange(flows.FIELDS)
