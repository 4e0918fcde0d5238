"""OpenSSL's SipHash for compiled code: a context made here, and the addresses of the functions that work on it.

Compiled code on disk may not hold an address, and ``types.ExternalFunction`` finds only libraries that are loaded
already. So the first use of a key loads the library, and its addresses reach compiled code as integers, at run time. A
NIC without a key does not load it.

EVP_MAC(3), EVP_MAC-SIPHASH(7). OpenSSL before 3.0.3 does not restart a MAC if the call leaves out the key (OpenSSL's
issue 17811), so each MAC passes the key again. That takes less than 10 ns.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from netoffload.errors import SystemRefusedError
from netoffload.wire.authentication import MAC_LEN, siphash128

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
