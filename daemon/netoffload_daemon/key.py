"""The key that NICs share, from a file (``--key``)."""

import os
import stat
import string
from pathlib import Path
from typing import Final

from netoffload.errors import SystemRefusedError, UsageError
from netoffload.wire.authentication import KEY_LEN

_MAKE: Final = f"make one with (umask 077; openssl rand -hex {KEY_LEN} > FILE)"


def load_key(path: Path) -> bytes:
    """Return the key of 32 octets in the file at ``path``, which holds 32 octets, or 64 hexadecimal digits in a line.

    The file must be a regular one to which only its owner has rights.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise UsageError(f"key {path} is not a regular file: {_MAKE}")
            if seen.st_mode & 0o077:
                raise UsageError(f"key {path} is open to others than its owner: chmod 600 {path}, or make a new one")
            octets = file.read(2 * KEY_LEN + 3)  # one octet more than the longest valid contents
    except OSError as error:
        raise SystemRefusedError(f"key {path} cannot be read: {error.strerror}") from error
    if len(octets) == KEY_LEN:
        return octets
    digits = octets.removesuffix(b"\n").removesuffix(b"\r")
    if len(digits) == 2 * KEY_LEN and set(digits) <= set(string.hexdigits.encode()):
        return bytes.fromhex(digits.decode())
    raise UsageError(f"key {path} is neither {KEY_LEN} octets nor {2 * KEY_LEN} hexadecimal digits: {_MAKE}")


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting; a FIFO would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)
