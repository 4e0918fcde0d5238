"""Runs examples one after the other, each as its own program, but on ranks that have loaded torch once.

What root may do beside reading its own files is taken away.
"""

import ctypes
import runpy
import sys

CAPABILITY_VERSION = 0x20080522  # linux/capability.h

header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0

for line in sys.argv[1:]:
    sys.argv = line.split()
    runpy.run_path(sys.argv[0], run_name="__main__")
