"""What the ranks tell each other at set-up, and what follows from it.

Every rank gathers the same list of offers and decides from that list alone, so all ranks decide the same. That includes
errors: a rank that cannot take part says why in its offer, and all ranks raise.
"""

from __future__ import annotations

import os
import reprlib
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from netoffload import codec
from netoffload.codec_specs import SPECS, CodecId, Cut, Exact
from netoffload.compiled.arrays import Float32Array
from netoffload.config import (
    ENV_ADDRESS,
    ENV_CONTROL,
    ENV_OFFLOAD,
    INLINE_BOUND_K,
    INLINE_CODEC,
    TAG_ANY,
    TOS_COMPRESS,
    Offload,
    Ports,
    check_bound_k,
    format_ports,
    format_tag,
    parse_ports,
    parse_tag,
)
from netoffload.control import request
from netoffload.errors import CollectiveError, UsageError
from netoffload.transport.rendezvous.launchers import address_towards

T = TypeVar("T")

VERSION = 11  # version of the data plane: ranks with different versions do not connect

TOKEN_OCTETS: Final = 16

Gather = Callable[[Any], Sequence[Any]]
"""Collective: takes a JSON value from each rank, returns all values in rank order (a ``Rendezvous``)."""


@dataclass(frozen=True)
class Precision:
    """What tagged data is rounded by: a codec and its bound 2**-bound_k."""

    codec: str
    bound_k: int

    @property
    def keeps_bits(self) -> bool:
        """Whether every bit comes back, of whatever octets."""
        form = SPECS[CodecId[self.codec.upper()]].form
        return isinstance(form, Exact) or form == Cut(32)

    def quantiser(self) -> Quantiser:
        """Return the function that rounds a vector in place as the NICs do."""
        return Quantiser(codec.get(self.codec).codec_id, self.bound_k)


@dataclass(frozen=True)
class Quantiser:
    """Rounds a vector in place: a :data:`~netoffload.collectives.exchange.Quantise` that compiled code knows too."""

    codec_id: codec.CodecId  # the codec that rounds
    bound_k: int  # its error bound is 2**-bound_k

    def __call__(self, values: Float32Array) -> None:
        """Replace ``values`` by what the codec makes of them."""
        codec.CODECS[self.codec_id].round_trip(values, self.bound_k, out=values)


@dataclass(frozen=True)
class Marking:
    """What makes a connection one that the NICs compress."""

    tos: int = TOS_COMPRESS  # ToS of both sockets
    ports: Ports = ()  # ranges, one of which contains a port of the connection; empty: any port


UNTAGGED = Marking(tos=0)  # marking of connections that the NICs do not compress


@dataclass(frozen=True)
class Offer:
    """One rank's side of the agreement."""

    version: int = VERSION  # version of the data plane
    address: str = ""  # IPv4 address where the rank listens
    ports: Mapping[bool, int] | None = None  # ports of its listeners, by whether their connections are tagged
    # Its part of the meeting's secret (`hello`).
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_OCTETS), compare=False)
    marking: Marking | None = None  # what its NIC takes for tagged; None: the rank uses no NIC
    precision: Precision | None = None  # what its NIC, or its caller, says that tagged data is rounded by; None: exact
    failure: str | None = None  # why it cannot take part; None: it can
    context: int = 1  # number of the new communicator; rank 0's counts
    offload: Offload = Offload.NIC  # who is to compress
    coding: Precision | None = None  # codec and bound that it would code by itself with; None: it is not to code
    requires: bool = False  # whether it wants an error if something stays uncompressed

    def to_json(self) -> dict[str, Any]:
        """Return the offer as JSON values, which a rendezvous carries."""
        return {
            "version": self.version,
            "address": self.address,
            "ports": None if self.ports is None else list(self.ports.items()),
            "token": self.token.hex(),
            "marking": None if self.marking is None else [self.marking.tos, self.marking.ports],
            "precision": None if self.precision is None else [self.precision.codec, self.precision.bound_k],
            "coding": None if self.coding is None else [self.coding.codec, self.coding.bound_k],
            "offload": self.offload.value,
            "requires": self.requires,
            "failure": self.failure,
            "context": self.context,
        }

    @classmethod
    def from_json(cls, fields: Any) -> Offer:
        """Return what a rank offered; if its version differs, only the version; if it is nonsense, a failure."""
        try:
            if fields["version"] != VERSION:
                return cls(version=_number(fields["version"], 0, 2**31))
            failure, token = fields["failure"], bytes.fromhex(fields["token"])
            requires = fields["requires"]
            if len(token) != TOKEN_OCTETS or not isinstance(failure, str | None) or not isinstance(requires, bool):
                raise ValueError("its token, its failure, or what it requires")
            return cls(
                address=_address(fields["address"]),
                ports=_ports(fields["ports"]),
                token=token,
                marking=_marking(fields["marking"]),
                precision=_precision(fields["precision"]),
                coding=_precision(fields["coding"]),
                offload=Offload(fields["offload"]),
                requires=requires,
                failure=None if failure is None else "".join(one if one.isprintable() else "?" for one in failure),
                context=_number(fields["context"], 1, 2**32 - 1),
            )
        except (LookupError, TypeError, ValueError, OverflowError, OSError, UsageError) as error:
            return cls(failure=f"its offer cannot be read: {error!r:.200}")


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{reprlib.repr(value)} is not a number between {least} and {most}")
    return value


