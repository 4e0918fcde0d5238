"""Settings with units, and how people write them.

Every setting is a field of a frozen dataclass with its unit in its name. The layer that uses a setting defines it
(``testbed.plan``, ``training.config``, ``netoffload.nic_options``). This module has the shared parts: parsing of
sizes and error bounds, and numbers on which several layers must agree. A value that cannot be parsed raises a
:class:`~netoffload.errors.UsageError` that names accepted values; no value falls back to a default.
"""

import enum
import operator
import os
import re
from collections.abc import Mapping
from typing import Any, Final, SupportsIndex

from netoffload.codec_specs import NAMES, RETIRED
from netoffload.errors import UsageError

TOS_COMPRESS: Final = 0x28
"""ToS of a tagged segment (INCEPTIONN, VI-B). The two low bits are ECN's: compare with ``(tos & TOS_MASK)``."""
TOS_MASK: Final = 0xFC

TAG_ANY: Final = -1
"""Instead of a ToS: every TCP connection of the NIC's ports counts as tagged."""

DSCP_NAMES: Final = {
    **{f"CS{number}": number << 3 for number in range(1, 8)},
    **{f"AF{group}{drop}": group << 3 | drop << 1 for group in range(1, 5) for drop in range(1, 4)},
    "LE": 1,
    "VA": 44,
    "EF": 46,
}
"""Names of DSCPs (RFC 2474, 2597, 3246, 5865, 8622). CS0 is missing: unmarked segments have it."""

PORT_MAX: Final = 65535
Ports = tuple[tuple[int, int], ...]
"""Ranges of ports, each first and last; empty: every port."""

BOUND_K_MIN: Final = 1
BOUND_K_MAX: Final = 16
BOUND_K_DEFAULT: Final = 10
"""The error bound is 2**-k; the paper evaluates k = 6, 8, 10."""

CODECS: Final = NAMES
"""The names that users may ask for."""

PACKINGS: Final = ("coalesced", "per-segment")
"""``coalesced`` fills wire frames up to the MTU; ``per-segment`` is the paper's NIC, one frame per MSS."""

ENCAPSULATIONS: Final = ("udp", "ipcomp")
"""How blocks travel: in UDP to peers that take it, or as IP protocol 108."""

TAP_QUEUE_FRAMES: Final = 4096
"""The most frames that wait in a TAP for its NIC. TCP's windows limit how many wait. A full TAP drops frames silently,
and acknowledgements alone can fill the default of 1000 frames."""


class Offload(enum.StrEnum):
    """Which process compresses the data that ranks send each other."""

    NIC = "nic"
    """The NICs, if there are any: ranks use tagged connections."""
    INLINE = "inline"
    """Each rank's own process, over untagged connections: no root, no daemon."""
    AUTO = "auto"
    """The NICs if every rank has one with the same codec, else inline."""
    OFF = "off"
    """No compression: every value arrives exact."""


# Defaults of ranks that compress by themselves.
INLINE_CODEC: Final = "packed"
"""The values of ``bounded``, whose error is bounded for every float, in the fewest octets (docs/lab/codecs.md)."""
INLINE_BOUND_K: Final = 10

# Environment variables.
ENV_OFFLOAD: Final = "NETOFFLOAD_OFFLOAD"
"""The :class:`Offload` of communicators that do not name one."""
ENV_CONTROL: Final = "NETOFFLOAD_CONTROL"
"""The path of the control socket of this node's NIC."""
ENV_METER: Final = "NETOFFLOAD_METER"
"""The path of the testbed's meter socket (octets on every wire)."""
ENV_ADDRESS: Final = "NETOFFLOAD_ADDRESS"
"""The IPv4 address of this node's data interface."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)b?", re.IGNORECASE)
POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3}
"""Of 1000, or of 1024, by the letter in front of a unit."""


def format_rate(rate_bps: float) -> str:
    """Write a rate for people: ``1 Gb/s``, ``958 Mb/s``."""
    for factor, unit in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if rate_bps >= factor:
            return f"{rate_bps / factor:.4g} {unit}"
    return f"{rate_bps:.4g} b/s"


def parse_size_octets(text: str) -> int:
    """Return octets from ``25MB`` (10**6), ``64KiB`` (2**10), ``4096``."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r} is not a number of octets: write 25MB, 64KiB or 4096")
    size = round(float(match[1]) * (1024.0 if match[3] else 1000.0) ** POWERS[match[2].lower()])
    if size <= 0:
        raise UsageError(f"size {text!r} is not more than 0")
    return size


def parse_offload(text: str) -> Offload:
    """Return the :class:`Offload` named ``nic``, ``inline``, ``auto`` or ``off``."""
    try:
        return Offload(str(text).strip().lower())
    except ValueError:
        raise UsageError(f"offload {text!r} is unknown: choose from {', '.join(Offload)}") from None


