"""The folder in which compiled kernels are kept between runs; only this user may write there.

Numba keeps pickles, so a user who can write to the folder can run code as the user who loads it. A folder that another
user made, or may write to, is not used. If no safe folder exists, nothing is kept, and every process compiles its
kernels.
"""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KEPT_FOLDERS: Final = 4
"""How many folders of other versions are kept, for checkouts that are used side by side."""

KEPT_S: Final = 7 * 24 * 3600.0
"""Folders that were unused for this time are removed."""

IN_USE_S: Final = 3600.0
"""Folders that were used within this time stay in any case: a program may be writing there."""


def make_cache_dir(name: str) -> Path | None:
    """Make the folder ``name`` for compiled kernels, mark it as used now, and return it. None: no folder is safe.

    The folder is below ``$XDG_CACHE_HOME/netoffload`` or ``~/.cache/netoffload``; else it is in the temporary folder,
    below a folder with the user's id in its name.
    """
    for parent in _parents():
        try:
            if not (_is_private(parent) and _is_private(parent / name)):
                continue
            os.utime(parent / name)
        except OSError:  # no such folder, full, read-only, no right to look into it
            continue
        return parent / name
    return None


def remove_stale(used: Path) -> None:
    """Remove the kernels of other versions beside ``used`` that were not used lately.

    A program that still uses one of them goes on: its kernels are in memory, and it compiles further ones anew.
    """
    ages = []
    for path in used.parent.glob("kernels-*"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it first
            ages.append((time.time() - path.stat().st_mtime, path))
    for newer, (age_s, path) in enumerate(sorted((age_s, path) for age_s, path in ages if path != used)):
        if age_s > KEPT_S or (newer >= KEPT_FOLDERS and age_s > IN_USE_S):
            shutil.rmtree(path, ignore_errors=True)


def _parents() -> Iterator[Path]:
    """Yield the folders below which this user's kernels may be, the best first."""
    user = os.geteuid()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # Root with another user's home would leave a folder there that this user can neither write to nor trust.
        if (base if os.path.lexists(base) else base.parent).stat().st_uid in (0, user):
            base.mkdir(mode=0o700, exist_ok=True)
            yield base / "netoffload"
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        pass
    try:
        yield Path(tempfile.gettempdir()) / f"netoffload-{user}"
    except OSError:  # no temporary folder either
        return


def _is_private(folder: Path) -> bool:
    """Make the folder if it does not exist; return whether it belongs to this user and nobody else may write there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    seen = folder.lstat()
    alone = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022
    return alone and os.access(folder, os.W_OK | os.X_OK)
