"""Ranks as threads of one process, and ways in which one of them dies."""

import socket

import pytest

from netoffload.collectives import Exchange, Quantise
from netoffload.collectives.exchange import Gathering, RingRound
from netoffload.collectives.hierarchy import SubExchange
from netoffload.collectives.samples import gradient_of
from netoffload.compiled.arrays import Float32Array
from netoffload.transport.local_ranks import run_tcp
from netoffload.transport.messages import links, watch
from netoffload.transport.rounds.exchange import TcpExchange
from netoffload.transport.wiring.lanes import Lane

__all__ = ["Watched", "die", "rounded", "run_tcp", "values_of", "wait_less"]


def values_of(rank: int, count: int) -> Float32Array:
    """A vector like a gradient, the same for one rank and length."""
    return gradient_of(rank, count, 0.05, count)


def rounded(values: Float32Array, quantise: Quantise | None) -> Float32Array:
    copy = values.copy()
    if quantise is not None:
        quantise(copy)
    return copy


def wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranks wait a moment, and not a second, for a reason that nobody gives and for a rank that has closed."""
    monkeypatch.setattr(watch, "GRACE_S", 0.1)
    monkeypatch.setattr(links, "REFUSED_S", 0.1)


def die(exchange: TcpExchange) -> None:
    """End listeners and control connections without a farewell: what the kernel does for a killed process."""
    with exchange.watch._lock:  # all of them before its own watch sees one
        for listener in exchange.watch._links._joiner._listeners:
            listener.shutdown(socket.SHUT_RDWR)
        exchange.watch._links.shut_down([Lane.CONTROL])


class Watched(SubExchange):
    """All ranks of an exchange; says which rounds the transport carried out, and may keep it from doing so."""

    def __init__(self, whole: Exchange, *, by_hand: bool = False) -> None:
        super().__init__(whole, range(whole.size))
        self.driven: list[bool] = []

        def drive(round_: RingRound | Gathering) -> bool:
            self.driven.append(not by_hand and whole.drive(round_))
            return self.driven[-1]

        self.drive = drive