def chosen_offload(name: str | None, env: Mapping[str, str] = os.environ) -> Offload:
    """Return who compresses: the :class:`Offload` with this name, else with that in an environment, else ``auto``."""
    if name:
        return parse_offload(name)
    try:
        return parse_offload(env.get(ENV_OFFLOAD) or Offload.AUTO)
    except UsageError as error:
        raise UsageError(f"${ENV_OFFLOAD}: {error}") from None


def parse_count(text: str) -> int:
    """Return a number from ``200k``, ``20M``, ``4096``."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) < 1:
        raise UsageError(f"count {text!r} is not a number from 1 on: write 20M, 200k or 4096")
    return round(int(match[1]) * 1000.0 ** POWERS[match[2].lower()])


def parse_tag(text: str) -> int:
    """Return the ToS or traffic class of tagged segments from ``0x28``, ``40``, ``AF11``; ``TAG_ANY`` from ``any``."""
    word = text.strip()
    if word.lower() == "any":
        return TAG_ANY
    if word.upper() in DSCP_NAMES:
        return DSCP_NAMES[word.upper()] << 2
    if not re.fullmatch(r"[0-9]+|0x[0-9a-f]+", word, re.IGNORECASE):
        raise UsageError(f"tag {text!r} is not a ToS: write 0x28, 40, a DSCP like AF11, or any")
    tag = int(word, 16 if word[:2].lower() == "0x" else 10)
    if not 1 <= tag <= 0xFF:
        raise UsageError(f"tag {tag} is outside 4..252: for unmarked segments use --tag any")
    if tag & ~TOS_MASK:
        raise UsageError(f"tag {tag:#04x} has ECN bits, which routers change: its two low bits must be 0")
    return tag


def format_tag(tag: int) -> str:
    """Write a tag as :func:`parse_tag` reads it: ``0x28``, ``any``."""
    return "any" if tag == TAG_ANY else f"{tag:#04x}"


def parse_ports(text: str) -> Ports:
    """Return ranges of ports from ``5000-5999,7000``; an empty text gives no ranges."""
    ranges = []
    for word in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word.strip())
        if match is None:
            raise UsageError(f"ports {text!r} are not a list: write 5000-5999,7000")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= PORT_MAX:
            raise UsageError(f"ports {word.strip()!r} are not a range within 1..{PORT_MAX}")
        ranges.append((first, last))
    return tuple(ranges)


def format_ports(ports: Ports) -> str:
    """Write ranges of ports as :func:`parse_ports` reads them."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ports)


def check_bound_k(bound_k: int) -> int:
    """Return ``bound_k`` as Python's integer if 2**-bound_k is an error bound of the codecs."""
    if not isinstance(bound_k, SupportsIndex) or isinstance(bound_k, bool):
        raise UsageError(f"bound {bound_k!r} is not a whole number: the error bound is 2^-bound")
    if not BOUND_K_MIN <= bound_k <= BOUND_K_MAX:
        raise UsageError(f"bound {bound_k} is outside {BOUND_K_MIN}..{BOUND_K_MAX}: the error bound is 2^-bound")
    return operator.index(bound_k)


def whole_number(what: str, value: object) -> int:
    """Return a number that a caller gave, perhaps NumPy's, as Python's integer."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool):
        raise UsageError(f"{what} is {value!r}: give a whole number")
    return operator.index(value)


def check_timeout_s(timeout_s: float) -> None:
    """Refuse a time limit that is not positive."""
    if not timeout_s > 0:
        raise UsageError(f"a time limit of {timeout_s:g} s is not possible: write seconds, more than 0")


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        if isinstance(value, str) and RETIRED.get(value) in choices:
            raise UsageError(f"{what} {value!r} is retired: use {RETIRED[value]}, its values in fewer octets")
        raise UsageError(f"{what} {value!r} is unknown: choose from {', '.join(choices)}")
    return value


_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_parameters(name: str, text: str, kinds: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters of a text such as ``levels=15,norm=max``, which may be empty.

    Messages name the object with these parameters, ``name``. A parameter of another kind than ``bool``, ``int`` and
    ``float`` stays text.
    """
    parameters: dict[str, object] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key in parameters:
            raise UsageError(f"{name}: {item!r} is not parameter=value, or is given twice")
        kind = kinds.get(key, str)
        try:
            if kind is bool:
                parameters[key] = _TRUTH[value.lower()]
            else:
                parameters[key] = kind(value) if kind in (int, float) else value
        except (KeyError, ValueError) as error:
            raise UsageError(f"{name}: {key}={value!r} is not of type {kind.__name__}") from error
    return parameters
