"""Set-up for this project's own programs; programs that only use the package do not get it."""

import atexit
import gc


def end_at_once() -> None:
    """Let this process end without a last garbage collection; the kernel frees its memory anyway."""
    # It walks through all objects of Numba and torch: half a second of a core, a fifth of a rank's start.
    atexit.register(gc.freeze)
