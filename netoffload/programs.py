"""What holds for every program of ours, and for no program that only uses this package."""

from __future__ import annotations

import atexit
import gc


def end_at_once() -> None:
    """Let this process end without a last search for garbage; the kernel takes back all of its memory anyway.

    The search goes through everything that Numba and torch have imported: half a second of a core, a fifth of what it
    takes a rank to start.
    """
    atexit.register(gc.freeze)
