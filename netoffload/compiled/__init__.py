"""Numba's one home: how functions are compiled, where compiled code is kept, and what all of it shares.

Compiled code touches no Python object, holds no interpreter lock, and is kept on disk between runs.
``NUMBA_DISABLE_JIT=1`` turns every kernel into plain Python, and the tests compare both.

Files: ``arrays`` names for what kernels take; ``jit`` the options, and a cache that cannot be stale; ``cache`` the
folder of that cache; ``octets`` unaligned loads and stores; ``fields`` header fields in network order; ``syscalls``
libc for compiled loops; ``guarded`` octets that end where memory ends, and ``pool`` processes, for checks of kernels.
"""
