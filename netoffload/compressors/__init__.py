"""float32 vectors <-> payloads: the gradient compressors of the papers, as a host would run them.

A NIC knows only the frames that pass through it. These methods know the whole gradient, its layers and the residual of
earlier calls, but they use the host's processor. Payloads are really packed into octets, and
:meth:`~netoffload.compressors.base.Compressor.wire_size` is a payload's exact length.

::

    values float32[n] ──(+ residual)── refuse NaN and infinities ── quantise ── pack ───> payload uint8[m]
                            ^                                                               │
                            └──────────── values + residual - decode(payload) <─────────────┘
                                          (with error feedback only)

    payload   header 8 octets | parameters (scalers, widths) | packed codes      all little-endian
    header    magic 0xC7 | version | method id | flags | count of floats, 32 bits

- A wrong payload raises :class:`~netoffload.errors.CodecError`. A caller's mistake raises
  :class:`~netoffload.errors.UsageError`; so does a NaN or an infinity in a gradient.
- Every compiled kernel has a slow oracle in ``tests/compressors/oracles.py``, and agrees with it to the bit.

``registry`` knows every method by its name (``get``, ``names``, ``parse("qsgd:levels=15,norm=max")``). It is not
imported here, so that a method's module can import this package.
"""

from netoffload.compressors.base import Compressor, Layout, State

__all__ = ["Compressor", "Layout", "State"]
