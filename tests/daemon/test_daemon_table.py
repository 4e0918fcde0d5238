"""Flow tables in a file: kept, refused when they are somebody else's, started anew after a boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from netoffload.engine import flows
from netoffload.errors import DeviceError
from netoffload_daemon import table

FIRST, SECOND = flows.FlowKey(4, 0, 1, 0, 2, 3), flows.FlowKey(6, -1, 6, 5, 7, 8)


def test_flows_outlive_their_process(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("damage", ["version", "shorter", "text"])
def test_another_table_is_refused_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "flows.bin"
    table.open_tables(path)
    octets = path.read_bytes()
    wrong = {"version": octets.replace(b"table 0.", b"table 9.", 1), "shorter": octets[:-8], "text": b"my diary"}[
        damage
    ]
    path.write_bytes(wrong)
    with pytest.raises(DeviceError, match="is not one of netoffload"):
        table.open_tables(path)
    assert path.read_bytes() == wrong


def test_a_table_from_before_the_last_boot_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "flows.bin"
    tx, _ = table.open_tables(path)
    flows.learn(tx, FIRST, 4, 5)
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("another boot")
    monkeypatch.setattr(table, "BOOT_ID", other_boot)
    tx, _ = table.open_tables(path)
    assert flows.find(tx, FIRST) == flows.NOT_FOUND


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be used"):
        table.open_tables(tmp_path / "none" / "flows.bin")
