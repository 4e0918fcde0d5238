"""A MAC over octets of a frame, made and checked in compiled code by OpenSSL's SipHash.

``netoffload.wire.authentication`` is the definition. Compiled code takes one int64 array: addresses, the key, and room
to work in. Without a key the array says "off", and OpenSSL may be missing.

Compiled code on disk may not hold an address, and ``types.ExternalFunction`` finds only libraries that are loaded
already. So the first use of a key loads OpenSSL, and the addresses of its functions reach compiled code as integers, at
run time. A NIC without a key does not load it.

EVP_MAC(3), EVP_MAC-SIPHASH(7). OpenSSL before 3.0.3 does not restart a MAC if the call leaves out the key (OpenSSL's
issue 17811), so each MAC passes the key again. That takes less than 10 ns.

Why SipHash: OpenSSL's BLAKE2s takes five times as long, 2.8 us instead of 0.55 us for 1460 octets. Poly1305 and GMAC
break where a nonce is used twice, and a block has no nonce that is used only once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from types import TracebackType
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.emitted import Builder, Context, Intrinsic, NumbaType, Signature, TypingContext, Value
from netoffload.compiled.jit import JIT_DISABLED, inline_kernel
from netoffload.compiled.octets import load_u32, whole
from netoffload.errors import SystemRefusedError, UsageError
from netoffload.wire.authentication import KEY_LEN, MAC_LEN, SIPHASH_KEY_LEN, siphash128, siphash_key

# Words of the array.
_CONTEXT: Final = 0  # its address; 0 says "off"
_INIT: Final = 1  # addresses of the three functions
_UPDATE: Final = 2
_FINAL: Final = 3
_KEY: Final = 4  # two words, SipHash's key
_MAC: Final = 6  # two words: the computed MAC, to compare with a frame's
_MAC_LEN: Final = 8  # where EVP_MAC_final writes the MAC's length
_WORDS: Final = 16

_CACHE_LINE: Final = 64


SONAME: Final = "libcrypto.so.3"
"""OpenSSL 3, by the name of its binary interface: the linker's ``libcrypto.so`` may be another version."""

_UNSIGNED_INTEGER: Final = 2
"""OSSL_PARAM_UNSIGNED_INTEGER."""


class _Parameter(ctypes.Structure):
    """``OSSL_PARAM``; an entry without a key ends a list."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        ("data_type", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_size_t),
        ("return_size", ctypes.c_size_t),
    )


class SipHashContext:
    """One ``EVP_MAC_CTX`` for SipHash-2-4 with 128 bits; it serves one thread at a time.

    Attributes:
        address: the context's address; 0 after :meth:`close`.
        functions: the addresses of ``EVP_MAC_init``, ``EVP_MAC_update`` and ``EVP_MAC_final``.

    Raises:
        SystemRefusedError: this machine's OpenSSL is not version 3, has no SipHash, or computes a wrong MAC.
    """

    def __init__(self, key: bytes) -> None:
        self._library = _load()
        self.address = 0
        self.functions = tuple(
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (self._library.EVP_MAC_init, self._library.EVP_MAC_update, self._library.EVP_MAC_final)
        )
        algorithm = self._library.EVP_MAC_fetch(None, b"SIPHASH", None)
        if algorithm:
            self.address = self._library.EVP_MAC_CTX_new(algorithm) or 0
            self._library.EVP_MAC_free(algorithm)
        if not self.address:
            raise SystemRefusedError(
                f"{SONAME} offers no SipHash (is it set to FIPS only?): allow its default provider, or leave --key out"
            )
        try:
            self._set(key)
            for octets in (bytes(range(15)), bytes(range(200))):  # the second MAC shows that the context restarts
                if self._mac(key, octets) != siphash128(key, octets):
                    raise SystemRefusedError(f"{SONAME} computes a wrong SipHash: install another OpenSSL 3")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the context, which wipes the key; the address is invalid from then on."""
        address, self.address = self.address, 0
        self._library.EVP_MAC_CTX_free(address)

    def _set(self, key: bytes) -> None:
        """Set the length of all MACs, and a key."""
        size = ctypes.c_size_t(MAC_LEN)
        parameters = (_Parameter * 2)()
        parameters[0] = _Parameter(b"size", _UNSIGNED_INTEGER, ctypes.addressof(size), ctypes.sizeof(size), 0)
        if self._library.EVP_MAC_init(self.address, key, len(key), parameters) != 1:
            raise SystemRefusedError(f"{SONAME} refuses a SipHash of {MAC_LEN} octets: install another OpenSSL 3")

    def _mac(self, key: bytes, octets: bytes) -> bytes:
        """Return a MAC, made by the same calls that compiled code makes."""
        room, room_len = ctypes.create_string_buffer(MAC_LEN), ctypes.c_size_t(0)
        self._library.EVP_MAC_init(self.address, key, len(key), None)
        self._library.EVP_MAC_update(self.address, octets, len(octets))
        self._library.EVP_MAC_final(self.address, room, ctypes.byref(room_len), MAC_LEN)
        return room.raw


