"""Octets that end where memory ends: reading or writing one octet too far crashes instead of giving a wrong number."""

import ctypes
import mmap
from typing import Final

import numpy as np

from netoffload.compiled.arrays import Uint8Array
from netoffload.errors import SystemRefusedError

PROT_NONE: Final = 0


def guarded_octets(at_least: int) -> Uint8Array:
    """Return an array of zeros, in whole pages, with a protected page before and behind it."""
    page = mmap.PAGESIZE
    size = -(-at_least // page) * page
    pages = np.frombuffer(mmap.mmap(-1, size + 2 * page), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    for guard in (0, page + size):
        if libc.mprotect(ctypes.c_void_p(pages.ctypes.data + guard), ctypes.c_size_t(page), PROT_NONE):
            raise SystemRefusedError(f"the kernel refuses to protect memory: mprotect, errno {ctypes.get_errno()}")
    return pages[page : page + size]
