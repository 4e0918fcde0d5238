"""The flow table in a memory-mapped file, so that a NIC that is killed and started again knows its flows.

A persistent TAP keeps the host's addresses and connections while no NIC is attached. Without the table, the next NIC
would not know where each flow's floats start and what its peer decodes. The loop writes the table as in memory, and the
kernel keeps the pages. All blocks of the file are allocated before it is mapped. Otherwise, on a full file system, the
first frame of a new flow could end the process with SIGBUS (mmap(2)).

The file belongs to the NIC's user, and nobody else may read or write it: who writes it changes what the NIC does with a
connection. A file of somebody else, or behind a symbolic link, is refused.

The first page describes the file in one line: the number of this format, the version of the blocks, the table's size,
and the boot to which its times belong. A file with another line, or of another length, is *set aside*: it is renamed to
``NAME.old``, and the NIC starts with an empty table. So an old file neither keeps a NIC from starting nor is misread.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from netoffload import log
from netoffload.compiled.arrays import Int64Array
from netoffload.devices.netns import netns_cookie
from netoffload.engine.flows import FIELDS, ROWS, SLOTS, make_flows, rekey
from netoffload.engine.promises import reopen
from netoffload.errors import DeviceError
from netoffload.wire.offload import BLOCK_VERSION

FORMAT: Final = 4
"""Format of this file. Raise it when a field of a slot changes its meaning but the number of fields stays."""
HEADER_LEN: Final = 4096
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OURS: Final = b"netoffload flow table"
"""The first octets of a flow table of any version."""
_FILE_LEN: Final = HEADER_LEN + ROWS * FIELDS * 8
_OLD_SUFFIX: Final = ".old"

FOLDER: Final = Path("/run/netoffload-flows")
"""Where the tables of NICs are that name no file."""
IN_MEMORY: Final = Path("none")
"""The name that asks for a table in memory."""


def default_path(host: str, netns: str | None) -> Path:
    """Return the file of the NIC of a host's device, which no other NIC of this machine has."""
    return FOLDER / f"{host}-{netns_cookie(netns)}.bin"


class OpenTable(NamedTuple):
    """A flow table, whether it outlives the process, and whether its file was made for it."""

    flows: Int64Array
    outlives: bool
    is_new: bool


def open_table(path: Path) -> OpenTable:
    """Return the flow table in the file at ``path`` (``IN_MEMORY``: in no file), which is locked while it is mapped.

    The table is empty if there is no file, or if the file had to be set aside. It is in memory only if the file cannot
    be used at all (no room, no such folder, a read-only file system). A line on stderr reports both cases. The hash of
    the table has a new key. A file that is not this user's flow table, or that another NIC has locked, stays unchanged,
    and is a :class:`DeviceError`.
    """
    if path == IN_MEMORY:
        return OpenTable(make_flows(), outlives=False, is_new=False)
    try:
        if path.parent == FOLDER:
            FOLDER.mkdir(mode=0o700, exist_ok=True)
        return _open_file(path)
    except OSError as error:
        kept = "this NIC keeps its flows in memory and forgets them when it ends"
        _warn("flow_table_unusable", f"flow table {path} cannot be used ({error.strerror}): {kept}", path)
        return OpenTable(make_flows(), outlives=False, is_new=False)


def _open_file(path: Path) -> OpenTable:
    header, is_new = _header(), not os.path.lexists(path)
    if not _is_usable(path, header):
        _make(path, header)
    with open(path, "r+b", opener=_open_own) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the mapping has a duplicate of the descriptor
        except BlockingIOError as error:
            raise DeviceError(f"flow table {path} is in use by another NIC: stop it, or name another file") from error
        os.posix_fallocate(file.fileno(), 0, _FILE_LEN)
        flows = np.asarray(np.memmap(file, np.int64, "r+", offset=HEADER_LEN, shape=(ROWS, FIELDS)))
    if lost := rekey(flows):
        _warn("flows_lost", f"flow table {path} had no room for {lost} of its open connections under a new key", path)
    reopen(flows)
    return OpenTable(flows, outlives=True, is_new=is_new)


def _open_own(path: str, flags: int) -> int:
    """Open a file, but no symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW)


def _is_usable(path: Path, header: bytes) -> bool:
    """Whether the file holds a table of this format and boot; a table of another format or boot is set aside."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(status.st_mode):
        raise DeviceError(f"flow table {path} is a symbolic link: name the file itself, or remove the link")
    is_file = stat.S_ISREG(status.st_mode)
    forbidden = stat.S_IWGRP | stat.S_IWOTH if status.st_size == 0 else stat.S_IRWXG | stat.S_IRWXO
    is_private = status.st_uid == os.geteuid() and not status.st_mode & forbidden
    if is_file and is_private and status.st_size == 0:
        return False
    found = b""
    if is_file:  # opening a pipe would wait, and some devices act when they are opened
        with open(path, "rb", opener=_open_own) as file:
            found = file.read(HEADER_LEN)
    if not found.startswith(_OURS):
        raise DeviceError(f"{path} is not a flow table: name another file, or remove this one")
    if not is_private:
        raise DeviceError(
            f"flow table {path} is open to others than this user: remove it, or chown and chmod 600 it if you trust it"
        )
    if found == header and status.st_size == _FILE_LEN:
        return True
    old = path.with_name(path.name + _OLD_SUFFIX)
    path.replace(old)
    found_so = f"flow table {path} is of another version or boot, or damaged"
    _warn("flow_table_set_aside", f"{found_so}: set aside as {old}, the NIC starts with an empty one", path)
    return False


def _make(path: Path, header: bytes) -> None:
    """Write a file with an empty table; if it does not fit, remove it.

    The header is written first, so that a partly written file is recognized as a flow table.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.pwrite(descriptor, header, 0)
        os.posix_fallocate(descriptor, 0, _FILE_LEN)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _header() -> bytes:
    boot = BOOT_ID.read_text().strip()
    tables = f"format {FORMAT}, blocks {BLOCK_VERSION}, {SLOTS} slots of {FIELDS} fields, boot {boot}"
    return b"%s: %s\n" % (_OURS, tables.encode()) + bytes(HEADER_LEN - len(_OURS) - len(tables) - 3)


def _warn(event: str, what: str, path: Path) -> None:
    log.say(event, what, level="warning", flow_table=path)