@cache
def _load() -> ctypes.CDLL:
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    prototypes = {
        "EVP_MAC_fetch": (pointer, [pointer, ctypes.c_char_p, ctypes.c_char_p]),
        "EVP_MAC_free": (None, [pointer]),
        "EVP_MAC_CTX_new": (pointer, [pointer]),
        "EVP_MAC_CTX_free": (None, [pointer]),
        "EVP_MAC_init": (ctypes.c_int, [pointer, ctypes.c_char_p, size, pointer]),
        "EVP_MAC_update": (ctypes.c_int, [pointer, ctypes.c_char_p, size]),
        "EVP_MAC_final": (ctypes.c_int, [pointer, pointer, pointer, size]),
    }
    try:
        library = ctypes.CDLL(SONAME)
        for name, (result, arguments) in prototypes.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise SystemRefusedError(f"--key needs OpenSSL 3 ({error}): install it (Debian: libssl3)") from error
    return library


class Authenticator:
    """Makes and checks MACs for one thread: a context of OpenSSL, and an array for compiled code.

    Two threads need two authenticators. Close one only after all compiled code that uses its array has returned.

    Args:
        key: the user's key, 32 octets; None: off.

    Attributes:
        words: int64 array, for :func:`is_on`, :func:`put_mac` and :func:`has_mac`. It holds the key: never print it.

    Raises:
        SystemRefusedError: there is a key, but no usable OpenSSL 3.
    """

    def __init__(self, key: bytes | None) -> None:
        self.words = _make_words()
        self._context: SipHashContext | None = None
        if key is None:
            return
        if len(key) != KEY_LEN:
            raise UsageError(f"a key of {len(key)} octets is not possible: take {KEY_LEN}")
        short_key = siphash_key(key)
        self._context = SipHashContext(short_key)
        self.words[_INIT : _FINAL + 1] = self._context.functions
        self.words[_KEY:_MAC] = np.frombuffer(short_key, np.int64)
        self.words[_CONTEXT] = self._context.address

    def close(self) -> None:
        """Switch to "off", free the context and wipe the key. A second call does nothing."""
        self.words[:] = 0
        if self._context is not None:
            self._context.close()
            self._context = None

    def __enter__(self) -> Authenticator:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _make_words() -> Int64Array:
    """Return words that share no cache line with other data: the thread of the other direction writes its own often."""
    room = np.zeros(8 * _WORDS + _CACHE_LINE, np.uint8)
    at = -room.ctypes.data % _CACHE_LINE
    return room[at : at + 8 * _WORDS].view(np.int64)


if JIT_DISABLED:

    def _call(function: Any, arguments: Any) -> Any:
        """Call the C function at an address with integers and addresses, and return its ``int``."""
        signature = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_size_t for _ in arguments))
        return signature(int(function))(*(int(argument) for argument in arguments))

else:

    @intrinsic
    def _call(typing_context: TypingContext, function: NumbaType, arguments: Sequence[NumbaType]) -> Intrinsic:
        """Call the C function at an address with integers and addresses, and return its ``int``."""
        count = len(arguments)

        def codegen(context: Context, builder: Builder, signature: Signature, args: list[Value]) -> Value:
            # Addresses travel as 64-bit integers: x86-64 and AArch64 pass addresses and integers in the same registers.
            kind = ir.FunctionType(ir.IntType(32), [ir.IntType(64)] * count)
            pointer = builder.inttoptr(args[0], kind.as_pointer())
            words = [builder.extract_value(args[1], index) for index in range(count)]
            return builder.sext(builder.call(pointer, words), ir.IntType(64))

        return types.int64(types.int64, types.UniTuple(types.int64, count)), codegen


@inline_kernel
def is_on(words: Int64Array) -> bool:
    """Return whether there is a key, so that blocks have MACs."""
    return words[_CONTEXT] != 0


@inline_kernel
def _address(array: Uint8Array | Int64Array) -> int:
    """Return where an array's memory is."""
    return whole(array.ctypes.data)


@inline_kernel
def _make_mac(words: Int64Array, octets: Uint8Array, at: int, length: int, out: int) -> bool:
    """Write the MAC of ``length`` octets from ``at`` to the address ``out``; return whether that was possible."""
    context, room = words[_CONTEXT], _address(words)
    if context == 0:
        return False
    done = _call(words[_INIT], (context, room + 8 * _KEY, SIPHASH_KEY_LEN, 0))
    done &= _call(words[_UPDATE], (context, _address(octets) + at, length))
    done &= _call(words[_FINAL], (context, out, room + 8 * _MAC_LEN, MAC_LEN))
    return done == 1


@inline_kernel
def put_mac(words: Int64Array, octets: Uint8Array, at: int, length: int, out_at: int) -> None:
    """Write the MAC of ``length`` octets from ``at`` to ``out_at``, 16 octets.

    The caller has checked the bounds, and that :func:`is_on` is true. If OpenSSL fails, the octets are 0 and the peer
    drops the block.
    """
    if not _make_mac(words, octets, at, length, _address(octets) + out_at):
        for index in range(out_at, out_at + MAC_LEN):
            octets[index] = 0


@inline_kernel
def has_mac(words: Int64Array, octets: Uint8Array, at: int, length: int, mac_at: int) -> bool:
    """Return whether the 16 octets at ``mac_at`` are the MAC of ``length`` octets from ``at``.

    The comparison takes the same time wherever the first difference is. The caller has checked the bounds. Without a
    key the result is False.
    """
    if not _make_mac(words, octets, at, length, _address(words) + 8 * _MAC):
        return False
    difference = 0
    for index in range(2):
        word = words[_MAC + index]
        difference |= (word & 0xFFFFFFFF) ^ load_u32(octets, mac_at + 8 * index)
        difference |= (word >> 32 & 0xFFFFFFFF) ^ load_u32(octets, mac_at + 8 * index + 4)
    return difference == 0
