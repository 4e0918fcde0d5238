"""The flow tables in a memory-mapped file, so that a NIC that is killed and started again knows its flows.

A persistent TAP keeps the host's addresses and connections while no NIC is attached; what would be lost is where each
flow's floats start and what its peer decodes. The loop writes the tables as it always does, and the kernel keeps the
pages.

The first page says what the file is. A file of another version, of other tables or from before the last boot (its times
mean nothing now) is refused or started anew, never guessed at: see :func:`open_tables`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

import netoffload
from netoffload.engine.counters import Int64Array
from netoffload.engine.flows import FIELDS, ROWS, SLOTS, make_flows, rekey
from netoffload.errors import DeviceError

HEADER_LEN: Final = 4096
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def open_table(path: Path | None) -> Int64Array:
    """Return the transmit and the receive flow table, kept in the file at ``path`` (None: in memory only).

    A file that is not there, or was written before the last boot, starts with empty tables.

    Raises:
        DeviceError: the file is not ours, is from another version, or cannot be written.
    """
    if path is None:
        return make_flows()
    header, boot = _header(), _boot()
    try:
        if not path.exists() or path.stat().st_size == 0:
            _make(path, header, boot)
        with open(path, "rb") as file:
            found = file.read(len(header) + len(boot))
        size = path.stat().st_size
        if found[: len(header)] != header or size != HEADER_LEN + ROWS * FIELDS * 8:
            raise DeviceError(f"flow table {path} is not one of netoffload {netoffload.__version__}: remove it")
        if found[len(header) :] != boot:
            _make(path, header, boot)
        tables = np.memmap(path, np.int64, "r+", offset=HEADER_LEN, shape=(ROWS, FIELDS))
    except OSError as error:
        raise DeviceError(f"flow table {path} cannot be used: {error.strerror}") from error
    flows = np.asarray(tables)
    rekey(flows)
    return flows


def _header() -> bytes:
    return f"netoffload flow table {netoffload.__version__} {SLOTS} {FIELDS}\n".encode()


def _boot() -> bytes:
    return hashlib.sha256(BOOT_ID.read_bytes()).digest()


def _make(path: Path, header: bytes, boot: bytes) -> None:
    with open(path, "wb") as file:
        file.write((header + boot).ljust(HEADER_LEN, b"\0"))
        file.truncate(HEADER_LEN + ROWS * FIELDS * 8)
    path.chmod(0o600)
