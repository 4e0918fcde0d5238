"""The file of a key: two forms, readable only by its owner, and one clear line for every other file."""

import os
from pathlib import Path

import pytest

from netoffload.errors import NetOffloadError, SystemRefusedError, UsageError
from netoffload_daemon.key import load_key

KEY = bytes(range(32))


def write(path: Path, octets: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(octets)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("octets", "key"),
    [
        (KEY, KEY),
        (b"\n" * 32, b"\n" * 32),
        (KEY.hex().encode(), KEY),
        (KEY.hex().upper().encode() + b"\n", KEY),
        (KEY.hex().encode() + b"\r\n", KEY),
    ],
)
@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_both_forms(octets: bytes, key: bytes, mode: int, tmp_path: Path) -> None:
    assert load_key(write(tmp_path / "key", octets, mode)) == key


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        KEY[:-1],
        KEY + b"\n",
        KEY.hex().encode()[:-1],
        KEY.hex().encode() + b"\n\n",
        KEY.hex().encode() + b"\n" + b"0" * 64,
        b"g" * 64,
        "é".encode() * 32,
        b" " * 64,
        b"00 " * 21 + b"0",
    ],
)
def test_what_is_no_key_is_refused(octets: bytes, tmp_path: Path) -> None:
    refused(write(tmp_path / "key", octets), UsageError, "neither 32 octets nor 64 hexadecimal digits")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_have_rights_to_is_refused(mode: int, tmp_path: Path) -> None:
    refused(write(tmp_path / "key", KEY, mode), UsageError, "open to others than its owner: chmod 600")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "key", SystemRefusedError, "cannot be read: No such file or directory")
    os.mkfifo(tmp_path / "fifo", 0o600)
    refused(tmp_path / "fifo", UsageError, "is not a regular file")
    refused(Path("/dev/zero"), UsageError, "is not a regular file")
    refused(tmp_path, SystemRefusedError, "cannot be read: Is a directory")


def refused(path: Path, kind: type[NetOffloadError], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        load_key(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