def _address(value: Any) -> str:
    """Return an IPv4 address; "" is that of a rank that cannot take part."""
    if value != "":
        socket.inet_pton(socket.AF_INET, value)
    return str(value)


def _ports(fields: Any) -> dict[bool, int] | None:
    if fields is None:
        return None
    ports = {bool(is_tagged): _number(port, 1, 2**16 - 1) for is_tagged, port in fields}
    if ports and len(ports) != 2:
        raise ValueError("a listener is missing")
    return ports


def _marking(fields: Any) -> Marking | None:
    if fields is None:
        return None
    ports = ((_number(first, 1, 2**16 - 1), _number(last, first, 2**16 - 1)) for first, last in fields[1])
    return Marking(_number(fields[0], 0, 255), tuple(ports))


def _precision(fields: Any) -> Precision | None:
    return None if fields is None else Precision(codec.get(fields[0]).name, check_bound_k(_number(fields[1], 0, 2**31)))


def requested_precision(codec_name: str | None, bound_k: int | None) -> Precision | None:
    """Return what the caller wants tagged data rounded by; None: as the NIC does."""
    if codec_name is None and bound_k is None:
        return None
    if codec_name is None or bound_k is None:
        raise UsageError("give both codec and bound_k, or neither")
    return Precision(codec.get(codec_name).name, check_bound_k(bound_k))


def own_offer(offload: Offload, requested: Precision | None) -> Offer:
    """Return the part of this rank's offer that says who compresses, and how; the caller ``requested`` a precision."""
    coding = requested or Precision(INLINE_CODEC, INLINE_BOUND_K)
    if offload is Offload.NIC:
        marking, precision = own_nic(requested)
        return Offer(marking=marking, precision=precision)
    if offload is Offload.AUTO:
        marking, precision = own_nic(None)
        if requested not in (None, precision):
            marking, precision = None, None
        return Offer(marking=marking, precision=precision, offload=offload, coding=coding)
    return Offer(offload=offload, coding=coding if offload is Offload.INLINE else None)


def own_nic(requested: Precision | None) -> tuple[Marking | None, Precision | None]:
    """Return what this rank's NIC takes for tagged (None: there is no NIC), and what tagged data is rounded by."""
    path = os.environ.get(ENV_CONTROL)
    if not path:
        return None, requested
    info = request(path, "info")
    nic = Precision(str(info["codec"]), int(info["bound_k"]))
    if requested is not None and requested != nic:
        raise UsageError(f"asked for {_describe(requested)}, but the NIC does {_describe(nic)}")
    tag = parse_tag(str(info["tag"]))
    if tag == TAG_ANY:
        raise UsageError("the NIC's tag is any, but ranks have exact connections too: give the NIC a ToS (--tag 0x28)")
    return Marking(tag, parse_ports(str(info["ports"]))), nic


