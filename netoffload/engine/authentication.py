"""A MAC over octets of a frame: SipHash-2-4 with 128 bits, compiled.

``netoffload.wire.authentication`` is the definition. Compiled code takes one int64 array with the key, which says "off"
without a key.

Why SipHash: BLAKE2s takes five times as long. Poly1305 and GMAC break where a nonce is used twice, and a block has no
nonce that is used only once.
"""

import numpy as np

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel, kernel
from netoffload.compiled.octets import load_u64, store_u64, u8
from netoffload.errors import UsageError
from netoffload.wire.authentication import KEY_LEN, MAC_LEN, SIPHASH_START, siphash128, siphash_key

_S0, _S1, _S2, _S3 = SIPHASH_START


def make_mac_key(key: bytes | None) -> Int64Array:
    """Return int64[3] for compiled code: whether there is a key, and SipHash's key. It is secret: never print it."""
    if key is None:
        return np.zeros(3, np.int64)
    if len(key) != KEY_LEN:
        raise UsageError(f"a key of {len(key)} octets is not possible: take {KEY_LEN}")
    return np.append(np.int64(1), np.frombuffer(siphash_key(key), np.int64))


@inline_kernel
def is_on(mac_key: Int64Array) -> bool:
    """Return whether there is a key, so that blocks have MACs."""
    return mac_key[0] != 0


if JIT_DISABLED:

    def _mac_of(mac_key: Int64Array, octets: Uint8Array, at: int, length: int) -> tuple[int, int]:
        """Return the MAC of ``length`` octets from ``at`` as two words."""
        mac = siphash128(mac_key[1:].tobytes(), octets[at : at + length].tobytes())
        return int.from_bytes(mac[:8], "little", signed=True), int.from_bytes(mac[8:], "little", signed=True)

else:

    @inline_kernel
    def _turned(word: int, bits: int) -> int:
        return word << bits | word >> 64 - bits & (1 << bits) - 1

    @inline_kernel
    def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        a, c = a + b, c + d
        b, d = _turned(b, 13) ^ a, _turned(d, 16) ^ c
        a, c = _turned(a, 32) + d, c + b
        b, d = _turned(b, 17) ^ c, _turned(d, 21) ^ a
        return a, b, _turned(c, 32), d

    @kernel
    def _mac_of(mac_key: Int64Array, octets: Uint8Array, at: int, length: int) -> tuple[int, int]:
        """Return the MAC of ``length`` octets from ``at`` as two words."""
        low, high = mac_key[1], mac_key[2]
        a, b, c, d = low ^ _S0, high ^ _S1 ^ 0xEE, low ^ _S2, high ^ _S3
        whole = length & ~7
        last = (length & 0xFF) << 56
        for octet in range(length - whole):
            last |= u8(octets, at + whole + octet) << 8 * octet
        for index in range(at, at + whole + 8, 8):
            word = load_u64(octets, index) if index < at + whole else last
            d ^= word
            a, b, c, d = _round(a, b, c, d)
            a, b, c, d = _round(a, b, c, d)
            a ^= word
        c ^= 0xEE
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        first = a ^ b ^ c ^ d
        b ^= 0xDD
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        return first, a ^ b ^ c ^ d


@inline_kernel
def put_mac(mac_key: Int64Array, octets: Uint8Array, at: int, length: int, out_at: int) -> None:
    """Write the MAC of ``length`` octets from ``at`` to ``out_at``, 16 octets.

    The caller has checked the bounds, and that :func:`is_on` is true.
    """
    first, second = _mac_of(mac_key, octets, at, length)
    store_u64(octets, out_at, first)
    store_u64(octets, out_at + MAC_LEN // 2, second)


@inline_kernel
def has_mac(mac_key: Int64Array, octets: Uint8Array, at: int, length: int, mac_at: int) -> bool:
    """Return whether the 16 octets at ``mac_at`` are the MAC of ``length`` octets from ``at``.

    The comparison takes the same time wherever the first difference is. The caller has checked the bounds, and that
    :func:`is_on` is true.
    """
    first, second = _mac_of(mac_key, octets, at, length)
    return (first ^ load_u64(octets, mac_at)) | (second ^ load_u64(octets, mac_at + MAC_LEN // 2)) == 0
