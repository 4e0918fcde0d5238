"""What the ranks tell each other at set-up, and what follows from it.

Every rank gathers the same list of offers and draws its conclusions from that list alone, so all ranks conclude the
same, errors included: a rank that cannot offer says why in its offer, and all of them raise.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from netoffload import codec
from netoffload.compiled.arrays import Float32Array
from netoffload.config import (
    ENV_ADDRESS,
    ENV_CONTROL,
    TAG_ANY,
    TOS_COMPRESS,
    Ports,
    check_bound_k,
    format_ports,
    format_tag,
    parse_ports,
    parse_tag,
)
from netoffload.control import request
from netoffload.errors import CollectiveError, NetOffloadError, UsageError

VERSION = 8
"""Of the data plane: ranks with different ones do not talk."""

Gather = Callable[[Any], Sequence[Any]]
"""Collective: takes a value of JSON from each rank, returns all of them in rank order (``rendezvous``)."""


@dataclass(frozen=True)
class Precision:
    """What tagged data is rounded by: a codec and its bound 2**-bound_k."""

    codec: str
    bound_k: int

    def quantiser(self) -> Quantiser:
        """Return the function that rounds a vector in place as the NICs do."""
        return Quantiser(codec.get(self.codec).codec_id, self.bound_k)


@dataclass(frozen=True)
class Quantiser:
    """Rounds a vector in place; a :data:`~netoffload.collectives.exchange.Quantise` that compiled code can do as well.

    Attributes:
        codec_id: by which codec.
        bound_k: with the bound 2**-bound_k.
    """

    codec_id: codec.CodecId
    bound_k: int

    def __call__(self, values: Float32Array) -> None:
        """Replace ``values`` by what the codec makes of them."""
        codec.CODECS[self.codec_id].round_trip(values, self.bound_k, out=values)


@dataclass(frozen=True)
class Marking:
    """What makes a connection one that the NICs compress.

    Attributes:
        tos: of its sockets.
        ports: one of its ports is in these ranges; empty: any is.
    """

    tos: int = TOS_COMPRESS
    ports: Ports = ()


@dataclass(frozen=True)
class Offer:
    """One rank's side of the agreement.

    Attributes:
        version: of the data plane.
        address: IPv4 address where its listeners are.
        ports: of its listeners, by whether their connections are tagged.
        token: what whoever connects has to know.
        marking: what its NIC takes for tagged; None: it reaches no NIC's control socket.
        precision: its NIC's, or what its caller said; None: exact.
        failure: why it cannot take part; None: it can.
        context: what rank 0 calls the new communicator.
    """

    version: int = VERSION
    address: str = ""
    ports: Mapping[bool, int] | None = None
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16), compare=False)
    marking: Marking | None = None
    precision: Precision | None = None
    failure: str | None = None
    context: int = 1

    def to_words(self) -> dict[str, Any]:
        """Return what a rendezvous carries: values of JSON."""
        return {
            "version": self.version,
            "address": self.address,
            "ports": None if self.ports is None else list(self.ports.items()),
            "token": self.token.hex(),
            "marking": None if self.marking is None else [self.marking.tos, self.marking.ports],
            "precision": None if self.precision is None else [self.precision.codec, self.precision.bound_k],
            "failure": self.failure,
            "context": self.context,
        }

    @classmethod
    def from_words(cls, words: Any) -> Offer:
        """Return what a rank offered; of a rank of another version, only that."""
        try:
            if words["version"] != VERSION:
                return cls(version=words["version"])
            marking, precision = words["marking"], words["precision"]
            return cls(
                address=words["address"],
                ports=None if words["ports"] is None else {bool(tagged): port for tagged, port in words["ports"]},
                token=bytes.fromhex(words["token"]),
                marking=None if marking is None else Marking(marking[0], tuple((a, b) for a, b in marking[1])),
                precision=None if precision is None else Precision(*precision),
                failure=words["failure"],
                context=words["context"],
            )
        except (KeyError, TypeError, ValueError) as error:
            return cls(failure=f"its offer cannot be read: {error!r}")


def asked_precision(codec_name: str | None, bound_k: int | None) -> Precision | None:
    """Return what the caller wants tagged data rounded by; None: what the NIC does.

    Raises:
        UsageError: codec without bound or the reverse, or unknown ones.
    """
    if codec_name is None and bound_k is None:
        return None
    if codec_name is None or bound_k is None:
        raise UsageError("give both codec and bound_k, or neither")
    return Precision(codec.get(codec_name).name, check_bound_k(bound_k))


def own_nic(asked: Precision | None) -> tuple[Marking | None, Precision | None]:
    """Return what this rank's NIC takes for tagged (None: there is no NIC), and what tagged data is rounded by.

    Args:
        asked: by the caller; None: ask the NIC.

    Raises:
        UsageError: not what the NIC does, or the NIC cannot tell tagged connections from others.
        ControlError: the NIC does not answer.
    """
    path = os.environ.get(ENV_CONTROL)
    if not path:
        return None, asked
    info = request(path, "info")
    nic = Precision(str(info["codec"]), int(info["bound_k"]))
    if asked is not None and asked != nic:
        raise UsageError(f"asked for {_describe(asked)}, but the NIC does {_describe(nic)}")
    tag = parse_tag(str(info["tag"]))
    if tag == TAG_ANY:
        raise UsageError("the NIC's tag is any, but ranks have exact connections too: give the NIC a ToS (--tag 0x28)")
    return Marking(tag, parse_ports(str(info["ports"]))), nic


def own_address(gather: Gather, host: str) -> str:
    """Return the IPv4 address at which the other ranks reach this one; collective.

    ``$NETOFFLOAD_ADDRESS`` if set, loopback if all ranks name the same host, else the address of the interface that
    routes to another rank's host.

    Raises:
        UsageError: no route to any other host.
    """
    hosts = gather(host)
    if given := os.environ.get(ENV_ADDRESS):
        return given
    others = [other for other in hosts if other != host]
    if not others:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((others[0], 9))  # sends nothing: asks the routing table
        except OSError as error:
            raise UsageError(f"no route to host {others[0]} ({error}): set ${ENV_ADDRESS} on every rank") from error
        return str(probe.getsockname()[0])


def agree(offers: Sequence[Offer]) -> tuple[Precision | None, Marking]:
    """Return what all ranks round by, and how they mark tagged connections.

    A rank without a NIC (and whose caller named no codec) rounds as the others do: NICs agree in the TCP handshake
    which connections they compress, so its own stay raw, and identical results need the same rounding everywhere.

    Raises:
        CollectiveError: a rank failed, or ranks differ.
    """
    for rank, offer in enumerate(offers):
        if offer.failure is not None:
            raise CollectiveError(f"rank {rank} could not set up its data plane: {offer.failure}")
        if offer.version != VERSION:
            raise CollectiveError(f"rank {rank} speaks version {offer.version}, not {VERSION}: install the same one")
    rounding = [(rank, offer.precision) for rank, offer in enumerate(offers) if offer.precision is not None]
    for rank, precision in rounding:
        if precision != rounding[0][1]:
            first = f"rank {rounding[0][0]} {_describe(rounding[0][1])}"
            raise CollectiveError(f"ranks round differently: {first}, rank {rank} {_describe(precision)}")
    return rounding[0][1] if rounding else None, _agreed_marking(offers)


def rounded_hops(offers: Sequence[Offer]) -> tuple[bool, ...]:
    """Return, per rank, whether NICs round what it sends to its right neighbour: both ranks have one."""
    has_nic = [offer.marking is not None for offer in offers]
    return tuple(here and there for here, there in zip(has_nic, has_nic[1:] + has_nic[:1], strict=True))


def _agreed_marking(offers: Sequence[Offer]) -> Marking:
    """Return the marking of all ranks that have a NIC; the others do as they do."""
    marking = [(rank, offer.marking) for rank, offer in enumerate(offers) if offer.marking is not None]
    for rank, other in marking:
        if other != marking[0][1]:
            first = f"rank {marking[0][0]} {_describe_marking(marking[0][1])}"
            raise CollectiveError(f"NICs have different tags: {first}, rank {rank} {_describe_marking(other)}")
    return marking[0][1] if marking else Marking()


def failure_of(error: NetOffloadError | OSError) -> Offer:
    """Return the offer of a rank that cannot take part."""
    return Offer(failure=str(error))


def _describe(precision: Precision) -> str:
    return f"{precision.codec} with bound {precision.bound_k}"


def _describe_marking(marking: Marking) -> str:
    return format_tag(marking.tos) + (f" on ports {format_ports(marking.ports)}" if marking.ports else "")
