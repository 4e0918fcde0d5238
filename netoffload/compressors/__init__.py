"""float32 vectors <-> payloads: the gradient compressors of the papers, as a host would run them.

A NIC compresses what passes through it and knows nothing else; these methods know the whole gradient, its layers and
what they left unsent before, and pay with the host's processor. Everything they send is really packed: a payload is
octets, and :meth:`~netoffload.compressors.base.Compressor.wire_size` is its exact length.

::

    values float32[n] ──(+ residual)── refuse what is not finite ── quantise ── pack ──> payload uint8[m]
                            ^                                                               │
                            └──────────── values + residual - decode(payload) <─────────────┘
                                          (with error feedback only)

    payload   header 8 octets | parameters (scalers, widths) | packed codes      all little-endian
    header    magic 0xC7 | version | method id | flags | count of floats, 32 bits

- A :class:`~netoffload.compressors.layout.Layout` says where a flat vector's layers lie. Layer-wise methods have a
scaler
  per layer, bucketed ones per bucket; a bucket never spans two layers.
- A :class:`~netoffload.compressors.base.State` is everything that changes from call to call: the step, which makes the
  randomness of every call another, and the residual. It can be saved and restored; the run then goes on bit for bit.
- Randomness (``rng``) is a function of (seed, rank, step, index) in 32-bit integers, the same on every machine. Two
  workers with one seed round independently because their ranks differ.
- What a peer sent wrongly is :class:`~netoffload.errors.CodecError`; what our caller asked for wrongly, a NaN or an
  infinity in a gradient among it, is :class:`~netoffload.errors.UsageError`.
- Every compiled kernel stands beside a slow oracle and agrees with it to the bit.

``registry`` knows every method by its name (``get``, ``names``, ``parse("qsgd:levels=15,norm=max")``); it is not
imported here, so that a method's module can import this package.
"""

from netoffload.compressors.base import Compressor, State
from netoffload.compressors.layout import Layout

__all__ = ["Compressor", "Layout", "State"]
