"""The set-up of Numba: how functions are compiled, where compiled code is kept, and the parts that all kernels share.

Compiled code touches no Python object, does not hold the interpreter lock, and is kept on disk between runs.
``NUMBA_DISABLE_JIT=1`` turns every kernel into plain Python, or takes its slow definition; the tests compare both.

Files: ``arrays``, names for the arrays that kernels take; ``jit``, the options of Numba and a cache that cannot be
stale; ``cache``, the folder of that cache; ``progress``, what a process says while it compiles; ``emitted``, names for
functions that emit LLVM code; ``octets``, unaligned loads and stores, and header fields; ``halves``, 16-bit floats;
``syscalls``, libc for compiled loops; ``programs``, how programs with such code end.
"""
