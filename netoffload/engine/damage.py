"""How :mod:`netoffload.engine.fuzz` damages a good frame before it is sent: one recipe, a row of numbers, per frame.

A recipe overwrites octets, most of them in the headers, falsifies the length field, or moves the end of the frame. In
most blocks the CRC is corrected afterwards, so that the checks behind the CRC are reached too.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from netoffload.compiled.arrays import Int64Array, Uint8Array
from netoffload.compiled.fields import be16, put_be16, put_be32
from netoffload.compiled.jit import inline_kernel
from netoffload.engine import network
from netoffload.engine.network import IP_AT
from netoffload.engine.samples import ISN, Samples
from netoffload.engine.sums import crc32c
from netoffload.wire import encapsulation, ipv4, ipv6, offload, tcp, udp

FRAMES_PER_CONNECTION: Final = 64
"""Frames until all flows are forgotten and connected anew: damaged SYNs and retransmissions make flows raw."""

STEP: Final = 20_000
"""Octets from one segment of a connection to the next: as long as the longest sample, and whole floats."""

FRAME_SLACK: Final = 64
"""Octets behind a frame that transmit and receive may read (``DECODE_SLACK``)."""

FRAME_ROOM: Final = 1 << 15
WRITES: Final = 4

_BEFORE_TCP_MAX: Final = encapsulation.DATAGRAM_OVERHEAD + offload.OVERHEAD

# Columns of a recipe.
FRAME, LENGTH, _SEQ, _LIE, _MENDS, _AT = range(6)
_BY: Final = _AT + WRITES
_NOTHING: Final = -1


def make_recipes(rng: np.random.Generator, samples: Samples, count: int) -> Int64Array:
    """Return int64[count, columns], a recipe for each frame."""
    recipes = np.empty((count, _BY + WRITES), np.int64)
    recipes[:, FRAME] = rng.choice(len(samples.lengths), count, p=samples.shares)
    lengths = samples.lengths[recipes[:, FRAME]]
    moved = rng.choice(4, count, p=(0.7, 0.1, 0.1, 0.1))
    ends = (lengths, lengths - rng.integers(0, 8, count), lengths + rng.integers(0, 64, count))
    recipes[:, LENGTH] = np.choose(moved, (*ends, (lengths * rng.random(count)).astype(np.int64)))
    recipes[:, LENGTH] = recipes[:, LENGTH].clip(0, FRAME_ROOM - FRAME_SLACK)
    back = rng.integers(0, 30_000, count) * rng.choice(4, count, p=(0.7, 0.1, 0.1, 0.1))
    recipes[:, _SEQ] = ISN + 1 + np.maximum(np.arange(count) % FRAMES_PER_CONNECTION * STEP - back, 0)
    recipes[rng.random(count) < 0.2, _SEQ] = _NOTHING
    recipes[:, _LIE] = rng.integers(-40, 41, count) * (rng.random(count) < 0.15)
    recipes[:, _MENDS] = rng.random(count) < 0.8
    in_headers = rng.integers(0, 140, (count, WRITES))
    anywhere = rng.integers(0, np.maximum(lengths, 1)[:, None], (count, WRITES))
    at = np.where(rng.random((count, WRITES)) < 0.8, in_headers, anywhere)
    recipes[:, _AT:_BY] = np.where(rng.random((count, WRITES)) < 0.1, at, _NOTHING)
    by = rng.integers(0, 256, (count, WRITES))
    recipes[:, _BY:] = np.where(
        rng.random((count, WRITES)) < 0.3, rng.choice([0, 1, 4, 6, 17, 0x28, 108, 255], by.shape), by
    )
    return recipes


@inline_kernel
def damage(recipe: Int64Array, frame: Uint8Array, length: int) -> None:
    """Damage a good frame as the recipe says."""
    ip_len = network.find_ip_len(frame, length)
    comp_at = _find_block(frame, length, ip_len)
    if recipe[_SEQ] != _NOTHING and ip_len and length >= IP_AT + ip_len + _BEFORE_TCP_MAX + tcp.TCP_MIN_LEN:
        tcp_at = comp_at + offload.TCP_HEADER if comp_at else IP_AT + ip_len
        put_be32(frame, tcp_at + tcp.SEQ, recipe[_SEQ])
    if recipe[_LIE] and ip_len:
        at = IP_AT + (ipv4.TOTAL_LEN if ip_len == ipv4.IPV4_MIN_LEN else ipv6.PAYLOAD_LEN)
        put_be16(frame, at, be16(frame, at) + recipe[_LIE])
    for write in range(WRITES):
        at = recipe[_AT + write]
        if 0 <= at < length:
            frame[at] = recipe[_BY + write]
    ip_len = network.find_ip_len(frame, length)
    comp_at = _find_block(frame, length, ip_len)
    if recipe[_MENDS] and comp_at:
        block_len = network.get_datagram_len(frame, ip_len) - ip_len
        if comp_at != IP_AT + ip_len:
            block_len = be16(frame, comp_at - encapsulation.ENTRY_LEN + encapsulation.BLOCK_LEN_AT)
        if offload.OVERHEAD <= block_len <= length - comp_at:
            put_be32(frame, comp_at + offload.CRC, offload.PROTO_IPCOMP << 16 | block_len)
            addresses_len = network.addresses_len(ip_len)
            crc = crc32c(frame, IP_AT + ip_len - addresses_len, addresses_len, 0)
            put_be32(frame, comp_at + offload.CRC, crc32c(frame, comp_at, block_len, crc))


@inline_kernel
def _find_block(frame: Uint8Array, length: int, ip_len: int) -> int:
    """Return where the first block of a frame starts, in IPComp or in UDP; 0 where there is none."""
    if ip_len == 0 or length < IP_AT + ip_len + _BEFORE_TCP_MAX:
        return 0
    protocol = network.get_protocol(frame, ip_len)
    if protocol == offload.PROTO_IPCOMP:
        return IP_AT + ip_len
    return IP_AT + ip_len + encapsulation.DATAGRAM_OVERHEAD if protocol == udp.PROTO_UDP else 0
