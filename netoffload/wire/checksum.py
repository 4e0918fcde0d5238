"""The two sums: the Internet checksum (RFC 1071) and CRC32C (RFC 3720, appendix B.4), in plain Python.

These are the definitions. The engine has compiled versions, and ``tests/engine/test_engine_sums.py`` compares them.
"""

from typing import Final

CRC32C_POLYNOMIAL: Final = 0x82F63B78
"""Castagnoli's polynomial, bits reversed."""


def _make_table() -> tuple[int, ...]:
    table = []
    for octet in range(256):
        crc = octet
        for _ in range(8):
            crc = crc >> 1 ^ (CRC32C_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


CRC32C_TABLE: Final = _make_table()


def crc32c(octets: bytes, crc: int = 0) -> int:
    """Return the CRC32C of ``octets``, continuing from ``crc`` (0 to start)."""
    crc ^= 0xFFFFFFFF
    for octet in octets:
        crc = crc >> 8 ^ CRC32C_TABLE[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFFFFFF


def ones_sum(octets: bytes, start: int = 0) -> int:
    """Return the folded 16-bit ones' complement sum of ``octets`` (odd ones padded with 0), not inverted."""
    total = start
    for index in range(0, len(octets) - 1, 2):
        total += octets[index] << 8 | octets[index + 1]
    if len(octets) % 2:
        total += octets[-1] << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def internet_checksum(octets: bytes, start: int = 0) -> int:
    """Return the checksum to put into a header whose checksum field is 0."""
    return ~ones_sum(octets, start) & 0xFFFF
