"""The stream program accepts only what was sent, or the codec's round trip of it."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from netoffload.lab.bench import endpoint

FLOATS = 4096
SENT = np.random.default_rng(1).standard_normal(FLOATS, dtype=np.float32)
ROUNDED = (SENT * np.float32(0.5)).astype(np.float32)


def octets(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint8)


def arrive(stream: bytes, expected: np.ndarray, count: int) -> endpoint.Checker:
    """Feed a stream to a checker that waits for ``count`` octets of ``SENT`` repeated."""
    checker = endpoint.Checker(octets(SENT).copy(), octets(expected).copy())
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sent = 0
        left = count
        while left:
            sent += sender.send(stream[sent : sent + 5001])
            left -= checker.receive(receiver, left)
    return checker


def repeated(values: np.ndarray, count: int) -> bytearray:
    return bytearray(np.resize(octets(values), count).tobytes())


@pytest.mark.parametrize("count", [4, 4 * FLOATS - 4, 4 * FLOATS, 4 * FLOATS + 4, 10 * 4 * FLOATS])
@pytest.mark.parametrize("expected", [SENT, ROUNDED], ids=["untagged", "tagged"])
def test_what_must_come_is_accepted(expected: np.ndarray, count: int) -> None:
    assert arrive(bytes(repeated(expected, count)), expected, count).raw_floats == 0


@pytest.mark.parametrize("at", [0, 4097, 4 * FLOATS - 1, 4 * FLOATS + 9, 4 * (FLOATS + 100) - 1])
@pytest.mark.parametrize("expected", [SENT, ROUNDED], ids=["untagged", "tagged"])
def test_one_wrong_octet_anywhere_is_found(expected: np.ndarray, at: int) -> None:
    count = 4 * (FLOATS + 100)
    stream = repeated(expected, count)
    stream[at] ^= 1
    with pytest.raises(endpoint.WrongContentError, match="1 float32 arrived wrong"):
        arrive(bytes(stream), expected, count)


def test_a_float_that_crossed_uncompressed_is_counted_when_tagged() -> None:
    stream = repeated(ROUNDED, 4 * FLOATS)
    stream[40:52] = octets(SENT)[40:52].tobytes()
    assert arrive(bytes(stream), ROUNDED, 4 * FLOATS).raw_floats == 3


def test_codec_output_is_wrong_when_untagged() -> None:
    with pytest.raises(endpoint.WrongContentError):
        arrive(bytes(repeated(ROUNDED, 4 * FLOATS)), SENT, 4 * FLOATS)