def own_address(gather: Gather, host: str) -> str:
    """Return the IPv4 address at which the other ranks reach this one; collective."""
    # As set; or loopback if all ranks name the same host; or that of the interface which routes to another rank's host.
    hosts = gather(host)
    if given := os.environ.get(ENV_ADDRESS):
        try:
            if not any(socket.inet_pton(socket.AF_INET, given)):
                raise OSError  # 0.0.0.0 is every address
            socket.create_server((given, 0)).close()
        except OSError as error:
            raise UsageError(f"${ENV_ADDRESS} is {given!r}, which is no IPv4 address of this host") from error
        return given
    others = [other for other in hosts if other != host]
    if not others:
        return "127.0.0.1"
    try:
        return address_towards(others[0])
    except (OSError, ValueError) as error:  # a name may have a form that no host's name has
        raise UsageError(
            f"no route to host {reprlib.repr(others[0])} ({error}): set ${ENV_ADDRESS} on every rank"
        ) from error


class Agreement(NamedTuple):
    """What all ranks do."""

    precision: Precision | None  # what tagged data is rounded by; None: nothing
    marking: Marking  # marking of tagged connections
    offload: Offload = Offload.NIC  # who compresses; never `AUTO`

    @property
    def quantiser(self) -> Quantiser | None:
        """Rounds a vector as tagged data is rounded; None: tagged data is exact."""
        return None if self.precision is None else self.precision.quantiser()

    @property
    def coding(self) -> Quantiser | None:
        """Codec and bound that ranks code with by themselves; None: they do not code."""
        return self.quantiser if self.offload is Offload.INLINE else None

    def rounded_hops(self, offers: Sequence[Offer]) -> tuple[bool, ...]:
        """Return, per rank, whether what it sends to its right neighbour is rounded on the way: by two NICs, or by the
        ranks.
        """
        if self.offload is not Offload.NIC:
            return (self.offload is Offload.INLINE,) * len(offers)
        has_nic = [offer.marking is not None for offer in offers]
        return tuple(here and there for here, there in zip(has_nic, has_nic[1:] + has_nic[:1], strict=True))


def agree(offers: Sequence[Offer]) -> Agreement:
    """Return what all ranks do."""
    for rank, offer in enumerate(offers):
        if offer.failure is not None:
            raise CollectiveError(f"rank {rank} could not set up its data plane: {offer.failure}")
        if offer.version != VERSION:
            raise CollectiveError(f"rank {rank} speaks version {offer.version}, not {VERSION}: install the same one")
        if offer.offload is not offers[0].offload:
            raise CollectiveError(
                f"ranks differ in who compresses: rank 0 says {offers[0].offload}, rank {rank} {offer.offload}; "
                f"set ${ENV_OFFLOAD} on every rank"
            )
    offload = offers[0].offload
    if offload is Offload.AUTO:
        nics = {(offer.marking, offer.precision) for offer in offers}
        offload = Offload.INLINE if len(nics) > 1 or offers[0].marking is None else Offload.NIC
    # A rank without a NIC, whose caller named no codec, rounds as the others do. Its connections stay raw, which NICs
    # find out in the TCP handshake, but identical results need the same rounding everywhere.
    if offload is Offload.NIC:
        precision = _agreed([offer.precision for offer in offers], "ranks round differently", _describe)
        # A rank without a NIC uses the marking of the others.
        marking = _agreed([offer.marking for offer in offers], "NICs have different tags", _describe_marking)
        return Agreement(precision, marking or Marking())
    precision = _agreed([offer.coding for offer in offers], "ranks round differently", _describe)
    return Agreement(precision, UNTAGGED, offload)


def _agreed(offered: Sequence[T | None], difference: str, describe: Callable[[T], str]) -> T | None:
    """Return what all ranks offer that offer anything; None if no rank does."""
    offering = [(rank, one) for rank, one in enumerate(offered) if one is not None]
    for rank, one in offering:
        first_rank, first = offering[0]
        if one != first:
            raise CollectiveError(f"{difference}: rank {first_rank} {describe(first)}, rank {rank} {describe(one)}")
    return offering[0][1] if offering else None


def _describe(precision: Precision) -> str:
    return f"{precision.codec} with bound {precision.bound_k}"


def _describe_marking(marking: Marking) -> str:
    return format_tag(marking.tos) + (f" on ports {format_ports(marking.ports)}" if marking.ports else "")
