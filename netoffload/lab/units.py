"""Rates, clocks and times, as people write them."""

import re

from netoffload.config import POWERS
from netoffload.errors import UsageError

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgKMG]?)(?:[bB]it(?:s|ps|/s)?|b/s)")
_RATE_IN_OCTETS = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?(?:bps|b/s|b|bytes?(?:ps|/s)?)", re.IGNORECASE)
_CLOCK = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)hz", re.IGNORECASE)


def parse_rate_bps(text: str, most_gbit: int = 100) -> int:
    """Return bits per second from a rate as tc writes it: ``100mbit``, ``1gbit``, ``2.5Gbit``, ``800kbit``."""
    match = _RATE.fullmatch(text.strip())
    if match is None and (octets := _RATE_IN_OCTETS.fullmatch(text.strip())):
        bits = f"{float(octets[1]):g}{octets[2].lower()}bit"
        raise UsageError(f"rate {text!r} may mean bytes, as in tc: write {bits} for bits per second")
    if match is None:
        raise UsageError(f"rate {text!r} is not a number with a unit: write 100mbit, 1gbit or 2.5gbit")
    rate_bps = round(float(match[1]) * 1000.0 ** POWERS[match[2].lower()])
    if not 1_000_000 <= rate_bps <= most_gbit * 1_000_000_000:
        raise UsageError(f"rate {text!r} is outside 1mbit..{most_gbit}gbit")
    return rate_bps


def format_ms(time_s: float) -> str:
    """Return a time in milliseconds with one decimal place, and three below 10 ms."""
    return f"{time_s * 1e3:.{1 if time_s >= 0.01 else 3}f}"


def parse_clock_hz(text: str) -> int:
    """Return hertz from ``100MHz``, ``1.5 GHz``."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"clock {text!r} is not a number with a unit: write 100MHz or 1.5GHz")
    clock_hz = round(float(match[1]) * 1000.0 ** POWERS[match[2].lower()])
    if not 1_000_000 <= clock_hz <= 10_000_000_000:
        raise UsageError(f"clock {text!r} is outside 1MHz..10GHz")
    return clock_hz
